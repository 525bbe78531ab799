"""engine: bind a Program and arrays to a native engine, and turn its spans into a Timeline."""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail import _native
from dovetail.core import OperatorError, RunError
from dovetail.ir import (
    CFunction,
    Gemm,
    KernelCall,
    Kind,
    Program,
    Slot,
    Workload,
    compute_calls,
    kernel_calls,
    region_bytes,
)
from dovetail.ir.collectives import OP_COLLECTIVES, traits_of
from dovetail.ir.kernels import MOST_SIZES
from dovetail.ir.slots import DTYPE_BYTES
from dovetail.run.arrays import Array, allocate_buffer, places
from dovetail.run.library_calls import collective_parts, misfit
from dovetail.run.options import RunOptions
from dovetail.run.reduce import REDUCE_OPS, quotients
from dovetail.timeline import Timeline

DTYPES = tuple(DTYPE_BYTES)  # in the order of mpi_table.h
_SAME_SLOTS = (Kind.copy, Kind.reduce, Kind.recv_reduce, Kind.recv_reduce_copy_send, Kind.collective)


def allocate_rank(program: Program, workload: Workload, rank: int) -> dict[str, Array]:
    """Return poisoned arrays for every buffer of one rank, slots first, so that unwritten slots show."""
    return {buffer.name: allocate_buffer(program, workload, buffer.name, rank) for buffer in program.buffers}


def bind(
    transport: _native.Transport,
    program: Program,
    rank: int,
    arrays: dict[str, Array],
    kernels: Mapping[str, KernelCall] | None = None,
    in_order: bool | None = None,
    workload: Workload | None = None,
    lanes_of: str = "",
) -> _native.Engine:
    """Return an engine for one rank's share of `program` on `arrays`, which the caller must keep alive and in place.

    The program must have passed `verify`. `in_order`: see `needs_order`, the default. `workload`: for kernels, and for
    arrays whose slots differ in size. `kernels` take precedence over the workload's, and run in Python. `lanes_of`:
    prefix of lanes in traces, if several ranks share a process.
    """
    check_supported(program)
    given = workload or Workload({})
    starts = {buffer.name: given.starts(buffer.name, rank) for buffer in program.buffers}
    for buffer in program.buffers:
        held = starts[buffer.name]
        check_array(arrays.get(buffer.name), buffer.name, buffer.slots[rank] if held is None else held[-1], rank)
    check_slots(program, rank, arrays)
    as_held = _as_held(program, arrays, given)
    if as_held.sizes:
        check_sizes(program, rank, as_held)
    functions = kernel_calls(workload, kernels)
    products, c_functions = native_forms(program, rank, as_held, kernels)

    def call(row: int) -> None:
        run_kernel(program, row, arrays, functions, starts)

    return _native.make_engine(
        transport,
        rank,
        _columns(program),
        [lane.engine == "net" for lane in program.lanes],
        needs_order(program) if in_order is None else in_order,
        [(c.src, c.dst, c.id, c.depth) for c in program.channels],
        [(OP_COLLECTIVES.index(c.kind), list(c.group)) for c in program.collectives],
        _memory(program, arrays, starts),
        _quotient_rows(program, rank),
        collective_parts(program, rank, as_held),
        products,
        blas_functions() if len(products) else (0, 0),
        c_functions,
        call,
        titles(program, lanes_of),
    )


def bind_script(
    neighbours: _native.Neighbours,
    program: Program,
    rank: int,
    arrays: dict[str, Array],
    workload: Workload | None = None,
) -> _native.Script:
    """Return a script for one rank's share of `program` on `arrays`, which the caller must keep alive and in place.

    It moves data through memory that all ranks share. Raises OperatorError if a script cannot do what the program does.
    """
    given = workload or Workload({})
    starts = {buffer.name: given.starts(buffer.name, rank) for buffer in program.buffers}
    try:
        return _native.make_script(
            neighbours,
            _columns(program),
            [lane.engine == "net" for lane in program.lanes],
            [(c.src, c.dst, c.id, c.depth) for c in program.channels],
            _memory(program, arrays, starts),
            _quotient_rows(program, rank),
            _largest_slot(program, given, arrays),
        )
    except ValueError as error:
        raise OperatorError(f"{program.name} does not run in shared memory", found=str(error)) from None


