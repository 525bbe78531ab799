"""build_engine: compile a collective call, by the algorithm chosen for it, into the engine that this rank runs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

import numpy as np

from dovetail.collective import algorithms_for, build, spec_of
from dovetail.core import DovetailError, OperatorError
from dovetail.ir import Program, Sizes, Workload
from dovetail.ir.collectives import COLLECTIVES
from dovetail.ir.proof.sizes import uneven
from dovetail.run.arrays import Array, numpy_dtype
from dovetail.run.engine import bind, bind_script, native_options, needs_order
from dovetail.run.options import SHARED, RunOptions
from dovetail.run.ranks.comm import CollectiveCall, Communicator, Service
from dovetail.run.ranks.embedded import STALL_S


def prepare(request: CollectiveCall, choice: Any, made: Communicator) -> Service:
    """Return a service for all calls with this request's shape: an engine that runs the algorithm of `choice`.

    If the algorithm cannot serve the request, rank 0 warns, and the MPI library's own collective serves it.
    """
    options = native_options(RunOptions(slice_bytes=choice.slice_bytes, stall_s=STALL_S, spans=False))
    asked = request.kind, choice, made.size, made.nodes, request.root
    try:
        program = program_of(*asked)
        work = uneven(program, _sizes(program, request), request.dtype)
        dtype = numpy_dtype(request.dtype)
        arrays = {name: np.empty(int(sizes[made.rank].sum()), dtype) for name, sizes in (work.sizes or {}).items()}
        engine = script = None
        if choice.transport == SHARED:
            script = _script(program, made, arrays, work)
        else:
            ordered = _in_order(*asked)
            engine = bind(made.bound.transport, program, made.rank, arrays, in_order=ordered, workload=work)
    except DovetailError as error:  # the same on every rank
        if made.rank == 0:
            text = f"MPI's own {request.kind} is used, because the selection's choice cannot serve it: {error}"
            warnings.warn(text, RuntimeWarning, stacklevel=5)
        return Service(None, options)
    return Service(engine, options, *_homes(program, arrays, bool(request.dst)), script=script)


def _script(program: Program, made: Communicator, arrays: dict[str, Array], work: Workload) -> Any:
    """The program in shared memory; collective. OperatorError on all ranks if it cannot run there on one of them."""
    found, fault = None, ""
    try:
        if made.bound.neighbours is None:
            raise OperatorError("the ranks share no memory")
        found = bind_script(made.bound.neighbours, program, made.rank, arrays, work)
    except OperatorError as error:
        fault = str(error)
    failed = np.flatnonzero(np.frombuffer(made.gather_number(int(bool(fault))), np.int64))
    if found is None or len(failed):
        raise OperatorError(fault or f"rank {failed[0]} cannot run it in shared memory")
    return found


@lru_cache(maxsize=256)
def program_of(kind: str, choice: Any, ranks: int, nodes: int, root: int = 0) -> Program:
    """Return the proved Program of the algorithm that `choice` names. Raise OperatorError or ProgramError if it fails.

    A choice for a collective also serves its v-variant, if the algorithm has a form for uneven parts.
    """
    name, traits = choice.algorithm, COLLECTIVES[kind]
    if traits.even and not name.endswith("_v"):
        name += "_v"
    if name not in algorithms_for(kind):
        raise OperatorError(f"{name} is no algorithm for {kind}", hint=f"one of {', '.join(algorithms_for(kind))}")
    asked: dict[str, Any] = {"root": root} if traits.rooted else {}
    asked |= {"channels": choice.channels, "instances": choice.instances, "protocol": choice.protocol}
    try:
        return build(name, ranks, nodes=nodes, in_place=traits.fills_output or None, **asked)
    except OperatorError:
        if not traits.fills_output:
            raise
        return build(name, ranks, nodes=nodes, **asked)


@lru_cache(maxsize=256)
def _in_order(*asked: Any) -> bool:
    return needs_order(program_of(*asked))


def _sizes(program: Program, request: CollectiveCall) -> Sizes:
    """Return the number of elements of each slot of the input and output buffers."""
    asked = partial(spec_of, request.kind, program.num_ranks, in_place=program.in_place, root=request.root)
    unit = asked().buffers[0]
    chunks = max(program.buffer(unit.name).slots) // max(unit.slots)
    counts = request.elements if request.counts is None else request.counts.tolist()
    return asked(chunks=chunks).sizes(counts)


def _homes(program: Program, arrays: Mapping[str, Array], has_result: bool) -> tuple[bool, int, int, list[Any]]:
    """Return (in_place, input's row, output's row, [(row, bytes) of scratch]) in `program.buffers`; -1: empty here."""
    rows = {"input": -1, "output": -1}
    scratch = []
    for row, buffer in enumerate(program.buffers):
        if not arrays[buffer.name].size:
            continue
        if buffer.role == "scratch" or (buffer.role == "output" and not has_result):
            scratch.append((row, arrays[buffer.name].nbytes))
        else:
            rows[buffer.role] = row
    return program.in_place, rows["input"], rows["output"], scratch
