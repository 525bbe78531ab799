"""jobs: number the processes of a trace as ranks, if a command started one or several MPI jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from dovetail.trace.process_file import ProcessFile


def ranked(processes: Sequence[ProcessFile]) -> list[ProcessFile]:
    """Return the processes by rank. Ranks of later jobs, by their starts, follow those of earlier jobs.

    Among jobs of equal size, the n-th process with a rank belongs to the n-th job. A process that never recorded its
    rank counts as a separate job after all others.
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
