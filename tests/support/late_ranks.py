"""Programs of ranks with a clock each, as traces: work, messages and sums of all ranks."""

from __future__ import annotations

from trace_calls import call, collective, sent, taken, trace_of
from trace_files import write_process

from dovetail.trace import Trace


class Program:
    """Ranks with a clock each, in ms; the calls take 0.01 ms but for their waits."""

    def __init__(self, num_ranks: int) -> None:
        self.clock = [1.0] * num_ranks
        self.events: list[list[tuple[int, int]]] = [[] for _ in self.clock]
        self.all_reduce()

    def work(self, rank: int, ms: float) -> None:
        self.clock[rank] += ms

    def _call(self, rank: int, name: int, end: float, *details) -> None:
        self.events[rank] += call(name, self.clock[rank], end, *details)
        self.clock[rank] = end

    def io(self, rank: int, name: int, ms: float) -> None:
        self._call(rank, name, self.clock[rank] + ms)

    def all_reduce(self, name: int = 11) -> None:
        end = max(self.clock) + 0.01
        for rank in range(len(self.clock)):
            self._call(rank, name, end, *collective())

    def message(self, src: int, dst: int) -> None:
        self._call(src, 1, self.clock[src] + 0.01, sent(dst))
        self._call(dst, 2, max(self.clock[dst], self.clock[src]) + 0.01, *taken(src))

    def trace(self, folder) -> Trace:
        for rank, events in enumerate(self.events):
            write_process(folder, rank, {1: events}, num_ranks=len(self.events))
        return trace_of(folder)
