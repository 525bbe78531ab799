"""reference: the simulator in Python: discrete events on a simulated clock. The C++ version equals it bit for bit."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf, nan
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.sim.tables import State, Tables, Task


class Result(NamedTuple):
    """For each op: when it could start and when it ended (NaN: never), and its final state."""

    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    state: NDArray[np.uint8]


def run(tables: Tables) -> Result:
    """Advance the clock until no event is left. Ops whose state is not `ended` are stuck."""
    sim = _Simulation(tables)
    sim.run()
    return Result(np.array(sim.start, np.float64), np.array(sim.end, np.float64), np.array(sim.state, np.uint8))


@dataclass
class _Channel:
    """The FIFO of a channel: sends wait for a free place; messages are in flight until a posted receive takes one."""

    posted: deque[int] = field(default_factory=deque)  # receives without a message so far
    senders: deque[int] = field(default_factory=deque)  # sends without a place so far
    flying: deque[int] = field(default_factory=deque)  # sends whose message no receive has taken so far
    num_posted: int = 0
    num_sent: int = 0
    num_held: int = 0  # occupied places
    signals: deque[int] = field(default_factory=deque)
    waiters: deque[int] = field(default_factory=deque)


class _Simulation:
    """A run. Order at an instant: immediate events, first in, first out; contention; then events by (time, op)."""

    def __init__(self, tables: Tables) -> None:
        n, prices = len(tables.task), tables.prices
        self.tables, self.now = tables, 0.0
        self.task, self.rank = tables.task.tolist(), tables.rank.tolist()
        self.chan_in, self.chan_out = tables.chan_in.tolist(), tables.chan_out.tolist()
        self.work_s, self.wire_s, self.latency_s = (
            column.tolist() for column in (prices.work_s, prices.wire_s, prices.latency_s)
        )
        self.on_compute = tables.computes[tables.lane].tolist() if n else []
        starts, route = prices.route_start.tolist(), prices.route.tolist()
        near = [a + count for a, count in zip(starts, prices.uplinks.tolist(), strict=False)]
        self.uplinks = [route[a:b] for a, b in zip(starts, near, strict=False)]
        self.downlinks = [route[a:b] for a, b in zip(near, starts[1:], strict=True)]
        self.start, self.end, self.state = [nan] * n, [nan] * n, [int(State.queued)] * n
        self.due = [inf] * n  # time of each op's only valid event
        self.arrival: dict[int, float] = {}  # op -> arrival time of its message or signal, once it has left the wire
        self.blocked = [0] * n  # number of links in whose queue another message is first
        self.far = [nan] * n  # when its message had all links beyond the switch that stores messages
        self.channels = [_Channel() for _ in self.uplinks]
        self.link_queue: list[deque[int]] = [deque() for _ in range(tables.num_links)]
        self.meetings: dict[tuple[int, int], list[int]] = {}  # (collective, k) -> calls so far
        self.num_calls: dict[tuple[int, int], int] = {}  # (collective, rank) -> calls so far
        self.met: dict[int, list[int]] = {}  # last member to call -> all members
        self.heap: list[tuple[float, int]] = []
        self.instants: deque[int] = deque()
        self.contention = _Contention(self)
        self._link_up()

    def _link_up(self) -> None:
        """Fill `followers` of each op: the next op of its queue, then the ops that depend on it, by row."""
        tables, n = self.tables, len(self.task)
        self.followers: list[list[int]] = [[] for _ in range(n)]
        self.missing = [0] * n
        last: dict[tuple[int, int], int] = {}
        for op, queue in enumerate(zip(self.rank, tables.lane.tolist(), strict=True)):
            if queue in last:
                self.followers[last[queue]].append(op)
                self.missing[op] += 1
            last[queue] = op
        start, dep = tables.dep_start.tolist(), tables.dep.tolist()
        for op in range(n):
            for before in dep[start[op] : start[op + 1]]:
                self.followers[before].append(op)
                self.missing[op] += 1

    def run(self) -> None:
        for op in [op for op, missing in enumerate(self.missing) if not missing]:
            self._begin(op)
        while True:
            if self.instants:
                self._advance(self.instants.popleft())
            elif self.contention.changed and (not self.heap or self.heap[0][0] > self.now):
                self.contention.settle()
            elif self.heap:
                time, op = heappop(self.heap)
                if self.due[op] == time:
                    self.now, self.due[op] = time, inf
                    self._advance(op)
            else:
                return

    def at(self, op: int, time: float) -> None:
        """Schedule the only event of `op` for `time`."""
        self.due[op] = time
        heappush(self.heap, (time, op))

    def _at_once_or_at(self, op: int, time: float) -> None:
        if time > self.now:
            self.at(op, time)
        else:
            self.instants.append(op)

    def _begin(self, op: int) -> None:
        """Begin an op: all that it waits for within its rank has ended."""
        self.start[op], task = self.now, self.task[op]
        if task in (Task.recv, Task.recv_send):
            self.state[op] = State.partner
            channel = self.channels[self.chan_in[op]]
            channel.posted.append(op)
            channel.num_posted += 1
            self._give_places(channel)  # a rendezvous send may have waited for this receive
            self._match(channel)
        elif task == Task.send:
            self._ask_place(op)
        elif task == Task.put:
            self._ask_links(op)
        elif task == Task.signal:
            self._signal(op)
        elif task == Task.wait:
            self.state[op] = State.partner
            self.channels[self.chan_in[op]].waiters.append(op)
            self._match_signals(self.channels[self.chan_in[op]])
        elif task == Task.collective:
            self._meet(op)
        else:
            self._work(op)

    def _advance(self, op: int) -> None:
        """End the current phase of an op, and begin the next."""
        state, task = self.state[op], self.task[op]
        if state == State.taking:
            if task != Task.wait:
                channel = self.channels[self.chan_in[op]]
                channel.num_held -= 1
                self._give_places(channel)
            self._work(op)
        elif state == State.working:
            self.contention.stop(op)
            if task == Task.recv_send:
                self._ask_place(op)
            else:
                self._end(op)
        elif state == State.wire:
            self._leave_wire(op)
        elif state == State.stored:
            self._leave_switch(op)
        elif state == State.meeting:
            self.contention.stop(op)
            for member in self.met.pop(op):
                self._end(member)
        else:
            self._end(op)

    def _end(self, op: int, state: State = State.ended) -> None:
        self.state[op], self.end[op] = state, self.now
        for follower in self.followers[op]:
            self.missing[follower] -= 1
            if not self.missing[follower]:
                self._begin(follower)

    def _work(self, op: int) -> None:
        self.state[op], prices = State.working, self.tables.prices
        slow = prices.slow_by_net[op] if self.on_compute[op] else prices.slow_by_compute[op]
        self.contention.start(op, self.work_s[op], float(slow), [self.rank[op]], self.on_compute[op])

    def _ask_place(self, op: int) -> None:
        self.state[op] = State.place
        channel = self.channels[self.chan_out[op]]
        channel.senders.append(op)
        self._give_places(channel)

    def _give_places(self, channel: _Channel) -> None:
        """Start waiting sends, oldest first, while there are free places (and, for rendezvous, posted receives)."""
        while channel.senders:
            op = channel.senders[0]
            depth = int(self.tables.depth[self.chan_out[op]])
            unposted = bool(self.tables.prices.rendezvous[op]) and channel.num_posted <= channel.num_sent
            if channel.num_held >= depth or unposted:
                return
            channel.senders.popleft()
            channel.flying.append(op)
            channel.num_held += 1
            channel.num_sent += 1
            self._ask_links(op)

    def _ask_links(self, op: int) -> None:
        """Join the queue of every link of the route; a message that is first in all of them occupies the wire.

        Where a switch stores messages, this holds of the links as far as the switch.
        """
        self.state[op] = State.links
        self._join(op, self.uplinks[self.chan_out[op]])
        if not self.blocked[op]:
            self._enter_wire(op)

    def _join(self, op: int, links: list[int]) -> None:
        for link in links:
            self.blocked[op] += bool(self.link_queue[link])
            self.link_queue[link].append(op)

    def _enter_wire(self, op: int) -> None:
        self.state[op] = State.wire
        channel = self.chan_out[op]
        self._join(op, self.downlinks[channel])  # as its first bytes reach the switch
        if not self.blocked[op]:
            self.far[op] = self.now
        ends = {int(self.tables.chan_src[channel]), int(self.tables.chan_dst[channel])}
        slow = float(self.tables.prices.slow_by_compute[op])
        self.contention.start(op, self.wire_s[op], slow, list(ends), False)

    def _leave(self, links: list[int]) -> None:
        for link in links:
            queue = self.link_queue[link]
            queue.popleft()
            if queue:
                self.blocked[queue[0]] -= 1
                if not self.blocked[queue[0]]:
                    self._links_free(queue[0])

    def _links_free(self, op: int) -> None:
        """Go on with a message that has all links it waited for."""
        if self.state[op] == State.links:
            self._enter_wire(op)
            return
        self.far[op] = self.now
        if self.state[op] == State.stored:
            self.at(op, self.now + self.wire_s[op])

    def _leave_wire(self, op: int) -> None:
        """Leave the links as far as the switch; a send then ends, even if the message waits in the switch."""
        self.contention.stop(op)
        channel = self.chan_out[op]
        self._leave(self.uplinks[channel])
        left_s = self.far[op] + self.wire_s[op]  # NaN if it waits for a link beyond the switch
        if left_s <= self.now or not self.downlinks[channel]:
            self._leave_switch(op)
            return
        if self.task[op] == Task.put:
            self.state[op] = State.stored
        else:
            self._end(op, State.stored)
        if not self.blocked[op]:
            self.at(op, left_s)

    def _leave_switch(self, op: int) -> None:
        self._leave(self.downlinks[self.chan_out[op]])
        arrival = self.now + self.latency_s[op]
        if self.task[op] == Task.put:
            self.state[op] = State.flight
            self._at_once_or_at(op, arrival)
            return
        has_ended, self.arrival[op] = self.state[op] == State.stored, arrival
        if has_ended:
            self.state[op] = State.ended
        self._match(self.channels[self.chan_out[op]])
        if not has_ended:
            self._end(op)

    def _match(self, channel: _Channel) -> None:
        """Give each posted receive its message, in order, once the message has left the wire."""
        while channel.posted and channel.flying and channel.flying[0] in self.arrival:
            op = channel.posted.popleft()
            self.state[op] = State.taking
            self._at_once_or_at(op, self.arrival.pop(channel.flying.popleft()))

    def _signal(self, op: int) -> None:
        channel = self.channels[self.chan_out[op]]
        self.arrival[op] = self.now + self.latency_s[op]
        channel.signals.append(op)
        self._match_signals(channel)
        self.state[op] = State.flight
        self.instants.append(op)

    def _match_signals(self, channel: _Channel) -> None:
        while channel.waiters and channel.signals:
            op = channel.waiters.popleft()
            self.state[op] = State.taking
            self._at_once_or_at(op, self.arrival.pop(channel.signals.popleft()))

    def _meet(self, op: int) -> None:
        """Join the k-th call of the collective, k counting this rank's calls; the last member to join starts it."""
        self.state[op], call, tables = State.partner, int(self.tables.call[op]), self.tables
        k = self.num_calls.get((call, self.rank[op]), 0)
        self.num_calls[call, self.rank[op]] = k + 1
        members = self.meetings.setdefault((call, k), [])
        members.append(op)
        if len(members) < tables.group_start[call + 1] - tables.group_start[call]:
            return
        self.met[op] = self.meetings.pop((call, k))
        for member in members:
            self.state[member] = State.meeting
        seconds = max(self.work_s[member] for member in members)
        slow = max(float(tables.prices.slow_by_compute[member]) for member in members)
        self.contention.start(op, seconds, slow, [self.rank[member] for member in members], False)


