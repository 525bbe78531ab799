"""replay_model: a model of a trace, which a replay can time and a remedy can change.

Each rank is a list of steps. A step is some seconds of the rank's own work, then the begin of, or the wait for, a
message or collective. The time of a message is known if its receiver waited for it; a curve through these times
estimates the others. Time within calls that did not wait counts as the rank's own work.
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
from dovetail.trace.analysis.collective_calls import CollectiveCalls, collective_calls
from dovetail.trace.analysis.delays import LEAST_HELD_S, Delays, crossed, delays_of
from dovetail.trace.analysis.matching import Messages, messages, of_name
from dovetail.trace.analysis.message_delays import delayed_by, is_rendezvous, message_delays
from dovetail.trace.analysis.polls import POLLS
from dovetail.trace.decode import KINDS
from dovetail.trace.trace import Trace

StepKind = Literal["send", "recv", "sent", "received", "join", "joined", "own", "end"]
SYNCHRONOUS, FROM_ROOT, TO_ROOT = "all", "from_root", "to_root"
_PROBES = ("MPI_Probe", "MPI_Iprobe", "MPI_Mprobe", "MPI_Improbe")


class Step(NamedTuple):
    """Own work of a rank, then one action in the call at row `row` of the trace.

    Attributes
    ----------
    seconds : float
        Own work before the action.
    kind : str
        "send", "recv": begin message `number`. "sent", "received": wait for its send, or its receive. "join": begin the
        rank's part of collective `number`; "joined": wait for it. "own", "end": no action.
    number : int
        Index of a message or collective; -1: none.
    row : int
        Row of the trace; -1: none.
    within_s : float
        Part of `seconds` within calls that precede the action's call.
    after_s : float
        Part of `within_s` within the call of the previous step.
    """

    seconds: float
    kind: StepKind
    number: int
    row: int
    within_s: float = 0.0
    after_s: float = 0.0


@dataclass(frozen=True)
class Message:
    """One message.

    Attributes
    ----------
    src, dst, num_bytes : int
        Source and destination rank, and bytes.
    key : int
        A number per communicator and tag. Messages of equal `src`, `dst` and `key` keep their order.
    delay_s : float or None
        Measured delay; None: use the fitted curve.
    rendezvous : bool
        The send is complete only after the receive was posted.
    stalls : bool
        For lack of progress, it moves only while its receiver waits for it.
    synchronous : bool
        The sender waits for the message whatever its size, as in MPI_Ssend, or until it has passed a slow link.
    came_back : bool
        The message arrived only when its sender had called MPI again.
    held : bool
        For lack of progress, it leaves only at its sender's next call.
    gap_s : float
        Time until the next message may leave.
    crossed : bool
        Another message travels in the opposite direction at the same time.
    sent_s : float
        When its send began in the trace.
    """

    src: int
    dst: int
    key: int
    num_bytes: int
    delay_s: float | None
    rendezvous: bool
    stalls: bool = False
    synchronous: bool = False
    came_back: bool = False
    held: bool = False
    gap_s: float = 0.0
    crossed: bool = False
    sent_s: float = 0.0


@dataclass(frozen=True)
class CollectiveCall:
    """One rank's call of a collective. The collective is complete `seconds` after the last rank's call.

    Attributes
    ----------
    collective : int
        Number of the collective, equal for the calls of all its ranks.
    name : str
        Name of the call, "MPI_Bcast".
    group : tuple of int
        The ranks.
    way : str
        SYNCHRONOUS: all wait for all. FROM_ROOT: the others wait for the root. TO_ROOT: the root waits for the others.
    root, num_bytes : int
        Root (-1: none), and bytes of the largest buffer.
    seconds : float
        From the last call that a rank waits for until the rank may continue.
    blocking : bool
        Whether the call waits for the collective.
    stalls : bool
        For lack of progress, it moves only when the last rank waits for it, although begun long before.
    own_s : float
        Part of `seconds` that the ranks' own CPUs spend on copies (all of it if all ranks share a host).
    """

    collective: int
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
class ReplayModel:
    """A traced program, simplified for the replay.

    `steps[r]`: steps of rank r. `delays`: curve of message times. `makespan_s`: traced seconds from the first step to
    the last. `names`: names of calls. `polled_s`: by row of a successful test, the seconds of the rank's own time since
    the first of the unsuccessful ones before it. `strict`: messages sent by MPI_Ssend or its kin.
    """

    steps: tuple[tuple[Step, ...], ...]
    messages: tuple[Message, ...]
    collectives: tuple[CollectiveCall, ...]
    delays: Delays
    makespan_s: float
    names: tuple[str, ...] = field(repr=False)
    polled_s: Mapping[int, float] = field(default_factory=dict, repr=False)
    strict: frozenset[int] = field(default=frozenset(), repr=False)

    def with_steps(self, steps: Any, **changes: Any) -> ReplayModel:
        """Return the model with other steps and, by `changes`, other messages or collectives."""
        return replace(self, steps=tuple(map(tuple, steps)), **changes)


class _Call(NamedTuple):
    """One MPI call, or several consecutive unsuccessful polls with `pause_s` seconds between them."""

    row: int
    name: int
    start_s: float
    end_s: float
    pause_s: float


def model_of(trace: Trace) -> ReplayModel:
    """Return the model of a trace, from the end of MPI_Init to the start of MPI_Finalize.

    Each rank is represented by the thread that makes most MPI calls. Messages with other threads, or without a
    partner, are left out.
    """
    return model_with(trace, messages(trace), collective_calls(trace))


def model_with(trace: Trace, found: Messages, joins: CollectiveCalls) -> ReplayModel:
    """Return the model of a trace whose messages and collective calls are known."""
    made = _ModelBuilder(trace, found, joins)
    steps = [made.steps(rank) for rank in range(trace.num_ranks)]
    return ReplayModel(
        tuple(steps),
        made.messages(),
        made.collectives(),
        made.delays,
        made.makespan_s,
        trace.names,
        made.polled_s(),
        made.strict,
    )


class _ModelBuilder:
    def __init__(self, trace: Trace, found: Messages, joins: CollectiveCalls) -> None:
        self.trace, self.joins = trace, joins
        self.synchronous = of_name([*trace.names, ""], lambda name: "ssend" in name.lower())[found.sent_name]
        self.strict = frozenset(np.flatnonzero(self.synchronous).tolist())
        combined = of_name([*trace.names, ""], lambda name: "sendrecv" in name.lower())[found.sent_name]
        plain = ~combined & ~self.synchronous
        first = np.arange(trace.num_rows) - trace.columns["part"]
        self.is_main = self._main_rows()
        both_main = [self.is_main[row] for row in (found.sent_row, found.posted_row, found.received_row)]
        self.whole = whole = np.flatnonzero((found.received_row >= 0) & np.all(both_main, axis=0))
        self.sends = _grouped(first[found.sent_row[whole]], whole)
        self.posts = _grouped(first[found.posted_row[whole]], whole)
        self.receives = _grouped(first[found.received_row[whole]], whole)
        self.blocks = (trace.columns["request"][found.sent_row] < 0).tolist()  # whether the sending call waits
        self.found, self.calls = found, self._calls()
        self.found = found = self._probed()
        self.ends = self._send_ends(first)
        delayed = delayed_by(found, self.receives, self.sends, self.ends, self.blocks)
        is_delayed = delayed[0] >= 0
        self.synchronous[delayed[0][is_delayed]] = True
        self.delays = delays_of(found, plain, is_delayed)
        ranks = range(trace.num_ranks)
        strangers = np.array([not all(r in ranks for r in (*c.ranks, *c.remote)) for c in trace.comms] + [False])
        members = np.array([0 if comm.remote else len(comm.ranks) for comm in trace.comms] + [0])
        counts = np.bincount(joins.collective)  # fewer than members: a rank ended before, or left no file
        is_partial = counts[joins.collective] < members[joins.comm]
        left_out = np.unique(joins.collective[~self.is_main[joins.row] | strangers[joins.comm] | is_partial])
        kept = np.flatnonzero(~np.isin(joins.collective, left_out))
        self.collective_at = {int(first[joins.row[i]]): i for i in kept.tolist()}
        self.joined = self._join_ends(first)
        rendezvous = is_rendezvous(found, self.delays, plain, self.synchronous)
        self.delayed = message_delays(found, self.delays, rendezvous, delayed, self._back_s())
        self.rendezvous, self.arrived_s = self.delayed.rendezvous.tolist(), self.delayed.arrived_s().tolist()
        starts = [calls[0].start_s for calls in self.calls if calls]
        self.start_s = min(starts, default=0.0)
        self.makespan_s = max((calls[-1].end_s for calls in self.calls if calls), default=0.0) - self.start_s

    def _send_ends(self, first: NDArray[Any]) -> dict[int, list[int]]:
        """Return, by row of a call, the messages whose send the call completes."""
        col = self.trace.columns
        done = np.flatnonzero((col["kind"] == KINDS.index("done")) & (col["peer"] == -1) & (col["request"] >= 0))
        done = done[np.argsort(col["end_s"][done], kind="stable")]
        over = _grouped(col["request"][done], done)
        ends_s = {request: col["end_s"][rows].tolist() for request, rows in over.items()}
        ends: dict[int, list[int]] = defaultdict(list)
        requests = col["request"][self.found.sent_row[self.whole]].tolist()
        for i, request in zip(self.whole.tolist(), requests, strict=True):
            at = bisect_left(ends_s.get(request, []), self.found.sent_s[i])
            if at < len(over.get(request, [])):
                ends[int(first[over[request][at]])].append(i)
        return ends

    def _join_ends(self, first: NDArray[Any]) -> dict[int, list[int]]:
        """Return, by row of a call, the collective calls (rows of `joins`) that the call completes."""
        col = self.trace.columns
        of_request = {int(self.joins.request[i]): i for i in self.collective_at.values() if self.joins.request[i] >= 0}
        ends: dict[int, list[int]] = defaultdict(list)
        for row in np.flatnonzero((col["kind"] == KINDS.index("done")) & (col["request"] >= 0)).tolist():
            i = of_request.get(int(col["request"][row]))
            if i is not None:
                ends[int(first[row])].append(i)
        return ends

    @cached_property
    def _is_call(self) -> NDArray[np.bool_]:
        """Return for each row whether it is an MPI call that returned."""
        col = self.trace.columns
        is_mpi = of_name(self.trace.names, lambda name: name.startswith("MPI_"))[col["name"]]
        found: NDArray[np.bool_] = is_mpi & (col["part"] == 0) & ~col["is_open"] & ~self.trace.of_kind("point")
        return found

    def _main_rows(self) -> NDArray[np.bool_]:
        """Return for each row whether it belongs to the thread of its rank that makes most MPI calls."""
        col, main = self.trace.columns, np.full(self.trace.num_ranks, -1)
        at = np.flatnonzero(self._is_call)
        both = np.stack([col["rank"][at], col["thread"][at]])
        (ranks, threads), count = np.unique(both, axis=1, return_counts=True)
        order = np.lexsort((-threads, count, ranks))  # the thread with most calls comes last, and so overwrites others
        main[ranks[order]] = threads[order]
        found: NDArray[np.bool_] = col["thread"] == main[col["rank"]]
        return found

    def _calls(self) -> list[list[_Call]]:
        """Return the MPI calls of each rank's main thread; MPI_Init and MPI_Finalize as empty intervals."""
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
        """Return the messages, with a probe directly before a receive merged into the receiving call.

        The receive then counts as posted, and waited for, from the probe's begin.
        """
        waited_s, posted_s = np.array(self.found.waited_s), np.array(self.found.posted_s)
        for rank, calls in enumerate(self.calls):
            merged: list[_Call] = []
            for call in calls:
                posted = self.posts.get(call.row, [])
                if merged and self.trace.names[merged[-1].name] in _PROBES:
                    posted = posted + self.posts.get(merged[-1].row, [])
                    if mine := [i for i in self.receives.get(call.row, ()) if i in posted]:
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
            waited, actions = self._waited(call), self._actions(call)
            for kind, number in actions:
                steps.append(Step(max(own, 0.0), kind, number, call.row, within, after))
                own = within = after = 0.0
            spent = self._after(call) if waited else call.end_s - call.start_s
            inside = spent if waited else max(spent - call.pause_s, 0.0)
            own, within, before = own + spent, within + inside, call.end_s
            after = spent if actions else after
        return (*steps, Step(max(own, 0.0), "end", -1, -1, within, after))

    def polled_s(self) -> dict[int, float]:
        """Return by row of a successful test the time since the first unsuccessful one of its kind before it."""
        found = {}
        for calls in self.calls:
            since_s, name = 0.0, -1
            for call in calls:
                if not self._actions(call) and self.trace.names[call.name] in POLLS:
                    since_s, name = (since_s, name) if call.name == name else (call.start_s, call.name)
                    continue
                if call.name == name:
                    found[call.row] = call.start_s - since_s
                name = -1
        return found

    def _actions(self, call: _Call) -> list[tuple[StepKind, int]]:
        """Return what a call begins, then what it waits for."""
        row = call.row
        actions: list[tuple[StepKind, int]] = [("send", i) for i in self.sends.get(row, ())]
        actions += [("recv", i) for i in self.posts.get(row, ())]
        if row in self.collective_at:
            actions.append(("join", self.collective_at[row]))
            if self.joins.request[self.collective_at[row]] < 0:
                actions.append(("joined", self.collective_at[row]))
        actions += [("joined", i) for i in self.joined.get(row, ())]
        actions += [("received", i) for i in self.receives.get(row, ())]
        blocked = [i for i in self.sends.get(row, ()) if self.rendezvous[i] and self.blocks[i]]
        return actions + [("sent", i) for i in (*blocked, *self.ends.get(row, ()))]

    def _back_s(self) -> NDArray[Any]:
        """Return for each message when its sender next called MPI; infinity if the sending call waited for the message.

        Also infinity if that next call neither begins nor completes anything, as a test: it shows no progress.
        """
        back_s = np.full(len(self.found.src), np.inf)
        active = {*self.sends, *self.posts, *self.collective_at, *self.joined, *self.receives, *self.ends}
        for call, after in (pair for calls in self.calls for pair in pairwise(calls)):
            if after.row in active:
                unblocked = [i for i in self.sends.get(call.row, ()) if not self.blocks[i]]
                back_s[unblocked] = after.start_s
        return back_s

    def _waited(self, call: _Call) -> bool:
        """Return whether a call waited for something; if so, its time is not the rank's own work."""
        if call.row in self.collective_at or call.row in self.joined:
            return True
        awaited = [i for i in self.sends.get(call.row, ()) if self.blocks[i]] + self.ends.get(call.row, [])
        awaited = [i for i in awaited if self.rendezvous[i]] + self.receives.get(call.row, [])
        return any(self.arrived_s[i] > call.start_s + 1e-9 for i in awaited)

    def _after(self, call: _Call) -> float:
        """Return the rank's own time within a call that waited: what follows the last event it waited for."""
        over = [call.start_s, *(self._over_s(i) for i in self.joined.get(call.row, ()))]
        i = self.collective_at.get(call.row)
        if i is not None and self.joins.request[i] < 0:
            over.append(self._over_s(i))
        over += [self.arrived_s[i] for i in self.receives.get(call.row, ())]
        blocked = [i for i in self.sends.get(call.row, ()) if self.blocks[i]]
        waits = [i for i in (*blocked, *self.ends.get(call.row, ())) if self.rendezvous[i]]
        over += [self.arrived_s[i] for i in waits]
        return max(call.end_s - max(over), 0.0)

    def _over_s(self, i: int) -> float:
        """Return when a rank could continue after its collective call `i`, by the collective's `way`."""
        number, way = int(self.joins.collective[i]), self._way(i)
        is_root = self.joins.root[i] == self.joins.rank[i]
        seconds = self._seconds[number]
        if number in self.quiet:
            return sum(self.quiet[number])
        if way == FROM_ROOT:
            begun = float(self.joins.start_s[i])
            return begun if is_root else max(float(self.joins.root_start_s[i]) + seconds, begun)
        if way == TO_ROOT:
            return float(self.joins.last_start_s[i] + seconds if is_root else self.joins.start_s[i])
        return float(self.joins.last_start_s[i] + seconds)

    @cached_property
    def quiet(self) -> dict[int, tuple[float, float]]:
        """Return the collectives that progressed only when all ranks waited, although begun long before.

        For each: when the last rank began to wait, and the seconds that the collective then took.
        """
        joins, col = self.joins, self.trace.columns
        looked: dict[int, list[float]] = defaultdict(list)
        ends: dict[int, list[float]] = defaultdict(list)
        for row, waited in self.joined.items():
            for number in joins.collective[waited].tolist():
                looked[number].append(float(col["start_s"][row]))
                ends[number].append(float(col["end_s"][row]))
        sizes, begun_s = np.bincount(joins.collective), np.zeros(int(joins.collective.max(initial=-1)) + 1)
        begun_s[joins.collective] = joins.last_start_s
        found = {}
        for number, those in looked.items():
            last_s, spent_s = max(those), min(ends[number]) - max(those)
            if len(those) == sizes[number] > 1 and LEAST_HELD_S < spent_s < last_s - begun_s[number]:
                found[number] = last_s, spent_s
        return found

    def _way(self, i: int) -> str:
        name = self.trace.names[self.joins.name[i]].removeprefix("MPI_").removesuffix("_c")
        if np.isnan(self.joins.root_start_s[i]):
            return SYNCHRONOUS
        traits = traits_of(kind_of_mpi(name))
        return FROM_ROOT if traits.from_root else TO_ROOT if traits.to_root else SYNCHRONOUS

    @cached_property
    def _seconds(self) -> NDArray[Any]:
        """Return for each collective its seconds: the shortest wait of any rank after the last call it depends on."""
        count, joins = int(self.joins.collective.max(initial=-1)) + 1, self.joins
        ways = np.array([self._way(i) for i in range(len(joins.collective))], "U9")
        is_root, looked, ends = joins.root == joins.rank, np.array(joins.start_s, "f8"), np.array(joins.end_s, "f8")
        for row, waited in self.joined.items():
            looked[waited], ends[waited] = self.trace.columns["start_s"][row], self.trace.columns["end_s"][row]
        since = np.where(ways == FROM_ROOT, np.fmax(joins.root_start_s, joins.start_s), joins.last_start_s)
        waits = np.select([ways == FROM_ROOT, ways == TO_ROOT], [~is_root, is_root], True)
        waits &= (joins.request < 0) | (ends - looked > LEAST_HELD_S)
        least, most = np.full(count, np.inf), np.full(count, np.inf)
        np.minimum.at(least, joins.collective[waits], np.maximum(ends - np.fmax(since, looked), 0.0)[waits])
        np.minimum.at(most, joins.collective, np.maximum(looked - since, 0.0))
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
            *(seen.came_back, seen.held, np.zeros(len(key)), crossed(f), f.sent_s),
        )
        return tuple(Message(*one) for one in zip(*(column.tolist() for column in columns), strict=True))

    def collectives(self) -> tuple[CollectiveCall, ...]:
        """Return one entry per call in `joins`; the entries of one collective are equal but for `blocking`."""
        comms, seconds = self.trace.comms, self._seconds
        hosts = {about["rank"]: about.get("host") for about in self.trace.meta.get("ranks", ())}
        most = np.zeros(len(seconds), "i8")
        np.maximum.at(most, self.joins.collective, np.maximum(self.joins.num_bytes, self.joins.received_bytes))
        found = []
        for i, number in enumerate(self.joins.collective.tolist()):
            group = comms[int(self.joins.comm[i])].ranks if self.joins.comm[i] >= 0 else ()
            name = self.trace.names[self.joins.name[i]]
            took_s = float(seconds[number])
            head = number, name, group, self._way(i), int(self.joins.root[i]), int(most[number]), took_s
            own_s = took_s if len({hosts.get(rank) for rank in group}) == 1 else 0.0
            found.append(CollectiveCall(*head, bool(self.joins.request[i] < 0), number in self.quiet, own_s))
        return tuple(found)


def _grouped(keys: NDArray[Any], values: NDArray[Any]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for key, value in zip(keys.tolist(), values.tolist(), strict=True):
        found[key].append(value)
    return found
