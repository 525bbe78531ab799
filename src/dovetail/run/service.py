"""service: from a request and a choice to the engine of this rank's share, and where its buffers lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail import _native
from dovetail.collective import algorithms_for, build, spec_of
from dovetail.core import WishError
from dovetail.ir import Program, Sizes
from dovetail.ir.sizes import uneven
from dovetail.run.arrays import Array, numpy_dtype
from dovetail.run.engine import DTYPES, bind, native_options, needs_order
from dovetail.run.options import RunOptions

REDUCED = (*DTYPES, "complex64", "complex128")  # the last two by the library only
STALL_S = 600.0  # a rank that comes so late is taken for one that never will
_IN_PLACE = ("all_reduce", "all_gather", "all_gather_v", "broadcast")  # where the output covers the whole
_ROOTED = ("broadcast", "reduce", "gather", "scatter")


class Request(NamedTuple):
    """What this rank asks: `elements` of the part where ranks cut the whole, or the `counts` of a v-variant.

    Addresses are 0 where this rank has no such array. `dtype`: one of REDUCED; what is only moved goes as elements of
    the same size. `num_bytes`: of the larger of a rank's input and output, the same on every rank.
    """

    kind: str
    src: int
    dst: int
    elements: int
    dtype: str
    num_bytes: int
    op: str = "sum"
    root: int = 0
    counts: NDArray[np.int64] | None = None  # by rank; of an all_to_all_v by source, then destination


class Service(NamedTuple):
    """A bound engine (none: the library's call must do), and rows of its Program's buffers: input and output (-1: empty
    on this rank), and what is scratch, with bytes."""

    engine: _native.Engine | None
    options: _native.EngineOptions
    in_place: bool = False
    input: int = -1
    output: int = -1
    scratch: Sequence[tuple[int, int]] = ()


def service_of(
    request: Request, choice: Any, transport: _native.Transport, rank: int, ranks: int, nodes: int
) -> Service:
    """WishError or ProgramError where the choice cannot serve the request."""
    asked = request.kind, choice, ranks, nodes, request.root
    program = program_of(*asked)
    work = uneven(program, _sizes(program, request), request.dtype)
    dtype = numpy_dtype(request.dtype)
    arrays = {name: np.empty(int(sizes[rank].sum()), dtype) for name, sizes in (work.sizes or {}).items()}
    engine = bind(transport, program, rank, arrays, in_order=_in_order(*asked), workload=work)
    return Service(engine, options_of(choice), *_homes(program, arrays, bool(request.dst)))


def options_of(choice: Any) -> _native.EngineOptions:
    return native_options(RunOptions(slice_bytes=choice.slice_bytes, stall_s=STALL_S, spans=False))


@lru_cache(maxsize=256)
def program_of(kind: str, choice: Any, ranks: int, nodes: int, root: int = 0) -> Program:
    """The proved Program that a choice names. WishError or ProgramError where there is none.

    A choice for a collective serves its v-variant too, where there is the algorithm for it.
    """
    name = choice.algorithm
    if kind.endswith("_v") and not name.endswith("_v"):
        name += "_v"
    if name not in algorithms_for(kind):
        raise WishError(f"{name} is no algorithm for {kind}", hint=f"one of {', '.join(algorithms_for(kind))}")
    asked: dict[str, Any] = {"root": root} if kind in _ROOTED else {}
    asked |= {"channels": choice.channels, "instances": choice.instances, "protocol": choice.protocol}
    try:
        return build(name, ranks, nodes=nodes, in_place=kind in _IN_PLACE or None, **asked)
    except WishError:
        if kind not in _IN_PLACE:
            raise
        return build(name, ranks, nodes=nodes, **asked)


@lru_cache(maxsize=256)
def _in_order(*asked: Any) -> bool:
    return needs_order(program_of(*asked))


def _sizes(program: Program, request: Request) -> Sizes:
    """Elements of each slot of input and output."""
    asked = partial(spec_of, request.kind, program.num_ranks, in_place=_in_place(program), root=request.root)
    unit = asked().buffers[0]
    chunks = max(program.buffer(unit.name).slots) // max(unit.slots)
    counts = request.elements if request.counts is None else request.counts.tolist()
    return asked(chunks=chunks).sizes(counts)


def _homes(program: Program, arrays: Mapping[str, Array], has_result: bool) -> tuple[bool, int, int, list[Any]]:
    """In place or not, rows of input and output (-1: empty on this rank), and row and bytes of what is scratch."""
    rows = {"input": -1, "output": -1}
    scratch = []
    for row, buffer in enumerate(program.buffers):
        if not arrays[buffer.name].size:
            continue
        if buffer.role == "scratch" or (buffer.role == "output" and not has_result):
            scratch.append((row, arrays[buffer.name].nbytes))
        else:
            rows[buffer.role] = row
    return _in_place(program), rows["input"], rows["output"], scratch


def _in_place(program: Program) -> bool:
    return all(buffer.role != "output" for buffer in program.buffers)
