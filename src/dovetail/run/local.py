"""local: the executor whose ranks are threads of this process, with messages through its memory. Needs no MPI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail import _native
from dovetail.core import RunError
from dovetail.ir import KernelCall, Program, Workload, verify
from dovetail.run.arrays import Array, Arrays, numpy_dtype
from dovetail.run.engine import allocate_rank, bind, blas_threads, needs_order, run_engines, timeline_of
from dovetail.run.options import RunOptions
from dovetail.run.reduce import check_average
from dovetail.timeline import Timeline


def execute_local(
    program: Program,
    workload: Workload,
    inputs: Arrays,
    *,
    kernels: Mapping[str, KernelCall] | None = None,
    options: RunOptions | None = None,
) -> tuple[dict[str, list[Array]], Timeline]:
    """Run `program` on threads; `inputs` holds, for each input buffer, every rank's array (slots first).

    Returns all buffers, by rank, and the measured Timeline. Raises ProgramError for a program that `verify` refuses,
    and RunError if a rank stalls, naming the op that each of its lanes waits for; that error's `timeline` holds
    what had happened by then. Errors of kernels are raised unchanged.
    """
    verify(program).raise_if_bad()
    return run_unverified(program, workload, inputs, kernels, options)


def run_unverified(
    program: Program,
    workload: Workload,
    inputs: Arrays,
    kernels: Mapping[str, KernelCall] | None = None,
    options: RunOptions | None = None,
) -> tuple[dict[str, list[Array]], Timeline]:
    """`execute_local` for a program that has just been verified."""
    ranks, options = range(program.num_ranks), options or RunOptions()
    for slots in workload.slots.values():
        check_average(options.reduce_op, numpy_dtype(slots[0].dtype))
    arrays: list[dict[str, Array]] = [allocate_rank(program, workload, rank) for rank in ranks]
    fill(program, arrays, inputs)
    hub, in_order = _native.LocalHub(program.num_ranks), needs_order(program)
    engines = [
        bind(
            _native.local_transport(hub, rank), program, rank, arrays[rank], kernels, in_order, workload, f"rank {rank}"
        )
        for rank in ranks
    ]
    with blas_threads(program.num_ranks):
        failures = sorted(filter(None, run_engines(engines, options)), key=lambda text: "stopped because" in text)
    timeline = _timeline(program, workload, engines)
    if failures:
        error = RunError(failures[0].split("\n")[0], found="\n" + "\n".join(failures))
        error.timeline = timeline  # type: ignore[attr-defined]
        raise error
    return {b.name: [arrays[rank][b.name] for rank in ranks] for b in program.buffers}, timeline


def fill(program: Program, arrays: list[dict[str, Array]], inputs: Arrays) -> None:
    """Copy the inputs of all ranks into their buffers. Raises RunError for a missing one, or another shape or dtype."""
    for buffer in program.buffers:
        if buffer.role != "input":
            continue
        parts = inputs.get(buffer.name, ())
        if len(parts) != program.num_ranks:
            raise RunError(f"no array for input buffer '{buffer.name}'", hint="give one array for each rank")
        for rank, part in enumerate(parts):
            home = arrays[rank][buffer.name]
            if part.shape != home.shape or part.dtype != home.dtype:
                found = f"{part.dtype}{list(part.shape)}, not {home.dtype}{list(home.shape)}"
                raise RunError(f"input buffer '{buffer.name}' of rank {rank} has another size or dtype", found=found)
            home[...] = part
    unknown = set(inputs) - {buffer.name for buffer in program.buffers if buffer.role == "input"}
    if unknown:
        raise RunError(f"program '{program.name}' has no input buffer '{min(unknown)}'")


def _timeline(program: Program, workload: Workload, engines: list[_native.Engine]) -> Timeline:
    spans: list[tuple[Any, Any, Any]] = [engine.spans() for engine in engines]
    times = [t for _, starts, _ in spans for t in starts if t == t]
    first = min(times, default=0.0)
    shifted = [(rows, [s - first for s in start], [e - first for e in end]) for rows, start, end in spans]
    return timeline_of(program, workload, shifted, {"executor": "local", "clock_error_s": 0.0})
