"""jobs: number processes as ranks, of one MPI job or of several that a command started."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from dovetail.trace.process_file import ProcessFile


def ranked(processes: Sequence[ProcessFile]) -> list[ProcessFile]:
    """The processes by rank, jobs in the order of their starts: a later job's ranks follow those of the ones before.

    The n-th process of a rank is of the n-th job, among jobs of one size. A process that never recorded its rank is a
    job of its own, after all other jobs.
    """
    seen: Counter[tuple[int, int]] = Counter()
    jobs: dict[tuple[int, int], list[ProcessFile]] = {}
    for process in sorted(processes, key=lambda process: (process.rank < 0, process.first.real_ns)):
        who = process.num_ranks, process.rank
        jobs.setdefault((process.num_ranks, seen[who]), []).append(process)
        seen[who] += 1
    found: list[ProcessFile] = []
    base = 0
    for members in jobs.values():
        own = [replace(process, rank=base + max(process.rank, 0), base=base) for process in members]
        found += sorted(own, key=lambda process: process.rank)
        base += max(members[0].num_ranks, *(process.rank + 1 for process in members), 1)
    return found
