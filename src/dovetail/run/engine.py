"""From a Program and arrays to a bound native engine, and from its spans to a Timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail import _native
from dovetail.core import RunError
from dovetail.ir import Kernel, Kind, Program, Workload
from dovetail.run.arrays import Array, allocate, workload_slots
from dovetail.run.kernels import KernelCall, builtin_kernels
from dovetail.run.options import RunOptions
from dovetail.timeline import Timeline

DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")


def allocate_rank(program: Program, workload: Workload, rank: int) -> dict[str, Array]:
    """Arrays of one rank for every buffer, slots first; all poisoned, so that nothing unwritten passes unseen."""
    return {
        buffer.name: allocate(buffer.slots[rank], workload_slots(workload, buffer.name, program.num_ranks)[rank])
        for buffer in program.buffers
    }


def bind(
    transport: _native.Transport,
    program: Program,
    rank: int,
    arrays: dict[str, Array],
    kernels: Mapping[str, KernelCall] | None = None,
) -> _native.Engine:
    """An engine for one rank's share of `program` on `arrays`, which the caller keeps alive and unmoved."""
    check_supported(program)
    for buffer in program.buffers:
        check_array(arrays.get(buffer.name), buffer.name, buffer.slots[rank], rank)
    memory = [_memory(arrays[buffer.name]) for buffer in program.buffers]
    functions = builtin_kernels() | dict(kernels or {})
    matmuls = [
        None if kernels and kernel.name in kernels else _matmul_shape(program, rank, row, arrays)
        for row, kernel in enumerate(program.kernels)
    ]

    def call(row: int) -> None:
        run_kernel(program, row, arrays, functions)

    return _native.make_engine(
        transport,
        rank,
        program.columns,
        [lane.engine == "net" for lane in program.lanes],
        [tuple(channel) for channel in program.channels],
        [(COLLECTIVES.index(c.kind), list(c.group), 0) for c in program.collectives],
        memory,
        matmuls,
        blas_functions() if any(matmuls) else (0, 0),
        call,
    )


def run_engines(engines: Sequence[_native.Engine], options: RunOptions) -> list[str]:
    """Run bound engines to their end; for each, why it failed or an empty string."""
    thread = options.progress == "thread"
    failures: list[str] = _native.run_engines(
        list(engines), thread, options.poll_s, options.block_rows, options.window, options.stall_s
    )
    return failures


def run_kernel(program: Program, row: int, arrays: dict[str, Array], functions: Mapping[str, KernelCall]) -> None:
    """Call a compute op's Python kernel on views of its regions (copies where a region is strided)."""
    op = program.op(row)
    kernel: Kernel = program.kernels[op.call]
    reads = [arrays[r.buffer][r.slots()] if r.blocks > 1 else _view(arrays, r) for r in op.reads]
    writes = [arrays[r.buffer][r.slots()] if r.blocks > 1 else _view(arrays, r) for r in op.writes]
    results = [np.empty_like(w) for w in writes] if kernel.accumulate else writes
    functions[kernel.name](reads, results)
    for held, result in zip(writes, results):
        if kernel.accumulate:
            held += result
    for region, result in zip(op.writes, writes):
        if region.blocks > 1:
            arrays[region.buffer][region.slots()] = result


def check_supported(program: Program) -> None:
    """Refuse what the native engine cannot run, before anything starts."""
    if bool(np.any(program.columns["kind"] == Kind.put)):
        raise RunError(
            "the native executors have no one-sided put", hint="use send and recv, or the reference executor"
        )
    for call in program.collectives:
        if call.kind not in COLLECTIVES:
            raise RunError(f"no executor knows the collective '{call.kind}'", hint=f"one of {', '.join(COLLECTIVES)}")


def check_array(array: Array | None, name: str, slots: int, rank: int) -> None:
    if array is None:
        raise RunError(f"rank {rank} was given no array for buffer '{name}'")
    if array.shape[:1] != (slots,):
        raise RunError(f"buffer '{name}' of rank {rank} needs {slots} slots along axis 0", found=f"shape {array.shape}")
    if not array.flags.c_contiguous:
        raise RunError(f"buffer '{name}' of rank {rank} must be C-contiguous", hint="numpy.ascontiguousarray")
    if array.dtype.name not in DTYPES:
        raise RunError(f"buffer '{name}' of rank {rank} has dtype {array.dtype}", hint=f"one of {', '.join(DTYPES)}")


