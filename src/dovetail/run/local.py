"""The `local` executor: ranks as threads of this process, messages through its memory. Needs no MPI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail import _native
from dovetail.core import RunError
from dovetail.ir import Program, Workload
from dovetail.run.arrays import Array, Arrays
from dovetail.run.engine import allocate_rank, bind, run_engines, timeline_of
from dovetail.run.kernels import KernelCall
from dovetail.run.options import RunOptions
from dovetail.timeline import Timeline


def execute_local(
    program: Program,
    workload: Workload,
    inputs: Arrays,
    *,
    kernels: Mapping[str, KernelCall] | None = None,
    options: RunOptions = RunOptions(),
) -> tuple[dict[str, list[Array]], Timeline]:
    """Run `program` on threads; `inputs` holds, for each input buffer, every rank's array (slots first).

    Returns all buffers, by rank, and the measured Timeline. Raises RunError where a rank stalls, naming the op that
    each of its lanes waits for; the error's `timeline` holds what had happened by then.
    """
    ranks = range(program.num_ranks)
    arrays: list[dict[str, Array]] = [allocate_rank(program, workload, rank) for rank in ranks]
    for name, parts in inputs.items():
        for rank in ranks:
            arrays[rank][name][...] = parts[rank]
    hub = _native.LocalHub(program.num_ranks)
    engines = [bind(_native.local_transport(hub, rank), program, rank, arrays[rank], kernels) for rank in ranks]
    failures = [text for text in run_engines(engines, options) if text]
    timeline = _timeline(program, workload, engines)
    if failures:
        error = RunError(failures[0].split("\n")[0], found="\n" + "\n".join(failures), hint="verify the program")
        error.timeline = timeline  # type: ignore[attr-defined]
        raise error
    return {b.name: [arrays[rank][b.name] for rank in ranks] for b in program.buffers}, timeline


def _timeline(program: Program, workload: Workload, engines: list[_native.Engine]) -> Timeline:
    spans: list[tuple[Any, Any, Any]] = [engine.spans() for engine in engines]
    times = [t for _, starts, _ in spans for t in starts if t == t]
    first = min(times, default=0.0)
    shifted = [(rows, [s - first for s in start], [e - first for e in end]) for rows, start, end in spans]
    return timeline_of(program, workload, shifted, {"executor": "local", "clock_error_s": 0.0})
