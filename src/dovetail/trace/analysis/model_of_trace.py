"""model_of_trace: build the replay's model of a trace: each rank's steps, and the work between and in its calls."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.trace.analysis.asleep import Asleep
from dovetail.trace.analysis.call_classes import COLLECTIVE, IO, ONE_SIDED, OTHER, PICKLING, class_of
from dovetail.trace.analysis.collective_calls import CollectiveCalls, collective_calls
from dovetail.trace.analysis.collective_times import CollectiveTimes
from dovetail.trace.analysis.core_waits import core_waits
from dovetail.trace.analysis.delays import crossed, delays_of
from dovetail.trace.analysis.locks import LOCK, Call, locked_s
from dovetail.trace.analysis.matching import Messages, messages, of_name
from dovetail.trace.analysis.message_delays import delayed_by, is_rendezvous, message_delays
from dovetail.trace.analysis.polls import LOOKS, PROBES
from dovetail.trace.analysis.replay_model import Message, Ready, ReplayModel, Step, StepKind
from dovetail.trace.analysis.served import served_s
from dovetail.trace.decode import KINDS
from dovetail.trace.trace import Trace

_PROBES = ("MPI_Probe", "MPI_Mprobe", *PROBES)
_CLOCK_S = 1e-6  # the recorder looks at the data of messages so long before it notes the begin of a call
_SPINS = 0.9  # a loop that only waits for a message ends by receiving it: at least this share of its polls


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
    steps = tuple(made.steps(rank) for rank in range(trace.num_ranks))
    polled_s, asleep = made.polled()
    return ReplayModel(
        steps,
        made.messages(),
        made.times.collectives(),
        made.delays,
        made.makespan_s,
        trace.names,
        polled_s=polled_s,
        asleep=asleep,
        strict=made.strict,
        calls=made.calls_alone(),
        counts=made.counts(),
        combined=made.combined,
        locked_s=made.locked_s(),
        checksums=made.checksums(),
        sent_checksums=made.sent_checksums(),
        ready=made.ready(),
        served_s=made.served_s(),
        named=made.named(),
        spent_s={call.row: call.end_s - call.start_s for calls in made.calls for call in calls},
        core_waits=core_waits(trace.meta, made.main, made.begins()),
    )


class _ModelBuilder:
    def __init__(self, trace: Trace, found: Messages, joins: CollectiveCalls) -> None:
        self.trace, self.joins = trace, joins
        self._known: dict[int, list[tuple[StepKind, int]]] = {}  # results of `_actions`, by row
        self.synchronous = of_name([*trace.names, ""], lambda name: "ssend" in name.lower())[found.sent_name]
        self.strict = frozenset(np.flatnonzero(self.synchronous).tolist())
        combined = of_name([*trace.names, ""], _is_combined)[found.sent_name]
        self.combined = frozenset(np.flatnonzero(combined).tolist())
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
        alone = (COLLECTIVE, IO, ONE_SIDED, OTHER, PICKLING)  # collectives: those that no other rank's call belongs to
        self.is_io = [class_of(name) == IO for name in trace.names]
        self.is_alone = [name in PROBES or class_of(name) in alone for name in trace.names]
        self.found = found = self._probed()
        self.ends = self._send_ends(first)
        delayed = delayed_by(found, self.receives, self.sends, self.ends, self.blocks)
        is_delayed = delayed[0] >= 0
        self.synchronous[delayed[0][is_delayed]] = True
        hosts = {about["rank"]: str(about.get("host", "")) for about in trace.meta.get("ranks", ())}
        self.delays = delays_of(
            found, plain, is_delayed | delayed.is_beside, [hosts.get(rank, "") for rank in range(trace.num_ranks)]
        )
        ranks = range(trace.num_ranks)
        strangers = np.array([not all(r in ranks for r in (*c.ranks, *c.remote)) for c in trace.comms] + [False])
        members = np.array([0 if comm.remote else len(comm.ranks) for comm in trace.comms] + [0])
        counts = np.bincount(joins.collective)  # fewer than members: a rank ended before, or left no file
        is_partial = counts[joins.collective] < members[joins.comm]
        left_out = np.unique(joins.collective[~self.is_main[joins.row] | strangers[joins.comm] | is_partial])
        kept = np.flatnonzero(~np.isin(joins.collective, left_out))
        self.collective_at = {int(first[joins.row[i]]): i for i in kept.tolist()}
        self.joined = self._join_ends(first)
        self.times = CollectiveTimes(trace, joins, self.joined)
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
        """Return for each row whether it is an MPI call, I/O or pickling, that returned."""
        col = self.trace.columns
        named = of_name(self.trace.names, lambda name: name.startswith("MPI_") or class_of(name) in (IO, PICKLING))
        is_mpi = named[col["name"]]
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
        self.main = main.tolist()
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
            if calls[rank] and call.end_s < calls[rank][-1].end_s:
                continue  # I/O within a call of MPI
            calls[rank].append(call._replace(end_s=call.start_s) if names[call.name] == bounds[2] else call)
        return calls

    def _probed(self) -> Messages:
        """Return the messages, with a probe directly before a receive merged into the receiving call.

        The receive then counts as posted, and waited for, from the probe's begin.
        """
        waited_s, posted_s = np.array(self.found.waited_s), np.array(self.found.posted_s)
        for rank, calls in enumerate(self.calls):
            merged: list[_Call] = []
            beside = self._looked_beside(calls)
            for call in calls:
                posted = self.posts.get(call.row, [])
                if merged and self.trace.names[merged[-1].name] in _PROBES and merged[-1].row not in beside:
                    posted = posted + self.posts.get(merged[-1].row, [])
                    if mine := [i for i in self.receives.get(call.row, ()) if i in posted]:
                        call = call._replace(start_s=merged.pop().start_s)
                        waited_s[mine] = posted_s[mine] = call.start_s
                        self.posts[call.row] = posted
                merged.append(call)
            self.calls[rank] = merged
        return self.found._replace(waited_s=waited_s, posted_s=posted_s)

    def _looked_beside(self, calls: list[_Call]) -> set[int]:
        """Return the rows of probes that are called during work, not until a message is there."""
        at: dict[tuple[int, int], list[int]] = defaultdict(list)
        taken = set()
        for call, after in pairwise(calls):
            if self.trace.names[call.name] in PROBES:
                at[call.name, int(self.trace.columns["arg"][call.row])].append(call.row)
                if after.row in self.receives:
                    taken.add(call.row)
        loose = (rows for rows in at.values() if sum(row in taken for row in rows) < _SPINS * len(rows))
        return {row for rows in loose for row in rows}

    def calls_alone(self) -> dict[int, tuple[str, int]]:
        """Return by row the name and bytes of each call that neither moves data between ranks nor waits for one."""
        num_bytes, names = self.trace.columns["num_bytes"], self.trace.names
        alone = (call for calls in self.calls for call in calls if self.is_alone[call.name] and not self._actions(call))
        return {call.row: (names[call.name], int(num_bytes[call.row])) for call in alone}

    def counts(self) -> dict[int, int]:
        """Return `counts` of the model."""
        repeats = self.trace.columns["repeats"]
        rows = np.array([it.row for calls in self.calls for it in calls if self.is_alone[it.name]], "i8")
        rows = rows[repeats[rows] > 0]
        return dict(zip(rows.tolist(), (1 + repeats[rows]).tolist(), strict=True))

    def checksums(self) -> dict[int, int]:
        """Return `checksums` of the model."""
        col = self.trace.columns
        at = np.flatnonzero((col["kind"] == KINDS.index("collective")) & (col["tag"] != 0))
        return dict(zip((at - col["part"][at]).tolist(), col["tag"][at].tolist(), strict=True))

    def sent_checksums(self) -> dict[int, int]:
        """Return `sent_checksums` of the model."""
        sums = self.trace.columns["received_bytes"][self.found.sent_row]
        at = np.flatnonzero(sums)
        return dict(zip(at.tolist(), sums[at].tolist(), strict=True))

    def ready(self) -> dict[int, Ready]:
        """Return `ready` of the model."""
        ready_s, found = self.trace.columns["ready_s"][self.found.sent_row], {}
        starts_s = [[call.start_s for call in calls] for calls in self.calls]
        for i in np.flatnonzero(ready_s[self.whole] > 0).tolist():
            n = int(self.whole[i])
            calls = self.calls[rank] if (rank := int(self.found.src[n])) < len(self.calls) else []
            since_s = float(self.found.sent_s[n] - ready_s[n])
            at = bisect_left(starts_s[rank], since_s - _CLOCK_S)
            if 0 < at < len(calls):
                found[n] = Ready(calls[at].row, max(calls[at].start_s - max(since_s, calls[at - 1].end_s), 0.0))
        return found

    def named(self) -> frozenset[int]:
        """Return `named` of the model: none if ranks also look for messages without waiting."""
        if not {*PROBES}.isdisjoint(self.trace.names):
            return frozenset()
        col, posted = self.trace.columns, self.found.posted_row
        asked = np.where(posted >= 0, posted - col["part"][posted], 0)  # a call names the source first, then what came
        is_named = (posted >= 0) & (col["kind"][asked] == KINDS.index("recv")) & (col["peer"][asked] >= 0)
        is_named &= (self.found.probe_row < 0) | (col["peer"][self.found.probe_row] >= 0)
        return frozenset(np.flatnonzero(is_named).tolist())

    def begins(self) -> list[tuple[list[float], list[int]]]:
        """Return for each rank when its calls begin, and their rows."""
        return [([it.start_s for it in calls], [it.row for it in calls]) for calls in self.calls]

    def served_s(self) -> dict[int, float]:
        """Return `served_s` of the model."""
        if not any(class_of(name) == ONE_SIDED for name in self.trace.names):
            return {}
        return served_s(self.trace, [[Call(it.row, it.start_s, it.end_s) for it in calls] for calls in self.calls])

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
            if self.is_alone[call.name] and not actions:
                steps.append(Step(max(own, 0.0), "own", -1, call.row, within, after))
                own = within = after = 0.0
        return (*steps, Step(max(own, 0.0), "end", -1, -1, within, after))

    def polled(self) -> tuple[dict[int, float], dict[int, float]]:
        """Return `polled_s` and `asleep` of the model."""
        loads = {about["rank"]: about.get("load", {}) for about in self.trace.meta.get("ranks", ())}
        polled_s, asleep = dict[int, float](), dict[int, float]()
        for rank, calls in enumerate(self.calls):
            waits = [(since_s, call) for since_s, call in self._polls(calls)]
            polled_s |= {call.row: call.start_s - since_s for since_s, call in waits}
            if waits:
                io = [(it.start_s, it.end_s) for it in calls if self.is_io[it.name]]
                times = np.array([(since_s, call.start_s) for since_s, call in waits]).T
                shares = Asleep(loads.get(rank, {})).shares(*times, *np.array(io).reshape(-1, 2).T)
                asleep |= {w[1].row: s for w, s in zip(waits, shares.tolist(), strict=True) if s == s}
        return polled_s, asleep

    def _polls(self, calls: list[_Call]) -> Iterator[tuple[float, _Call]]:
        """Yield when a rank first polled without success, and the call that ended this: a test, or a receive."""
        since_s, looked = 0.0, list[_Call]()
        for call in calls:
            name = self.trace.names[call.name]
            if not self._actions(call) and name in LOOKS:
                alike = bool(looked) and (looked[-1].name == call.name or {name, self._name(looked[-1])} <= {*PROBES})
                since_s, looked = (since_s if alike else call.start_s), [call]
                continue
            if looked:
                ends = call.row in self.posts if self._name(looked[0]) in PROBES else looked[0].name == call.name
                if ends:
                    yield since_s, call
            looked = []

    def _name(self, call: _Call) -> str:
        return self.trace.names[call.name]

    def locked_s(self) -> dict[int, float]:
        """Return `locked_s` of the model."""
        if LOCK not in self.trace.names:
            return {}
        return locked_s(self.trace, [[Call(it.row, it.start_s, it.end_s) for it in calls] for calls in self.calls])

    def _actions(self, call: _Call) -> list[tuple[StepKind, int]]:
        """Return what a call begins, then what it waits for."""
        if call.row not in self._known:
            self._known[call.row] = self._actions_at(call.row)
        return self._known[call.row]

    def _actions_at(self, row: int) -> list[tuple[StepKind, int]]:
        sends, ends = self.sends.get(row, ()), self.ends.get(row, ())
        actions: list[tuple[StepKind, int]] = [("send", i) for i in sends]
        actions += [("recv", i) for i in self.posts.get(row, ())]
        if row in self.collective_at:
            actions.append(("join", self.collective_at[row]))
            if self.joins.request[self.collective_at[row]] < 0:
                actions.append(("joined", self.collective_at[row]))
        actions += [("joined", i) for i in self.joined.get(row, ())]
        actions += [("received", i) for i in self.receives.get(row, ())]
        if sends or ends:
            blocked = [i for i in sends if self.rendezvous[i] and self.blocks[i]]
            actions += [("sent", i) for i in (*blocked, *ends)]
        return actions

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
        over = [call.start_s, *(self.times.over_s[i] for i in self.joined.get(call.row, ()))]
        i = self.collective_at.get(call.row)
        if i is not None and self.joins.request[i] < 0:
            over.append(self.times.over_s[i])
        over += [self.arrived_s[i] for i in self.receives.get(call.row, ())]
        blocked = [i for i in self.sends.get(call.row, ()) if self.blocks[i]]
        waits = [i for i in (*blocked, *self.ends.get(call.row, ())) if self.rendezvous[i]]
        over += [self.arrived_s[i] for i in waits]
        return max(call.end_s - max(over), 0.0)

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


def _is_combined(name: str) -> bool:
    """Return whether a call sends and receives, so that its time does not show whether its sends wait."""
    return "sendrecv" in name.lower() or "neighbor" in name.lower()


def _grouped(keys: NDArray[Any], values: NDArray[Any]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for key, value in zip(keys.tolist(), values.tolist(), strict=True):
        found[key].append(value)
    return found