def _largest_slot(program: Program, workload: Workload, arrays: Mapping[str, Array]) -> int:
    """Bytes of the largest slot of any rank."""
    sizes, most = workload.sizes or {}, 0
    for buffer in program.buffers:
        array = arrays[buffer.name]
        row_bytes = math.prod(array.shape[1:]) * array.itemsize
        elements = [int(part.max(initial=0)) for part in sizes[buffer.name]] if buffer.name in sizes else [1]
        most = max(most, row_bytes * max(elements, default=0))
    return most


def _quotient_rows(program: Program, rank: int) -> list[tuple[int, int, int, int]]:
    """The slots whose sums an average divides, as rows for C++."""
    return [
        (row, start, stop - start, divisor)
        for row, buffer in enumerate(program.buffers)
        for start, stop, divisor in quotients(program, buffer.name, rank)
    ]


def titles(program: Program, lanes_of: str = "") -> tuple[list[str], list[str], list[str]]:
    """Return the names of a Program's lanes, kernels and collectives in traces."""
    lanes = [f"{lanes_of} {lane.name}".strip() for lane in program.lanes]
    return lanes, [kernel.name for kernel in program.kernels], [call.kind for call in program.collectives]


def needs_order(program: Program) -> bool:
    """Return whether ops of a net lane must end one after the other.

    They may overlap, up to the window, if every rank orders its conflicting accesses by its lanes and
    dependencies. If that order depends on messages of other ranks, an op that began early would break it.
    """
    return not _native.ordered_locally(program.num_ranks, _columns(program))


def _columns(program: Program) -> dict[str, NDArray[Any]]:
    """The columns for C++, contiguous in memory."""
    return {name: np.ascontiguousarray(column) for name, column in program.columns.items()}


def run_engines(engines: Sequence[_native.Engine], options: RunOptions) -> list[str]:
    """Run bound engines to their end. Return for each why it failed, or an empty string."""
    failures: list[str] = _native.run_engines(list(engines), native_options(options))
    return failures


def native_options(options: RunOptions) -> _native.EngineOptions:
    """Convert options for `Engine.run`, which one rank calls repeatedly."""
    return _native.EngineOptions(
        thread=options.progress == "thread",
        poll_s=options.poll_s,
        block_rows=options.block_rows,
        window=options.window,
        stall_s=options.stall_s,
        reduce_op=REDUCE_OPS.index(options.reduce_op),
        repeats=options.repeats,
        spans=options.spans,
        blocking=options.blocking,
        slice_bytes=options.slice_bytes,
    )


def run_kernel(
    program: Program, row: int, arrays: dict[str, Array], functions: Mapping[str, KernelCall], starts: Mapping[str, Any]
) -> None:
    """Call a compute op's Python kernel on views of its regions; on copies of those it both reads and writes."""
    op = program.op(row)
    kernel = program.kernels[op.call]
    if kernel.name not in functions:
        found = f"kernels {', '.join(sorted(functions)) or 'none'}"
        hint = "give the Workload its form"
        raise RunError(f"op {row} on rank {op.rank}: no kernel '{kernel.name}'", where=op.line, found=found, hint=hint)
    reads = [arrays[region.buffer][places(region, starts[region.buffer])] for region in op.reads]
    results, targets = [], [(arrays[region.buffer], places(region, starts[region.buffer])) for region in op.writes]
    for region, (array, where) in zip(op.writes, targets, strict=True):
        held = array[where]
        fresh = kernel.accumulate or region.blocks > 1 or any(np.may_share_memory(held, read) for read in reads)
        results.append(np.empty_like(held) if fresh else held)
    functions[kernel.name](reads, results)
    for (array, where), result in zip(targets, results, strict=True):
        if kernel.accumulate:
            array[where] += result
        elif not np.may_share_memory(array, result):
            array[where] = result


def check_supported(program: Program) -> None:
    """Raise RunError for programs that the native engine cannot run, before anything starts."""
    for kind in (Kind.put, Kind.get):
        if bool(np.any(program.columns["kind"] == kind)):
            what = f"the native executors have no one-sided {kind.name}"
            raise RunError(what, hint="dovetail.passes.two_sided turns them into messages")
    for call in program.collectives:
        if call.kind not in OP_COLLECTIVES:
            what = f"no executor has the collective '{call.kind}'"
            raise RunError(what, hint=f"one of {', '.join(OP_COLLECTIVES)}")


