"""thread_level: name the cost of the level of thread support that a traced program asked MPI for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from dovetail.advise.remedy import duration
from dovetail.run.options import LEVEL_REMEDY
from dovetail.trace import Trace, TraceFile
from dovetail.trace.analysis.call_classes import COLLECTIVE, class_of


def level_notes(trace: Trace | TraceFile) -> tuple[str, ...]:
    """Return a note if MPICH was started at MPI_THREAD_MULTIPLE and ranks of a host call blocking collectives.

    MPICH then uses its collectives for several hosts, not those of shared memory. A trace does not show what that
    costs (`dovetail tune` measures it): the note names the time in these calls, an upper bound of the saving.
    """
    ranks = [about for about in trace.meta.get("ranks", ()) if about.get("thread_level") == "multiple"]
    hosts = Counter(about["host"] for about in ranks if str(about.get("library", "")).startswith("MPICH"))
    if max(hosts.values(), default=0) < 2:
        return ()
    count, seconds = (sum(column) for column in zip(*_collectives(trace), strict=True))
    if not count:
        return ()
    mean = duration(seconds / trace.num_ranks)
    return (
        f"MPI was started at MPI_THREAD_MULTIPLE, as mpi4py does by default: MPICH then calls no collectives of shared "
        f"memory. {count} blocking collectives took {mean} of a rank, waits included; at a lower level small ones take "
        f"a fraction (`dovetail tune all_reduce` measures it). {LEVEL_REMEDY}",
    )


def _collectives(trace: Trace | TraceFile) -> Iterator[tuple[int, float]]:
    """Yield number and seconds of the blocking collectives of each part of the trace; at least one pair."""
    names = [i for i, name in enumerate(trace.names) if class_of(name) == COLLECTIVE and _is_data(name)]
    yield 0, 0.0
    for part in trace.parts() if isinstance(trace, TraceFile) else (trace,):
        chosen = np.isin(part.columns["name"], names) & (part.columns["part"] == 0)
        lasted = (part.columns["end_s"] - part.columns["start_s"])[chosen]
        yield int(chosen.sum()), float(lasted.sum())


def _is_data(name: str) -> bool:
    """Whether a collective is a blocking call that MPICH serves by shared memory.

    >>> [_is_data(name) for name in ("MPI_Allreduce", "MPI_Bcast_c", "MPI_Iallreduce", "MPI_Alltoall")]
    [True, True, False, False]
    """
    return name.removesuffix("_c") in ("MPI_Allreduce", "MPI_Bcast", "MPI_Barrier", "MPI_Reduce")