@dataclass
class _Activity:
    """Work going on: what slows it, by how much, and how much of it is left."""

    ranks: list[int]
    computing: bool
    slow: float
    remaining_s: float  # at full speed, as of `since_s`
    since_s: float = nan  # NaN until first settled
    factor: float = 1.0


class _Contention:
    """A fluid model of contention: which ranks compute and communicate, and how much each slows the other.

    Work that nothing can slow (factor 1) gets its end time at once. Other work gets its rate at the end of the instant,
    and again whenever one of its ranks starts or stops what slows it.
    """

    def __init__(self, sim: _Simulation) -> None:
        ranks = sim.tables.num_ranks
        self.sim, self.changed = sim, False
        self.active: dict[int, _Activity] = {}
        self.count = {computing: [0] * ranks for computing in (True, False)}
        self.going_on = {computing: [False] * ranks for computing in (True, False)}  # at the last `settle`
        self.touched: set[int] = set()  # ranks whose counts changed
        self.fresh: set[int] = set()
        self.watchers: dict[bool, list[set[int]]] = {c: [set() for _ in range(ranks)] for c in (True, False)}

    def start(self, op: int, seconds: float, slow: float, ranks: list[int], computing: bool) -> None:
        """Start work: `op` computes (or communicates) on `ranks`, for `seconds` without contention."""
        sim = self.sim
        if seconds <= 0:
            sim.instants.append(op)
            return
        self.active[op] = _Activity(ranks, computing, slow, seconds)
        self._count(ranks, computing, 1)
        if slow == 1.0:
            sim.at(op, sim.now + seconds)
            return
        for rank in ranks:
            self.watchers[computing][rank].add(op)
        self.fresh.add(op)
        self.changed = True

    def stop(self, op: int) -> None:
        activity = self.active.pop(op, None)
        if activity:
            self._count(activity.ranks, activity.computing, -1)
            for rank in activity.ranks:
                self.watchers[activity.computing][rank].discard(op)

    def settle(self) -> None:
        """End an instant: set the rate of new work, and of work that is slowed or no longer slowed from now on."""
        affected = self.fresh
        for rank in self.touched:
            for computing in (True, False):
                on = self.count[computing][rank] > 0
                if on != self.going_on[computing][rank]:
                    self.going_on[computing][rank] = on
                    affected = affected | self.watchers[not computing][rank]
        self.fresh, self.touched, self.changed = set(), set(), False
        for op in affected:
            self._rate(op)

    def _count(self, ranks: list[int], computing: bool, by: int) -> None:
        for rank in ranks:
            self.count[computing][rank] += by
        self.touched.update(ranks)
        self.changed = True

    def _rate(self, op: int) -> None:
        activity, now = self.active[op], self.sim.now
        others = self.going_on[not activity.computing]
        factor = activity.slow if any(others[rank] for rank in activity.ranks) else 1.0
        if activity.since_s == activity.since_s:  # it has a rate
            if factor == activity.factor:
                return
            activity.remaining_s = max(0.0, activity.remaining_s - (now - activity.since_s) / activity.factor)
        activity.since_s, activity.factor = now, factor
        self.sim.at(op, now + activity.remaining_s * factor)
