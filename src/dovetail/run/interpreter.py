"""interpreter: interpret a collective Program on host threads, as a device's kernel does with a threadblock per lane.

Channels are FIFOs in memory with one of NCCL's three protocols. Host threads and devices (`run.cuda`) share the
source of the state machine of channels and steps (native/cuda/lane.hpp).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail import _native
from dovetail.core import RunError
from dovetail.ir import RECVS, SENDS, Kind, Program, Workload, verify
from dovetail.ir.op_lists import OpLists
from dovetail.ir.proof.greedy import Greedy
from dovetail.run.arrays import Array, Arrays, allocate, numpy_dtype, workload_slots
from dovetail.run.cuda.late_trace import LateTrace
from dovetail.run.engine import DTYPES, allocate_rank, check_sizes, check_slots, timeline_of
from dovetail.run.local import fill
from dovetail.run.options import RunOptions
from dovetail.run.reduce import REDUCE_OPS, average, check_average
from dovetail.timeline import Timeline

PROTOCOLS = ("Simple", "LL", "LL128")
# By protocol: bytes of a place in a FIFO, and bytes of a slice; about as large as NCCL's.
_SIZES = {"Simple": (512 << 10, 128 << 10), "LL": (32 << 10, 32 << 10), "LL128": (120 << 10, 30 << 10)}


@dataclass(frozen=True)
class Layout:
    """How messages travel; changes no result. Slots are cut into tiles whose messages fit into about
    `place_bytes`, and all lanes run their ops once for each tile. A message travels in slices of `slice_bytes`,
    which forwarding ops pass on before the rest arrives. 0: the protocol's default. `threads`: threads per lane; on a
    device 1 means as many as keep all lanes resident.

    If only messages of other ranks, not a rank's own lanes and dependencies, order its accesses, each message is
    signalled once, as a whole, by Simple, and `protocol` is ignored. The timeline records the protocol used."""

    protocol: str = "Simple"
    place_bytes: int = 0
    slice_bytes: int = 0
    threads: int = 1

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise RunError(f"unknown protocol '{self.protocol}'", hint=f"one of {', '.join(PROTOCOLS)}")
        if min(self.place_bytes, self.slice_bytes) < 0 or not 1 <= self.threads <= 1024:
            raise RunError("layout out of range", found=str(self))

    @property
    def sizes(self) -> tuple[int, int]:
        """Bytes of a place in a FIFO, and of a slice."""
        place, piece = _SIZES[self.protocol]
        return self.place_bytes or place, self.slice_bytes or piece


def run_interpreter(
    program: Program,
    workload: Workload,
    inputs: Arrays,
    layout: Layout | None = None,
    options: RunOptions | None = None,
) -> tuple[dict[str, list[Array]], Timeline]:
    """Run `program` on host threads, one or more per lane, in the way of the kernel on a device.

    Like `execute_local`, takes inputs by rank and returns all buffers and the measured Timeline. Raises ProgramError
    for a program that `verify` refuses, RunError for unsupported ops and for a stall; it names the op at which each
    lane waits.
    """
    verify(program).raise_if_bad()
    return run_unverified(program, workload, inputs, layout, options)


def run_unverified(
    program: Program,
    workload: Workload,
    inputs: Arrays,
    layout: Layout | None = None,
    options: RunOptions | None = None,
) -> tuple[dict[str, list[Array]], Timeline]:
    """`run_interpreter` for a program that has just been verified."""
    layout, options = layout or Layout(), options or RunOptions()
    arrays = [allocate_rank(program, workload, rank) for rank in range(program.num_ranks)]
    check(program, workload, options)
    fill(program, arrays, inputs)
    bound = _native.host_interpreter(
        *image(program, workload, layout, lambda rank, buffer: int(arrays[rank][buffer].ctypes.data))
    )
    traced, stamps = LateTrace(program, lambda rank: "host thread"), options.spans or _native.trace_is_on()
    failure = bound.run(REDUCE_OPS.index(options.reduce_op), options.stall_s, layout.threads, stamps)
    if failure:
        raise stall(options, failure)
    traced.write(bound.spans)
    if options.reduce_op == "avg":
        for rank, held in enumerate(arrays):
            for name, array in held.items():
                average(program, workload, name, rank, array)
    outputs = {b.name: [held[b.name] for held in arrays] for b in program.buffers}
    meta = {"executor": "interpreter on host threads", "protocol": layout.protocol, "clock_error_s": 0.0}
    return outputs, timeline(program, workload, bound, meta)


def check(program: Program, workload: Workload, options: RunOptions) -> None:
    """Raise RunError for programs that the interpreter cannot run, before anything starts."""
    for kind, hint in (
        (Kind.compute, "run it on streams: the interpreting kernel cannot call kernels"),
        (Kind.collective, "dovetail.passes.inline_collectives replaces it by messages"),
    ):
        rows = np.flatnonzero(program.columns["kind"] == kind)
        if len(rows):
            op = program.op(int(rows[0]))
            raise RunError(f"the interpreter has no {kind.name} ops (op {op.index})", where=op.line, hint=hint)
    for slots in workload.slots.values():
        check_average(options.reduce_op, numpy_dtype(slots[0].dtype))
    for rank in range(program.num_ranks):
        slots_of = {b.name: workload_slots(workload, b.name, program.num_ranks)[rank] for b in program.buffers}
        check_slots(program, rank, {name: allocate(0, slot) for name, slot in slots_of.items()})
        if workload.sizes:
            check_sizes(program, rank, workload)


def image(program: Program, workload: Workload, layout: Layout, address: Callable[[int, str], int]) -> tuple[Any, ...]:
    """Return the arguments of the native interpreters; `address(rank, buffer)` is a buffer's address."""
    memory = []
    for rank in range(program.num_ranks):
        for buffer in program.buffers:
            slot = workload_slots(workload, buffer.name, program.num_ranks)[rank]
            size = int(np.prod(slot.shape, dtype=np.int64)) * numpy_dtype(slot.dtype).itemsize
            starts = workload.starts(buffer.name, rank)
            held = None if starts is None else starts * size
            place = address(rank, buffer.name)
            memory.append((place, size, DTYPES.index(slot.dtype), buffer.slots[rank], held))
    columns = {name: np.ascontiguousarray(column) for name, column in program.columns.items()}
    channels = [(c.src, c.dst, c.depth) for c in program.channels]
    order = legal_order(program).tolist()
    return columns, program.num_ranks, channels, memory, order, PROTOCOLS.index(layout.protocol), *layout.sizes