def timeline_of(
    program: Program, workload: Workload, spans: Sequence[tuple[Any, Any, Any]], meta: dict[str, Any]
) -> Timeline:
    """The measured Timeline: `spans` holds each rank's (rows, start_s, end_s); ops never reached are left out."""
    rows = np.concatenate([np.asarray(s[0], np.int64) for s in spans])
    start_s, end_s = (np.concatenate([np.asarray(s[i], float) for s in spans]) for i in (1, 2))
    reached = np.isfinite(end_s)
    rows, start_s, end_s = rows[reached], start_s[reached], end_s[reached]
    columns = {
        "rank": program.columns["rank"][rows],
        "lane": program.columns["lane"][rows],
        "op": rows,
        "name": program.columns["kind"][rows].astype(np.int32),
        "num_bytes": moved_bytes(program, workload)[rows],
        "start_s": start_s,
        "end_s": end_s,
    }
    lanes, names = tuple(lane.name for lane in program.lanes), tuple(kind.name for kind in Kind)
    return Timeline("measured", program.num_ranks, lanes, names, columns, meta)


def moved_bytes(program: Program, workload: Workload) -> NDArray[np.int64]:
    """Bytes that each op moves: those of its first region, 0 for compute."""
    col, total = program.columns, np.zeros(program.num_ops, np.int64)
    slot_bytes = np.array(
        [[workload.slot_bytes(b.name, rank) for rank in range(program.num_ranks)] for b in program.buffers], np.int64
    )
    for side in ("write", "read"):
        start = col[f"{side}_start"]
        has = np.flatnonzero(np.diff(start) > 0)
        first = start[has]
        slots = col[f"{side}_count"][first] * col[f"{side}_blocks"][first]
        total[has] = slots * slot_bytes[col[f"{side}_buffer"][first], col["rank"][has]]
    total[col["kind"] == Kind.compute] = 0
    return total


@cache
def blas_functions() -> tuple[int, int]:
    """Addresses of SciPy's sgemm and dgemm (its Cython interface to the BLAS that it ships)."""
    import ctypes

    from scipy.linalg import cython_blas

    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]

    def address(name: str) -> int:
        capsule = cython_blas.__pyx_capi__[name]
        return int(api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule)) or 0)

    return address("sgemm"), address("dgemm")


def _matmul_shape(program: Program, rank: int, kernel: int, arrays: dict[str, Array]) -> tuple[int, int, int] | None:
    """(k, n, dtype) where this kernel is our row-tile product, else None: Python then."""
    if program.kernels[kernel].name != "matmul" or program.kernels[kernel].accumulate:
        return None
    col = program.columns
    mine = (col["kind"] == Kind.compute) & (col["call"] == kernel) & (col["rank"] == rank)
    rows = np.flatnonzero(mine)
    if not len(rows):
        return None
    op = program.op(int(rows[0]))
    a, b, c = arrays[op.reads[0].buffer], arrays[op.reads[1].buffer], arrays[op.writes[0].buffer]
    if a.ndim != 2 or b.shape[1:] != (a.shape[1], c.shape[1]) or len({a.dtype, b.dtype, c.dtype}) != 1:
        raise RunError("matmul shapes or dtypes disagree", found=f"{a.shape} {b.shape[1:]} -> {c.shape}, {a.dtype}")
    if a.dtype.name not in DTYPES[:4]:
        raise RunError(f"matmul has no {a.dtype} kernel", hint="float16, bfloat16, float32 or float64")
    return a.shape[1], b.shape[2], DTYPES.index(a.dtype.name)


def _memory(array: Array) -> tuple[int, int, int]:
    slot_bytes = int(np.prod(array.shape[1:], dtype=np.int64)) * array.itemsize
    return array.ctypes.data, slot_bytes, DTYPES.index(array.dtype.name)


def _view(arrays: dict[str, Array], region: Any) -> Array:
    return arrays[region.buffer][region.offset : region.offset + region.count]
