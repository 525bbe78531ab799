"""runs: run Programs on a CUDA device, with lanes as streams, or as threadblocks of an interpreting kernel.

All ranks are virtual, on one device; or one rank is real. Then its peers' messages are in host memory: the device
copies them from there, and its own messages to there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail import _native
from dovetail.core import RunError
from dovetail.ir import Kind, Program, Workload, verify
from dovetail.run.arrays import Array, Arrays, numpy_dtype
from dovetail.run.cuda.device import DeviceMemory, Gpu, native
from dovetail.run.cuda.late_trace import LateTrace
from dovetail.run.cuda.streams import Lowering
from dovetail.run.engine import DTYPES, timeline_of
from dovetail.run.interpreter import Layout, image, stall, timeline
from dovetail.run.interpreter import check as check_interpreted
from dovetail.run.options import RunOptions
from dovetail.run.reduce import REDUCE_OPS, average, check_average
from dovetail.timeline import Timeline

WARP = 32
ONE_RANK = "measured, one rank, peers emulated in host memory"


@dataclass(frozen=True)
class StreamsOptions:
    """How streams execute a program; does not change results.

    `graph`: as one CUDA graph, captured once. `copies`: by the driver's "memcpy"; by "overlapping", which asks the
    driver to prefer a copy engine and works outside graphs only; or by a "kernel" of `copy_blocks` threadblocks. Moves
    that need a kernel (reductions, scattered regions) have `move_blocks`. `processors`: multiprocessors that products
    may use (0: all).
    """

    graph: bool = True
    copies: str = "memcpy"
    copy_blocks: int = 16
    move_blocks: int = 32
    processors: int = 0

    def __post_init__(self) -> None:
        if self.copies not in ("memcpy", "overlapping", "kernel"):
            raise RunError(f"unknown way to copy '{self.copies}'", hint="memcpy, overlapping or kernel")
        if min(self.copy_blocks, self.move_blocks) < 1 or self.processors < 0:
            raise RunError("options of streams out of range", found=str(self))
        if self.graph and self.copies == "overlapping":
            raise RunError("copies by a copy engine cannot be part of a graph", hint="graph=False")


@dataclass
class StreamsRun:
    """A program bound to streams and memory, for repeated runs. It must have passed `verify`."""

    memory: DeviceMemory
    options: StreamsOptions = field(default_factory=StreamsOptions)
    reduce_op: str = "sum"
    stamps: bool = True
    real: int | None = None
    listens: int | None = None
    heard: dict[tuple[int, int], int] = field(default_factory=dict)
    bound: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        program, workload, how = self.memory.program, self.memory.workload, self.options
        if self.real is not None and bool(np.isin(program.columns["kind"], [Kind.put, Kind.get]).any()):
            hint = "dovetail.passes.two_sided turns them into messages"
            raise RunError("a single rank has no peers for puts and gets", hint=hint)
        for slots in workload.slots.values():
            check_average(self.reduce_op, numpy_dtype(slots[0].dtype))
        one = self.real, self.listens, self.heard
        lower = Lowering(program, workload, self.memory.homes(), self.reduce_op, *one)
        commands, rank_of = lower()
        gpus = self.memory.gpus
        blas = [gpu.blas for gpu in gpus] if any(command.what == "product" for command in commands) else []
        blocks = how.copy_blocks if how.copies == "kernel" else 0
        seat_of = [self.memory.seat_of(rank) for rank in rank_of]
        about = [gpu.device for gpu in gpus], blas, seat_of, [tuple(command) for command in commands]
        overlapping = how.copies == "overlapping"
        stamps = self.stamps or (self.listens is None and _native.trace_is_on())
        self.bound = native().streams(*about, blocks, how.move_blocks, how.processors, overlapping, stamps)
        self._traced = LateTrace(program, partial(place_title, self.memory, self.real))

    def run(self) -> float:
        """Run once; return the seconds on the device."""
        self.memory.settle()
        if self.options.graph:
            self.bound.replay()
        else:
            self.bound.run()
        if self.listens is None:
            self._traced.write(self.spans)
        return float(self.bound.total_s())

    @property
    def enqueue_s(self) -> float:
        """Seconds that the calling thread needed to enqueue the last run."""
        return float(self.bound.enqueue_s())

    def spans(self) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """Return rows of the last run's ops, and the start and end of each, in seconds."""
        rows, start, end = (np.array(part) for part in self.bound.spans())
        found, which = np.unique(rows.astype(np.int64), return_inverse=True)
        first, last = np.full(len(found), np.inf), np.full(len(found), -np.inf)
        np.minimum.at(first, which, start)
        np.maximum.at(last, which, end)
        return found, first, last

    def timeline(self) -> Timeline:
        about = {"executor": "streams on a CUDA device", "copies": self.options.copies, "graph": self.options.graph}
        if self.real is not None:
            about["label"] = ONE_RANK
        if len(self.memory.gpus) > 1:
            about["devices"] = [gpu.index for gpu in self.memory.gpus]
        meta = {**about, **self.memory.gpu.facts(), "clock_error_s": 0.0}
        return timeline_of(self.memory.program, self.memory.workload, [self.spans()], meta)


