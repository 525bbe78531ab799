"""order: order the ops of every lane by simulating all lanes, one op per lane and tick."""

from __future__ import annotations

from array import array
from collections import deque
from heapq import heappop, heappush

import numpy as np

from dovetail.ir import Program
from dovetail.passes.columns import Array, edges, ints, starts
from dovetail.passes.transfers import levels, messages

_MOST_TRIES = 6


def in_order(program: Program, lane: Array, channel: Array, forward: Array, depth: int) -> tuple[Array, Array] | None:
    """Return rows of a trace in an order in which all can run, and for each whether it is fused with the next.

    `lane`: of each op, a number unique over ranks. `channel`: of each message, in the order of `messages`. `forward`:
    as `find_flows` returns it. In each tick every lane runs one op that can run: the one with the fewest ops before it,
    then the most after it, then the first row. No channel ever holds more than `depth` messages, so the lanes complete
    with channels of that depth. Flows that block all others are cut.

    If messages would have to overtake each other, their channels keep the order of the trace, without flows that
    continue there. If each receive of that order directly follows its send, an order exists; otherwise the result may
    be None.
    """
    in_turn = np.zeros(int(channel.max(initial=-1)) + 1, bool)
    goes_to = np.full(program.num_ops + 1, -1)  # the channel on which each op sends
    goes_to[messages(program).send] = channel
    for tries in range(_MOST_TRIES + 1):
        kept = np.where((forward >= 0) & ~np.append(in_turn, False)[goes_to[forward]], forward, -1)
        clock = _Clock(program, lane, channel, kept, depth, in_turn)
        if clock.run():
            rows = np.array(clock.rows, np.int64)
            return rows, np.array(clock.forward, np.int64)[rows] >= 0
        in_turn |= clock.crowded() if tries < _MOST_TRIES - 1 else True
    return None


