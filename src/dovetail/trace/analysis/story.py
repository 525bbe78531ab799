"""story: a trace as steps of each rank and the time of each message, which a replay may change.

A rank's story is a list of steps: seconds of its own, then a message or collective begun or waited for. How long a
message took is known where its receiver waited for it; from these times a curve gives what other messages may have
taken. Time within calls that did not wait is the rank's own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.ir.collectives import kind_of_mpi, traits_of
from dovetail.trace.analysis.delays import LEAST_HELD_S, Delays, crossed, delays_of
from dovetail.trace.analysis.matching import Messages, messages, of_name
from dovetail.trace.analysis.meetings import Meetings, meetings
from dovetail.trace.analysis.message_delays import delayed_by, is_rendezvous, message_delays
from dovetail.trace.decode import KINDS
from dovetail.trace.trace import Trace

Does = Literal["send", "recv", "sent", "taken", "join", "joined", "own", "end"]
SYNCHRONOUS, FROM_ROOT, TO_ROOT = "all", "from_root", "to_root"
_PROBES = ("MPI_Probe", "MPI_Iprobe", "MPI_Mprobe", "MPI_Improbe")


class Step(NamedTuple):
    """`seconds` of the rank's own, `within_s` of them in calls before, `after_s` of these in the call of the step
    before; then what it does in the call at `row`.

    `send` and `recv` begin message `number`, `sent` and `taken` wait for it; `join` begins the rank's part in
    collective `number`, `joined` waits for it to be over; `own` and `end` do nothing.
    """

    seconds: float
    does: Does
    number: int
    row: int
    within_s: float = 0.0
    after_s: float = 0.0


@dataclass(frozen=True)
class Message:
    """One message.

    `delay_s`: measured delay; None: the fitted curve's. `rendezvous`: it waited for its receive. `stalls`: without
    progress, it moved only while its receiver waited for it. `synchronous`: its sender waits for it at any size, as in
    MPI_Ssend, or until it has passed a slow link. `came_back`: its receiver waited for it until its sender's next call.
    `held`: without progress, it starts only at its sender's next call. `gap_s`: time until the next message may start.
    """

    src: int
    dst: int
    key: int  # of communicator and tag: those of one key, source and destination keep their order
    num_bytes: int
    delay_s: float | None
    rendezvous: bool
    stalls: bool = False
    synchronous: bool = False
    came_back: bool = False
    held: bool = False
    gap_s: float = 0.0
    crossed: bool = False


@dataclass(frozen=True)
class Gathering:
    """One collective, which is complete `seconds` after the last rank joined.

    Rooted ones: after the root joined, or for the root after each other rank. `stalls`: it progressed only when the
    last rank waited for it, though started long before. `own_s`: part of its time that the ranks themselves spend on
    copies, whoever drives it, since they share a host.
    """

    meeting: int
    name: str
    group: tuple[int, ...]
    way: str
    root: int
    num_bytes: int
    seconds: float
    blocking: bool = True
    stalls: bool = False
    own_s: float = 0.0


@dataclass(frozen=True)
class Story:
    """What all ranks did. `steps[r]` are rank r's; `makespan_s` from the first step to the last, as traced."""

    steps: tuple[tuple[Step, ...], ...]
    messages: tuple[Message, ...]
    gatherings: tuple[Gathering, ...]
    delays: Delays
    makespan_s: float
    names: tuple[str, ...] = field(repr=False)

    def with_steps(self, steps: Any, **changes: Any) -> Story:
        """The same with other steps, messages or collectives."""
        return replace(self, steps=tuple(map(tuple, steps)), **changes)


class _Call(NamedTuple):
    """One MPI call, or several that looked in vain, `pause_s` between them: its first row, its name, and when."""

    row: int
    name: int
    start_s: float
    end_s: float
    pause_s: float


def story_of(trace: Trace) -> Story:
    """Return the story of a trace, from the end of MPI_Init to the start of MPI_Finalize.

    Each rank is represented by the thread that makes most MPI calls. Messages with another thread, or without a
    partner, are left out.
    """
    return story_with(trace, messages(trace), meetings(trace))