def check_slots(program: Program, rank: int, arrays: dict[str, Array]) -> None:
    """Raise RunError for ops that move slots into slots of another shape or dtype."""
    col, names = program.columns, [buffer.name for buffer in program.buffers]
    mine = (col["rank"] == rank) & np.isin(col["kind"], [*_SAME_SLOTS])
    rows = np.flatnonzero(mine & (np.diff(col["read_start"]) > 0) & (np.diff(col["write_start"]) > 0))
    ends = [col[f"{side}_buffer"][col[f"{side}_start"][rows]] for side in ("read", "write")]
    pairs = {*map(tuple, np.stack(ends).T.tolist())}
    for row in rows[np.diff(col["read_start"])[rows] > 1]:  # an all_to_all in parts
        buffers = (col[f"{side}_buffer"][slice(*col[f"{side}_start"][row : row + 2])] for side in ("read", "write"))
        pairs |= set(product(*(map(int, each) for each in buffers)))
    for src, dst in sorted(pairs):
        a, b = arrays[names[src]], arrays[names[dst]]
        if a.shape[1:] != b.shape[1:] or a.dtype != b.dtype:
            raise RunError(
                f"rank {rank} moves slots of buffer '{names[src]}' to buffer '{names[dst]}', whose slots differ",
                found=f"{a.dtype}{list(a.shape[1:])} and {b.dtype}{list(b.shape[1:])}",
            )


def check_sizes(program: Program, rank: int, workload: Workload) -> None:
    """Raise RunError for ops that move slots into slots of another size."""
    col, mine = program.columns, program.columns["rank"] == rank
    whole = np.zeros((2, program.num_ops), np.int64)
    for side, total in zip(("read", "write"), whole, strict=True):
        ops = np.repeat(np.arange(program.num_ops), np.diff(col[f"{side}_start"]))
        np.add.at(total, ops, region_bytes(program, workload, side))
    moves = mine & np.isin(col["kind"], [*_SAME_SLOTS]) & (np.diff(col["read_start"]) > 0)
    for row in np.flatnonzero(moves & (whole[0] != whole[1]) & (np.diff(col["write_start"]) > 0)):
        op = program.op(int(row))
        if op.kind != Kind.collective or not traits_of(program.collectives[op.call].kind).in_parts:
            raise misfit(program, int(row))


def _as_held(program: Program, arrays: dict[str, Array], workload: Workload) -> Workload:
    """The workload with the shapes and dtypes of this rank's arrays as its slots."""
    held = {b.name: Slot(arrays[b.name].shape[1:], arrays[b.name].dtype.name) for b in program.buffers}
    return replace(workload, slots={name: (slot,) * program.num_ranks for name, slot in held.items()})