def run_streams(
    program: Program,
    workload: Workload,
    inputs: Arrays,
    options: RunOptions | None = None,
    how: StreamsOptions | None = None,
    gpu: Gpu | Sequence[Gpu] | None = None,
) -> tuple[dict[str, list[Array]], Timeline]:
    """Run `program` on a device, with all its ranks virtual, or on several devices that share its ranks. Like
    `execute_local`, it takes and returns host arrays.

    Raises ProgramError for a program that `verify` refuses, RunError for ops that streams do not support,
    EnvironmentFault if there is no device or too little memory.
    """
    verify(program).raise_if_bad()
    options = options or RunOptions()
    first, *more = [gpu or Gpu()] if gpu is None or isinstance(gpu, Gpu) else gpu
    memory = DeviceMemory(first, program, workload, more=tuple(more))
    bound = StreamsRun(memory, how or StreamsOptions(), options.reduce_op, options.spans)
    fill(memory, inputs)
    bound.run()
    return outputs(memory, options), bound.timeline()


def run_interpreted(
    program: Program,
    workload: Workload,
    inputs: Arrays,
    layout: Layout | None = None,
    options: RunOptions | None = None,
    gpu: Gpu | None = None,
) -> tuple[dict[str, list[Array]], Timeline]:
    """Run `program` on a device by a kernel that interprets it, one threadblock per lane (see `run.interpreter`)."""
    verify(program).raise_if_bad()
    options = options or RunOptions()
    memory = DeviceMemory(gpu or Gpu(), program, workload)
    bound = InterpretedRun(memory, layout or Layout(), options)
    fill(memory, inputs)
    bound.run()
    return outputs(memory, options), bound.timeline()