class _Clock:
    """The state of the simulation. A receive whose message is forwarded represents its send, too.

    A plain send leaves one place free in a channel whose messages are forwarded, so that rings of forwarding ops never
    fill up. `_relax` uses this place when nothing else can run.
    """

    def __init__(self, program: Program, lane: Array, channel: Array, forward: Array, depth: int, in_turn: Array):
        n = program.num_ops
        send, receive = messages(program)
        goes_on = np.zeros(int(channel.max(initial=-1)) + 1, bool)
        goes_on[channel[forward[receive] >= 0]] = True
        room = depth - (goes_on[channel] & (depth > 1))
        into, out, taker, places = (np.full(n, -1) for _ in range(4))
        into[receive], out[send], taker[send], places[send] = channel, channel, receive, room
        fused = np.flatnonzero(forward >= 0)
        out[fused], taker[fused], places[fused] = out[forward[fused]], taker[forward[fused]], depth
        self._into, self._out, self._taker, self._places = map(ints, (into, out, taker, places))
        self.forward = ints(forward)
        self._depth, self._cut = depth, dict[int, int]()
        self._queues: list[deque[int]] = [deque() for _ in goes_on]
        self._parked: dict[int, tuple[list[int], list[int]]] = {}  # channel -> forwarding ops, then plain sends
        self._wait(program, forward, send[in_turn[channel]], channel[in_turn[channel]])
        self._rank(program)
        self.rows = array("i")
        self._lane = ints(lane)
        self._heaps: list[list[int]] = [[] for _ in range(int(lane.max(initial=-1)) + 1)]
        self._ready: list[int] = []
        for row, need in enumerate(self._need):
            if need == 0:
                self._offer(row)

    def _wait(self, program: Program, forward: Array, send: Array, channel: Array) -> None:
        """Store how many ops each op waits for, and which ops wait for it. Sends of one channel keep their order."""
        order = np.argsort(channel, kind="stable")
        follows = channel[order][1:] == channel[order][:-1]
        waiting, awaited = edges(program)
        waiting = np.concatenate([waiting, send[order[1:]][follows]])
        awaited = np.concatenate([awaited, send[order[:-1]][follows]])
        apart = forward[awaited] != waiting
        waiting, awaited = waiting[apart], awaited[apart]
        need = np.bincount(waiting, minlength=program.num_ops) + (np.array(self._into) >= 0)
        need[forward[forward >= 0]] = -1  # never run separately
        order = np.argsort(awaited, kind="stable")
        self._need = ints(need)
        self._next = ints(waiting[order])
        self._start = ints(starts(awaited, program.num_ops))

    def _rank(self, program: Program) -> None:
        depth, height = levels(program)
        by_rank = np.lexsort((-height, depth))
        rank = np.empty(len(by_rank), np.int64)
        rank[by_rank] = np.arange(len(by_rank))
        self._by_rank = ints(by_rank)
        self._urgency = ints(rank)

    def run(self) -> bool:
        """Run ops until none can run, append them to `rows`, and return whether all ran."""
        while len(self.rows) < len(self._need):
            if not self._ready and not self._relax():
                return False
            self._tick()
        return True

    def crowded(self) -> Array:
        """Return for each channel whether it holds messages that no op has received."""
        return np.array([len(queue) > 0 for queue in self._queues], bool)

    def _tick(self) -> None:
        """Run one op on every lane that can. Ops that this enables may run in the next tick."""
        lanes, self._ready, fresh = self._ready, [], list[int]()
        for lane in lanes:
            heap = self._heaps[lane]
            while heap:
                row = self._by_rank[heappop(heap)]
                out = self._out[row]
                if out < 0 or len(self._queues[out]) < self._places[row]:
                    self._run(row, fresh)
                    break
                heappush(self._parked.setdefault(out, ([], []))[self.forward[row] < 0], self._urgency[row])
            if heap:
                self._ready.append(lane)
        for row in fresh:
            self._offer(row)

    def _relax(self) -> bool:
        """Let the most urgent waiting send take the last place; if there is none, cut the most urgent waiting flow."""
        sends = [plain[0] for out, (_, plain) in self._parked.items() if plain and self._has_room(out)]
        flows = [fused[0] for fused, _ in self._parked.values() if fused]
        if not sends and not flows:
            return False
        row = self._by_rank[min(sends or flows)]
        heappop(self._parked[self._out[row]][bool(sends)])
        if sends:
            self._places[row] = self._depth
        else:
            self._cut[row], self.forward[row], self._out[row] = self.forward[row], -1, -1
        self._offer(row)
        return True

    def _has_room(self, out: int) -> bool:
        return len(self._queues[out]) < self._depth

    def _offer(self, row: int) -> None:
        lane = self._lane[row]
        heap = self._heaps[lane]
        if not heap:
            self._ready.append(lane)
        heappush(heap, self._urgency[row])

    def _run(self, row: int, fresh: list[int]) -> None:
        into, out, need = self._into[row], self._out[row], self._need
        if into >= 0:
            queue = self._queues[into]
            queue.popleft()
            if queue:
                self._less(queue[0], fresh)
            if into in self._parked:
                self._wake(into, fresh)
        if out >= 0:
            queue, taker = self._queues[out], self._taker[row]
            queue.append(taker)
            if len(queue) == 1:
                self._less(taker, fresh)
        then = self.forward[row]
        for done in (row,) if then < 0 else (row, then):
            self.rows.append(done)
            for waiting in self._next[self._start[done] : self._start[done + 1]]:
                need[waiting] -= 1
                if need[waiting] == 0:
                    fresh.append(waiting)
        if row in self._cut:
            fresh.append(self._cut[row])

    def _less(self, row: int, fresh: list[int]) -> None:
        self._need[row] -= 1
        if self._need[row] == 0:
            fresh.append(row)

    def _wake(self, channel: int, fresh: list[int]) -> None:
        """Retry, after a place in a channel has become free, the most urgent op of each kind that fits."""
        held = len(self._queues[channel])
        for heap in self._parked[channel]:
            if heap and held < self._places[self._by_rank[heap[0]]]:
                fresh.append(self._by_rank[heappop(heap)])
