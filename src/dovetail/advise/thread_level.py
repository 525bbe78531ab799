"""thread_level: name the cost of the level of thread support that a traced program asked MPI for."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from dovetail.advise.remedy import LEAST_SHARE, duration
from dovetail.run.options import LEVEL_REMEDY
from dovetail.trace import Trace, TraceFile
from dovetail.trace.analysis.call_classes import COLLECTIVE, class_of
from dovetail.trace.analysis.collective_calls import CollectiveMatcher
from dovetail.trace.analysis.waits import by_call, waits_of_collectives


def level_notes(trace: Trace | TraceFile) -> tuple[str, ...]:
    """Return a note if MPICH was started at MPI_THREAD_MULTIPLE and ranks of a host call blocking collectives.

    MPICH then uses its collectives for several hosts, not those of shared memory. A trace does not show what that
    costs (`dovetail tune` measures it): the note names the time in these calls beyond waits for late ranks, an upper
    bound of the saving, if it is at least LEAST_SHARE of the run.
    """
    ranks = [about for about in trace.meta.get("ranks", ()) if about.get("thread_level") == "multiple"]
    hosts = Counter(about["host"] for about in ranks if str(about.get("library", "")).startswith("MPICH"))
    if max(hosts.values(), default=0) < 2:
        return ()
    found = _collectives(trace)
    if not found.calls or found.busy_s < LEAST_SHARE * found.run_s:
        return ()
    calls, busy = max(found.calls // trace.num_ranks, 1), duration(found.busy_s / trace.num_ranks)
    plural = "s" if calls > 1 else ""
    return (
        f"MPI was started at MPI_THREAD_MULTIPLE, as mpi4py does by default: MPICH then calls no collectives of shared "
        f"memory. {calls} blocking collective{plural} of a rank took {busy}, waits for late ranks left out; at a lower "
        f"level small ones take a fraction (`dovetail tune all_reduce` measures it). {LEVEL_REMEDY}",
    )


class _Collectives(NamedTuple):
    """Blocking collectives of all ranks: their number, their seconds beyond waits for late ranks, those of the run."""

    calls: int
    busy_s: float
    run_s: float


def _collectives(trace: Trace | TraceFile) -> _Collectives:
    """Add up the blocking collectives of a trace, read part by part."""
    numbers = [i for i, name in enumerate(trace.names) if class_of(name) == COLLECTIVE and _is_data(name)]
    of_mpi = [i for i, name in enumerate(trace.names) if name.startswith("MPI_")]
    matcher, calls, lasted_s, first_s, last_s = CollectiveMatcher(), 0, 0.0, np.inf, -np.inf
    for part in trace.parts() if isinstance(trace, TraceFile) else (trace,):
        col = part.columns
        matcher.take(col)
        chosen = np.isin(col["name"], numbers) & (col["part"] == 0)
        calls += int(chosen.sum())
        lasted_s += float((col["end_s"] - col["start_s"])[chosen].sum())
        ends_s = col["end_s"][np.isin(col["name"], of_mpi)]  # the first is that of MPI_Init
        first_s, last_s = min(first_s, ends_s.min(initial=np.inf)), max(last_s, ends_s.max(initial=-np.inf))
    waits = waits_of_collectives(matcher.calls(trace.names, trace.comms), trace.names)
    waits = by_call(waits.at(np.isin(waits.name, numbers))).waits
    waited_s = float((np.fmin(waits.until_s, waits.end_s) - waits.start_s).sum())
    run_s = max(last_s - first_s, 0.0) * trace.num_ranks
    return _Collectives(calls, max(lasted_s - waited_s, 0.0), run_s)


def _is_data(name: str) -> bool:
    """Whether a collective is a blocking call that MPICH serves by shared memory.

    >>> [_is_data(name) for name in ("MPI_Allreduce", "MPI_Bcast_c", "MPI_Iallreduce", "MPI_Alltoall")]
    [True, True, False, False]
    """
    return name.removesuffix("_c") in ("MPI_Allreduce", "MPI_Bcast", "MPI_Barrier", "MPI_Reduce")