def native_forms(
    program: Program, rank: int, workload: Workload, kernels: Mapping[str, KernelCall] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return compute ops with a native form: products (row in the program, m, k, n, whether it accumulates), and C
    functions (row, address, sizes)."""
    rows, which, kinds = compute_calls(program, workload, rank)
    products, functions = np.zeros((len(kinds), 4), np.int64), np.zeros((len(kinds), 1 + MOST_SIZES), np.int64)
    is_product, is_function = np.zeros((2, len(kinds)), np.bool_)
    for number, kind in enumerate(kinds):
        name, _, accumulate = program.kernels[kind.kernel]
        form = None if kernels and name in kernels else workload.form(name)
        native = form.native(kind.reads, kind.writes) if form and form.native else None
        if isinstance(native, CFunction) and not accumulate:
            functions[number, : 1 + len(native.sizes)], is_function[number] = (native.address, *native.sizes), True
        elif isinstance(native, Gemm):
            products[number], is_product[number] = (*native, accumulate), True
    tables = ((products, is_product), (functions, is_function))
    found = [np.column_stack([rows, table[which]])[known[which]] for table, known in tables]
    return found[0], found[1]


def check_array(array: Array | None, name: str, slots: int, rank: int) -> None:
    """Raise RunError unless `array` fits a buffer: `slots` along axis 0, C-contiguous, a known dtype."""
    if array is None:
        raise RunError(f"rank {rank} was given no array for buffer '{name}'")
    if array.shape[:1] != (slots,):
        raise RunError(f"buffer '{name}' of rank {rank} needs {slots} along axis 0", found=f"shape {array.shape}")
    if not array.flags.c_contiguous:
        raise RunError(f"buffer '{name}' of rank {rank} must be C-contiguous", hint="numpy.ascontiguousarray")
    if array.dtype.name not in DTYPES:
        raise RunError(f"buffer '{name}' of rank {rank} has dtype {array.dtype}", hint=f"one of {', '.join(DTYPES)}")


def timeline_of(
    program: Program, workload: Workload, spans: Sequence[tuple[Any, Any, Any]], meta: dict[str, Any]
) -> Timeline:
    """Return the measured Timeline. `spans`: each rank's (rows, start_s, end_s). Ops never reached are left out."""
    rows = np.concatenate([np.asarray(s[0], np.int64) for s in spans])
    start_s, end_s = (np.concatenate([np.asarray(s[i], float) for s in spans]) for i in (1, 2))
    names, name = program.op_names()
    reached = np.isfinite(end_s)
    rows, start_s, end_s = rows[reached], start_s[reached], end_s[reached]
    columns = {
        "rank": program.columns["rank"][rows],
        "lane": program.columns["lane"][rows],
        "op": rows,
        "name": name[rows],
        "num_bytes": moved_bytes(program, workload)[rows],
        "start_s": start_s,
        "end_s": end_s,
    }
    lanes = tuple(lane.name for lane in program.lanes)
    return Timeline("measured", program.num_ranks, lanes, names, columns, meta)


def moved_bytes(program: Program, workload: Workload) -> NDArray[np.int64]:
    """Return the bytes that each op moves: those it reads, or else writes; 0 for compute."""
    col, total = program.columns, np.zeros(program.num_ops, np.int64)
    for side in ("write", "read"):
        start = col[f"{side}_start"]
        has = np.flatnonzero(np.diff(start) > 0)
        until = np.concatenate([[0], np.cumsum(region_bytes(program, workload, side))])
        total[has] = (until[start[1:]] - until[start[:-1]])[has]
    total[col["kind"] == Kind.compute] = 0
    return total


@cache
def blas() -> ctypes.CDLL:
    """Load the OpenBLAS of its wheel. SciPy's, a year older, packs a weight of 8 MB 0.9 ms slower at each call."""
    import scipy_openblas32 as wheel

    return ctypes.CDLL(f"{wheel.get_lib_dir()}/{wheel.get_library(fullname=True)}")


@contextmanager
def blas_threads(ranks: int) -> Iterator[None]:
    """Limit each product to its share of the cores while `ranks` ranks compute in this process.

    Otherwise each product uses all cores, and ranks that compute side by side wait for each other inside OpenBLAS.
    """
    if not blas.cache_info().currsize:  # no engine here has products
        yield
        return
    before = int(blas().scipy_openblas_get_num_threads())
    blas().scipy_openblas_set_num_threads(min(before, max(1, len(os.sched_getaffinity(0)) // ranks)))
    try:
        yield
    finally:
        blas().scipy_openblas_set_num_threads(before)


def blas_functions() -> tuple[int, int]:
    """Return addresses of OpenBLAS's sgemm and dgemm, with integers of 32 bits."""
    sgemm, dgemm = (ctypes.cast(blas()[f"scipy_{name}_"], ctypes.c_void_p).value or 0 for name in ("sgemm", "dgemm"))
    return sgemm, dgemm


def _memory(program: Program, arrays: Mapping[str, Array], starts: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Of each buffer: address, bytes of a slot, dtype, where slots begin, in bytes, if they differ, and whether it is
    scratch."""
    asked, found = {post.region.buffer for post in program.posts}, list[tuple[Any, ...]]()
    for name, role, _ in program.buffers:
        array, begins = arrays[name], starts[name]
        slot_bytes = int(np.prod(array.shape[1:], dtype=np.int64)) * array.itemsize
        where = None if begins is None else begins * array.itemsize
        is_scratch = role == "scratch" and name not in asked
        found.append((array.ctypes.data, slot_bytes, DTYPES.index(array.dtype.name), where, is_scratch))
    return found