def legal_order(program: Program) -> NDArray[np.int64]:
    """Return rows in an order that counts messages correctly: unchanged unless lanes share an end of a channel."""
    col, lanes = program.columns, Counter[tuple[str, int]]()
    for end, kinds in (("chan_in", RECVS | {Kind.wait}), ("chan_out", SENDS | {Kind.signal})):
        rows = np.isin(col["kind"], list(kinds))
        used = np.unique(np.stack([col[end][rows], col["lane"][rows]]), axis=1)
        lanes.update((end, int(channel)) for channel in used[0])
    if max(lanes.values(), default=0) <= 1:
        return np.arange(program.num_ops)
    return np.array(Greedy(OpLists(program))().order, np.int64)


def stall(options: RunOptions, found: str) -> RunError:
    """Return the error for a stalled run."""
    first = found.strip().splitlines()[0] if found.strip() else ""
    return RunError(f"the run stalled: no lane moved for {options.stall_s:g} s; {first.strip()}", found=found)


def timeline(program: Program, workload: Workload, bound: Any, meta: dict[str, Any]) -> Timeline:
    """Return the timeline of all ops, with one span per tile of the slots; times count from the first span's start."""
    rows, start, end = (np.array(part) for part in bound.spans())
    begin = min(start, default=0.0)
    made = timeline_of(program, workload, [(rows, start - begin, end - begin)], meta)
    lanes, rounds, num_bytes, tile, piece, protocol = bound.facts()
    made.meta.update(
        protocol=PROTOCOLS[protocol],
        lanes=lanes,
        rounds=rounds,
        fifo_bytes=num_bytes,
        tile_bytes=tile,
        slice_bytes=piece,
    )
    made.columns["num_bytes"] = made.columns["num_bytes"] // rounds
    return made