def story_with(trace: Trace, found: Messages, met: Meetings) -> Story:
    """The story of a trace whose messages and meetings are known."""
    made = _StoryBuilder(trace, found, met)
    steps = [made.steps(rank) for rank in range(trace.num_ranks)]
    return Story(tuple(steps), made.messages(), made.gatherings(), made.delays, made.makespan_s, trace.names)


class _StoryBuilder:
    def __init__(self, trace: Trace, found: Messages, met: Meetings) -> None:
        self.trace, self.met = trace, met
        self.synchronous = of_name([*trace.names, ""], lambda name: "ssend" in name.lower())[found.sent_name]
        combined = of_name([*trace.names, ""], lambda name: "sendrecv" in name.lower())[found.sent_name]
        plain = ~combined & ~self.synchronous
        first = np.arange(trace.num_rows) - trace.columns["part"]
        self.is_main = self._main_rows()
        both_main = [self.is_main[row] for row in (found.sent_row, found.posted_row, found.taken_row)]
        self.whole = whole = np.flatnonzero((found.taken_row >= 0) & np.all(both_main, axis=0))
        self.sends = _grouped(first[found.sent_row[whole]], whole)
        self.posts = _grouped(first[found.posted_row[whole]], whole)
        self.takes = _grouped(first[found.taken_row[whole]], whole)
        self.blocks = (
            trace.columns["request"][found.sent_row] < 0
        ).tolist()  # whether the call that sends waits for it
        self.found, self.calls = found, self._calls()
        self.found = found = self._probed()
        self.ends = self._send_ends(first)
        delayed = delayed_by(found, self.takes, self.sends, self.ends, self.blocks)
        is_delayed = delayed[0] >= 0
        self.synchronous[delayed[0][is_delayed]] = True
        self.delays = delays_of(found, plain, is_delayed)
        ranks = range(trace.num_ranks)
        strangers = np.array([not all(r in ranks for r in (*c.ranks, *c.remote)) for c in trace.comms] + [False])
        members = np.array([0 if comm.remote else len(comm.ranks) for comm in trace.comms] + [0])
        lacks = np.bincount(met.meeting)[met.meeting] < members[met.comm]  # a rank ended before, or left no file
        apart = np.unique(met.meeting[~self.is_main[met.row] | strangers[met.comm] | lacks])
        whole_meetings = np.flatnonzero(~np.isin(met.meeting, apart))
        self.meets = {int(first[met.row[i]]): i for i in whole_meetings.tolist()}
        self.joined = self._join_ends(first)
        rendezvous = is_rendezvous(found, self.delays, plain, self.synchronous)
        self.delayed = message_delays(found, self.delays, rendezvous, delayed, self._back_s())
        self.rendezvous, self.arrived_s = self.delayed.rendezvous.tolist(), self.delayed.arrived_s().tolist()
        starts = [calls[0].start_s for calls in self.calls if calls]
        self.start_s = min(starts, default=0.0)
        self.makespan_s = max((calls[-1].end_s for calls in self.calls if calls), default=0.0) - self.start_s

    def _send_ends(self, first: NDArray[Any]) -> dict[int, list[int]]:
        """Of each call: the messages whose sending it finds to be over."""
        col = self.trace.columns
        done = np.flatnonzero((col["kind"] == KINDS.index("done")) & (col["peer"] == -1) & (col["request"] >= 0))
        done = done[np.argsort(col["end_s"][done], kind="stable")]
        over = _grouped(col["request"][done], done)
        ends_s = {request: col["end_s"][rows].tolist() for request, rows in over.items()}
        ends: dict[int, list[int]] = defaultdict(list)
        for i, request in zip(
            self.whole.tolist(), col["request"][self.found.sent_row[self.whole]].tolist(), strict=True
        ):
            at = bisect_left(ends_s.get(request, []), self.found.sent_s[i])
            if at < len(over.get(request, [])):
                ends[int(first[over[request][at]])].append(i)
        return ends

    def _join_ends(self, first: NDArray[Any]) -> dict[int, list[int]]:
        """Of each call: the collective calls (rows of `met`) that it finds to be over."""
        col = self.trace.columns
        of_request = {int(self.met.request[i]): i for i in self.meets.values() if self.met.request[i] >= 0}
        ends: dict[int, list[int]] = defaultdict(list)
        for row in np.flatnonzero((col["kind"] == KINDS.index("done")) & (col["request"] >= 0)).tolist():
            i = of_request.get(int(col["request"][row]))
            if i is not None:
                ends[int(first[row])].append(i)
        return ends

    @cached_property
    def _is_call(self) -> NDArray[np.bool_]:
        """Of each row, whether it is an MPI call that came back."""
        col = self.trace.columns
        is_mpi = of_name(self.trace.names, lambda name: name.startswith("MPI_"))[col["name"]]
        found: NDArray[np.bool_] = is_mpi & (col["part"] == 0) & ~col["is_open"] & ~self.trace.of_kind("point")
        return found

    def _main_rows(self) -> NDArray[np.bool_]:
        """Of each row, whether it lies in the thread of its rank that makes most MPI calls."""
        col, main = self.trace.columns, np.full(self.trace.num_ranks, -1)
        at = np.flatnonzero(self._is_call)
        both = np.stack([col["rank"][at], col["thread"][at]])
        (ranks, threads), count = np.unique(both, axis=1, return_counts=True)
        order = np.lexsort((-threads, count, ranks))  # the last of each rank is written last
        main[ranks[order]] = threads[order]
        found: NDArray[np.bool_] = col["thread"] == main[col["rank"]]
        return found

    def _calls(self) -> list[list[_Call]]:
        """The MPI calls of each rank's main thread, without its first and its last."""
        col, names = self.trace.columns, self.trace.names
        rows = np.flatnonzero(self.is_main & self._is_call)
        rows = rows[np.lexsort((col["start_s"][rows], col["rank"][rows]))]
        values = (col[name][rows].tolist() for name in ("rank", "name", "start_s", "end_s", "pause_s"))
        bounds = ("MPI_Init", "MPI_Init_thread", "MPI_Finalize")
        calls: list[list[_Call]] = [[] for _ in range(self.trace.num_ranks)]
        for row, rank, *about in zip(rows.tolist(), *values, strict=True):
            call = _Call(row, *about)
            if names[call.name] in bounds[:2]:
                call = call._replace(start_s=call.end_s)
            calls[rank].append(call._replace(end_s=call.start_s) if names[call.name] == bounds[2] else call)
        return calls

    def _probed(self) -> Messages:
        """The messages; who probes for one just before it is received waits from then on, and the receiving call begins
        there."""
        waited_s, posted_s = np.array(self.found.waited_s), np.array(self.found.posted_s)
        for rank, calls in enumerate(self.calls):
            merged: list[_Call] = []
            for call in calls:
                posted = self.posts.get(call.row, [])
                if merged and self.trace.names[merged[-1].name] in _PROBES:
                    posted = posted + self.posts.get(merged[-1].row, [])
                    if mine := [i for i in self.takes.get(call.row, ()) if i in posted]:
                        call = call._replace(start_s=merged.pop().start_s)
                        waited_s[mine] = posted_s[mine] = call.start_s
                        self.posts[call.row] = posted
                merged.append(call)
            self.calls[rank] = merged
        return self.found._replace(waited_s=waited_s, posted_s=posted_s)

    def steps(self, rank: int) -> tuple[Step, ...]:
        steps: list[Step] = []
        own, within, after, before = 0.0, 0.0, 0.0, self.start_s
        for call in self.calls[rank]:
            own += call.start_s - before
            waited, deeds = self._waited(call), self._deeds(call)
            for does, number in deeds:
                steps.append(Step(max(own, 0.0), does, number, call.row, within, after))
                own = within = after = 0.0
            spent = self._after(call) if waited else call.end_s - call.start_s
            inside = spent if waited else max(spent - call.pause_s, 0.0)
            own, within, before = own + spent, within + inside, call.end_s
            after = spent if deeds else after
        return (*steps, Step(max(own, 0.0), "end", -1, -1, within, after))

    def _deeds(self, call: _Call) -> list[tuple[Does, int]]:
        """What a call begins, then what it waits for."""
        row = call.row
        deeds: list[tuple[Does, int]] = [("send", i) for i in self.sends.get(row, ())]
        deeds += [("recv", i) for i in self.posts.get(row, ())]
        if row in self.meets:
            deeds.append(("join", self.meets[row]))
            if self.met.request[self.meets[row]] < 0:
                deeds.append(("joined", self.meets[row]))
        deeds += [("joined", i) for i in self.joined.get(row, ())]
        deeds += [("taken", i) for i in self.takes.get(row, ())]
        blocked = [i for i in self.sends.get(row, ()) if self.rendezvous[i] and self.blocks[i]]
        return deeds + [("sent", i) for i in (*blocked, *self.ends.get(row, ()))]

    def _back_s(self) -> NDArray[Any]:
        """Of each message: when its sender, whose call did not wait, was in the library again, in a call that begins
        something or waits for it: one that only looks leaves no sign of how the message got on."""
        back_s = np.full(len(self.found.src), np.inf)
        deeds: tuple[Mapping[int, Any], ...] = (self.sends, self.posts, self.meets, self.joined, self.takes, self.ends)
        for call, after in (pair for calls in self.calls for pair in pairwise(calls)):
            for i in self.sends.get(call.row, ()):
                if not self.blocks[i] and any(after.row in each for each in deeds):
                    back_s[i] = after.start_s
        return back_s

    def _waited(self, call: _Call) -> bool:
        """Whether a call waited for something: its time is then not the rank's own."""
        if call.row in self.meets or call.row in self.joined:
            return True
        awaited = [i for i in self.sends.get(call.row, ()) if self.blocks[i]] + self.ends.get(call.row, [])
        awaited = [i for i in awaited if self.rendezvous[i]] + self.takes.get(call.row, [])
        return any(self.arrived_s[i] > call.start_s + 1e-9 for i in awaited)

    def _after(self, call: _Call) -> float:
        """Time of the rank's own within a call that waited: what is left after all that it waited for."""
        over = [call.start_s, *(self._over_s(i) for i in self.joined.get(call.row, ()))]
        i = self.meets.get(call.row)
        if i is not None and self.met.request[i] < 0:
            over.append(self._over_s(i))
        over += [self.arrived_s[i] for i in self.takes.get(call.row, ())]
        blocked = [i for i in self.sends.get(call.row, ()) if self.blocks[i]]
        waits = [i for i in (*blocked, *self.ends.get(call.row, ())) if self.rendezvous[i]]
        over += [self.arrived_s[i] for i in waits]
        return max(call.end_s - max(over), 0.0)

    def _over_s(self, i: int) -> float:
        """When a collective let this rank go on, as far as its own kind of waiting goes."""
        number, way = int(self.met.meeting[i]), self._way(i)
        is_root = self.met.root[i] == self.met.rank[i]
        seconds = self._seconds[number]
        if number in self.quiet:
            return sum(self.quiet[number])
        if way == FROM_ROOT:
            begun = float(self.met.start_s[i])
            return begun if is_root else max(float(self.met.root_start_s[i]) + seconds, begun)
        if way == TO_ROOT:
            return float(self.met.last_start_s[i] + seconds if is_root else self.met.start_s[i])
        return float(self.met.last_start_s[i] + seconds)

    @cached_property
    def quiet(self) -> dict[int, tuple[float, float]]:
        """Meetings that progressed only when all ranks waited, though all had started them long enough before.

        For each: when the last rank came to wait, and how long the meeting then took.
        """
        met, col = self.met, self.trace.columns
        looked: dict[int, list[float]] = defaultdict(list)
        ends: dict[int, list[float]] = defaultdict(list)
        for row, waited in self.joined.items():
            for number in met.meeting[waited].tolist():
                looked[number].append(float(col["start_s"][row]))
                ends[number].append(float(col["end_s"][row]))
        sizes, begun_s = np.bincount(met.meeting), np.zeros(int(met.meeting.max(initial=-1)) + 1)
        begun_s[met.meeting] = met.last_start_s
        found = {}
        for number, those in looked.items():
            last_s, spent_s = max(those), min(ends[number]) - max(those)
            if len(those) == sizes[number] > 1 and LEAST_HELD_S < spent_s < last_s - begun_s[number]:
                found[number] = last_s, spent_s
        return found

    def _way(self, i: int) -> str:
        name = self.trace.names[self.met.name[i]].removeprefix("MPI_").removesuffix("_c")
        if np.isnan(self.met.root_start_s[i]):
            return SYNCHRONOUS
        traits = traits_of(kind_of_mpi(name))
        return FROM_ROOT if traits.from_root else TO_ROOT if traits.to_root else SYNCHRONOUS

    @cached_property
    def _seconds(self) -> NDArray[Any]:
        """Of each meeting: the least time that any rank was seen to wait from when it could be over."""
        count, met = int(self.met.meeting.max(initial=-1)) + 1, self.met
        ways = np.array([self._way(i) for i in range(len(met.meeting))], "U9")
        is_root, looked, ends = met.root == met.rank, np.array(met.start_s, "f8"), np.array(met.end_s, "f8")
        for row, waited in self.joined.items():
            looked[waited], ends[waited] = self.trace.columns["start_s"][row], self.trace.columns["end_s"][row]
        since = np.where(ways == FROM_ROOT, np.fmax(met.root_start_s, met.start_s), met.last_start_s)
        waits = np.select([ways == FROM_ROOT, ways == TO_ROOT], [~is_root, is_root], True)
        waits &= (met.request < 0) | (ends - looked > LEAST_HELD_S)
        least, most = np.full(count, np.inf), np.full(count, np.inf)
        np.minimum.at(least, met.meeting[waits], np.maximum(ends - np.fmax(since, looked), 0.0)[waits])
        np.minimum.at(most, met.meeting, np.maximum(looked - since, 0.0))
        seen = np.isfinite(least)
        least[~seen] = np.minimum(np.median(least[seen]) if seen.any() else 0.0, most[~seen])
        for number, (_, spent_s) in self.quiet.items():
            least[number] = spent_s
        return least

    def messages(self) -> tuple[Message, ...]:
        f = self.found
        keys = np.stack([f.src, f.dst, self.trace.columns["comm"][f.sent_row], self.trace.columns["tag"][f.sent_row]])
        _, key = np.unique(keys, axis=1, return_inverse=True)
        seen = self.delayed
        columns = (
            *(f.src, f.dst, key.ravel(), f.num_bytes, seen.seconds, seen.rendezvous, seen.stalls, self.synchronous),
            *(seen.came_back, seen.held, np.zeros(len(key)), crossed(f)),
        )
        return tuple(Message(*one) for one in zip(*(column.tolist() for column in columns), strict=True))

    def gatherings(self) -> tuple[Gathering, ...]:
        """One for each call in `met`; those of one meeting are equal."""
        comms, seconds = self.trace.comms, self._seconds
        hosts = {about["rank"]: about.get("host") for about in self.trace.meta.get("ranks", ())}
        most = np.zeros(len(seconds), "i8")
        np.maximum.at(most, self.met.meeting, np.maximum(self.met.num_bytes, self.met.received_bytes))
        found = []
        for i, number in enumerate(self.met.meeting.tolist()):
            group = comms[int(self.met.comm[i])].ranks if self.met.comm[i] >= 0 else ()
            name = self.trace.names[self.met.name[i]]
            head = (number, name, group, self._way(i), int(self.met.root[i]), int(most[number]), float(seconds[number]))
            own_s = float(seconds[number]) if len({hosts.get(rank) for rank in group}) == 1 else 0.0
            found.append(Gathering(*head, bool(self.met.request[i] < 0), number in self.quiet, own_s))
        return tuple(found)


def _grouped(keys: NDArray[Any], values: NDArray[Any]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for key, value in zip(keys.tolist(), values.tolist(), strict=True):
        found[key].append(value)
    return found
