"""Calls of MPI as events of a trace, at times in ms; traces made of them."""

from __future__ import annotations

from trace_files import event, pair, write_process

from dovetail.trace import Trace, merge
from dovetail.trace.analysis.stats import Stats, stats

MS = 10**6  # ticks of the event clock


def call(name: int, start: float, end: float, *details: tuple[int, int], made: int = 0) -> list[tuple[int, int]]:
    """A call from `start` to `end`, in ms."""
    return [event("begin", round(start * MS), name), *details, event("end", round(end * MS), name, made)]


def sent(to: int, num_bytes: int = 8) -> tuple[int, int]:
    return event("send", pair(to, 1), 0, num_bytes)


def taken(source: int, num_bytes: int = 8) -> list[tuple[int, int]]:
    return [event("recv", pair(source, 1), 0, num_bytes), event("done", pair(source, 1), 0, num_bytes)]


def traced(tmp_path, *ranks: list[tuple[int, int]]) -> Stats:
    for rank, events in enumerate(ranks):
        write_process(tmp_path, rank, {1: events}, num_ranks=len(ranks))
    return stats(trace_of(tmp_path))


def trace_of(tmp_path) -> Trace:
    return merge(tmp_path).read()


def reported(found: Stats) -> list[tuple]:
    return [(w.state, w.name, w.count, round(w.seconds * 1e3, 6), w.most_rank, w.cause_rank) for w in found.waits]


def collective(root: int = -1) -> list[tuple[int, int]]:
    return [*([event("root", root)] if root >= 0 else []), event("collective", 8, 0, 8)]