@dataclass
class InterpretedRun:
    """A collective program bound to the kernel that interprets it, for repeated runs."""

    memory: DeviceMemory
    layout: Layout = field(default_factory=Layout)
    options: RunOptions = field(default_factory=RunOptions)
    bound: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        memory, threads = self.memory, self.layout.threads if self.layout.threads > 1 else 0
        if len(memory.gpus) > 1:
            raise RunError("the interpreter runs on one device", hint="run_streams takes several")
        check_interpreted(memory.program, memory.workload, self.options)
        made = image(memory.program, memory.workload, self.layout, memory.address)
        self.bound = native().device_interpreter(memory.gpu.device, -(-threads // WARP) * WARP, *made)
        self._traced = LateTrace(memory.program, partial(place_title, memory, None))

    def run(self) -> float:
        """Run once; return the kernel's seconds. Raises RunError for a stall, naming the op that each lane waits at."""
        self.memory.settle()
        number = REDUCE_OPS.index("sum" if self.options.reduce_op == "avg" else self.options.reduce_op)
        failure = self.bound.run(number, self.options.stall_s, self.options.spans or _native.trace_is_on())
        if failure:
            raise stall(self.options, failure)
        self._traced.write(self.bound.spans)
        return float(self.bound.total_s())

    def timeline(self) -> Timeline:
        meta = {"executor": "interpreter on a CUDA device", "protocol": self.layout.protocol, "clock_error_s": 0.0}
        meta["threads"] = self.bound.threads()
        return timeline(self.memory.program, self.memory.workload, self.bound, meta | self.memory.gpu.facts())


def place_title(memory: DeviceMemory, real: int | None, rank: int) -> str:
    """Return the name of a rank's place for the titles of lanes in traces."""
    place = f"CUDA device {memory.gpu_of(rank).index}"
    return place if real is None else f"{place} ({ONE_RANK})"


def fill(memory: DeviceMemory, inputs: Arrays) -> None:
    """Poison all buffers of the memory's ranks, and copy the inputs into theirs."""
    for buffer in memory.program.buffers:
        parts = inputs.get(buffer.name, ())
        if buffer.role == "input" and len(parts) != memory.program.num_ranks:
            raise RunError(f"no array for input buffer '{buffer.name}'", hint="give one array for each rank")
        for rank in memory.ranks:
            if (buffer.name, rank) in memory.lent:
                continue
            if buffer.role == "input":
                memory.put(buffer.name, rank, parts[rank])
            else:
                memory.poison(buffer.name, rank)


def outputs(memory: DeviceMemory, options: RunOptions) -> dict[str, list[Array]]:
    """Copy all buffers to the host, by rank."""
    found = {b.name: [memory.fetch(b.name, rank) for rank in memory.ranks] for b in memory.program.buffers}
    if options.reduce_op == "avg":
        for name, held in found.items():
            for rank, array in zip(memory.ranks, held, strict=True):
                average(memory.program, memory.workload, name, rank, array)
    return found


@dataclass
class OneRank:
    """One rank of a program on the device, with its peers' messages in host memory.

    If it `listens`, all ranks first run once on the device, virtually, and the messages to this rank are recorded in
    pinned host memory; that run must fit on the device. Otherwise messages are random elements: times are the same,
    results are meaningless. Then only this rank runs: its products and moves, and each message as a copy between device
    and host, on its own lane. Peers are always ready: their time is not measured.
    """

    gpu: Gpu
    program: Program
    workload: Workload
    inputs: Arrays
    rank: int = 0
    options: StreamsOptions = field(default_factory=StreamsOptions)
    reduce_op: str = "sum"
    lent: Mapping[tuple[str, int], Any] = field(default_factory=dict, repr=False)
    listens: bool = True
    run: StreamsRun = field(init=False, repr=False)
    _heard: list[Any] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        heard = self._listen() if self.listens else {}
        memory = DeviceMemory(self.gpu, self.program, self.workload, lent=self.lent, ranks=(self.rank,))
        self.run = StreamsRun(memory, self.options, self.reduce_op, True, self.rank, None, heard)
        fill(memory, self.inputs)

    def _listen(self) -> dict[tuple[int, int], int]:
        """Run all ranks once, and record the messages to this rank."""
        heard: dict[tuple[int, int], int] = {}
        everyone = DeviceMemory(self.gpu, self.program, self.workload, lent=self.lent, keep_host=self._heard)
        how = replace(self.options, graph=False)
        listening = StreamsRun(everyone, how, self.reduce_op, False, None, self.rank, heard)
        fill(everyone, self.inputs)
        listening.run()
        return heard


def plain_sum(gpu: Gpu, num_bytes: int, blocks: int, dtype: str = "float32", repeats: int = 5) -> float:
    """Return the seconds of a kernel that adds two arrays of `num_bytes`: a lower bound for reductions of that size."""
    places = [gpu.allocate(num_bytes) for _ in range(2)]
    size = numpy_dtype(dtype).itemsize
    a, b = ((int(place.address), 0, size, 0, num_bytes // size, 0, 1) for place in places)
    command: tuple[Any, ...] = (0, 0, [], "move", (a, a, b, DTYPES.index(dtype), 0))
    bound = native().streams([gpu.device], [], [0], [command], 0, blocks, 0, False, False)
    times = []
    for _ in range(repeats + 1):
        bound.run()
        times.append(bound.total_s())
    return float(np.median(times[1:]))
