"""spawned: communicators between MPI jobs (MPI_Comm_spawn, MPI_Comm_accept); each job knows only its own ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dovetail.trace.trace import Comm


def joined_jobs(jobs: Sequence[Iterable[Comm]]) -> dict[Comm, Comm]:
    """Return each job's communicators with the other job's ranks filled in.

    `jobs`: communicators of each job, in the order of their creation; ranks that a job does not know are -1. Two
    communicators match if each has exactly the ranks that the other lacks. If several match, the first of one job
    belongs to the first of the other, and so on. Communicators without a match, or with matches in several jobs, stay
    unchanged.

    >>> joined_jobs([[Comm((0, 1), 0, (-1,))], [Comm((2,), 0, (-1, -1))]])[Comm((2,), 0, (-1, -1))]
    Comm(ranks=(2,), number=0, remote=(0, 1), is_window=False)
    """
    found: dict[Comm, Comm] = {}
    waiting: list[Comm] = []  # communicators of earlier jobs without a match so far
    for job in jobs:
        mine = [comm for comm in dict.fromkeys(job) if -1 in (*comm.ranks, *comm.remote)]
        for comm in mine:
            fitting = [other for other in waiting if _fit(other, comm)]
            if len({other.ranks for other in fitting}) == 1:
                waiting.remove(fitting[0])
                found[fitting[0]], found[comm] = _whole(fitting[0], comm)
        waiting += [comm for comm in mine if comm not in found]
    return found


def _fit(one: Comm, other: Comm) -> bool:
    """Return whether each communicator has exactly the ranks that the other one lacks."""
    if one.is_window != other.is_window or bool(one.remote) != bool(other.remote):
        return False
    sides = [(one.ranks, other.remote), (one.remote, other.ranks)] if one.remote else [(one.ranks, other.ranks)]
    alike = all(len(a) == len(b) for a, b in sides)
    return alike and all((a < 0) != (b < 0) for side in sides for a, b in zip(*side, strict=True))


def _whole(one: Comm, other: Comm) -> tuple[Comm, Comm]:
    """Return both communicators with all ranks, and with one number."""
    if one.remote:
        return replace(one, remote=other.ranks), replace(other, remote=one.ranks, number=one.number)
    ranks = tuple(max(pair) for pair in zip(one.ranks, other.ranks, strict=True))
    return replace(one, ranks=ranks), replace(other, ranks=ranks, number=one.number)
