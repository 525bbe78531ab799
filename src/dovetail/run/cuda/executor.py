"""executor: run jobs on one CUDA device, with all ranks virtual, or one rank real and its peers in host memory."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.core import RunError
from dovetail.ir import Agreement, Slot
from dovetail.run.arrays import Array, random_slots
from dovetail.run.check import check_results
from dovetail.run.cuda.device import DeviceMemory, Gpu
from dovetail.run.cuda.runs import ONE_RANK, OneRank, StreamsOptions, StreamsRun, fill, outputs
from dovetail.run.executor import Executor
from dovetail.run.job import Job, JobResult, Outcome, Variant, run_rounds
from dovetail.timeline import Timeline
from dovetail.trace import interval

Inputs = dict[str, Sequence[Array]]
_Key = tuple[str, int, int, Slot]  # buffer, rank, number of slots, slot
PERIOD = 1_000_003  # elements; a prime number, so that rows and tiles of repeated data differ


@dataclass
class CudaExecutor(Executor):
    """Runs jobs on streams of device `index`, with all ranks virtual.

    With `more` devices ranks are distributed round robin, and messages are copies from device to device. With `real`,
    only that rank runs, and its peers' messages lie in pinned host memory: timelines have the label "measured, one
    rank, peers emulated in host memory". The library's collectives are plain copies and sums here. Raises
    EnvironmentFault if there is no device.
    """

    index: int = 0
    options: StreamsOptions = field(default_factory=StreamsOptions)
    real: int | None = None
    more: tuple[int, ...] = ()
    buffers_early_sends: bool = False  # messages are copied directly: a send waits for its receive
    _gpu: Gpu | None = field(default=None, repr=False)
    _kept: _Kept | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.more and self.real is not None:
            raise RunError("one real rank needs one device", hint="give real, or more devices")

    @property
    def gpu(self) -> Gpu:
        """The device, opened when first used."""
        if self._gpu is None:
            self._gpu = Gpu(self.index)
        return self._gpu

    @cached_property
    def others(self) -> tuple[Gpu, ...]:
        """The devices of `more`, opened when first used."""
        return tuple(Gpu(index) for index in self.more)

    @property
    def port(self) -> str | None:
        """One real rank exchanges all its messages with the host through one connection."""
        return None if self.real is None else "pcie"

    def execute_unverified(self, job: Job) -> JobResult:
        """`execute` for a job whose Programs have just been verified."""
        if self._kept is None or self._kept.seed != job.seed:
            self._kept = _Kept((self.gpu, *self.others), job.seed)
        bound = {variant.name: _Bound(self, self._kept, variant) for variant in job.variants}
        ran = run_rounds(job, lambda variant, index: bound[variant.name].once(index), time.monotonic)
        outcomes = [bound[v.name].outcome(job, ran.seconds[:, i], ran.kept) for i, v in enumerate(job.variants)]
        return JobResult(tuple(outcomes), len(ran.seconds), ran.disturbed, self.facts())

    def facts(self) -> dict[str, Any]:
        """Return facts of host and device, for provenance."""
        about = self.gpu.facts()
        label: dict[str, Any] = {} if self.real is None else {"label": ONE_RANK}
        label |= {"devices": [self.index, *self.more]} if self.more else {}
        how = {"copies": self.options.copies, "graph": self.options.graph, **label}
        cores = len(os.sched_getaffinity(0))
        return {"host": platform.node(), "cpu": about["device"], "mpi": "", "cores": cores, **about, **how}


class _Kept:
    """Inputs of one seed, on the host and on the device, shared by all variants and jobs."""

    def __init__(self, gpus: tuple[Gpu, ...], seed: int) -> None:
        self.gpus, self.seed = gpus, seed
        self._host: dict[Any, Array] = {}
        self._device: dict[Any, Any] = {}

    def inputs(self, variant: Variant) -> Inputs:
        """Return the initial inputs of every rank."""
        return {
            buffer.name: _Drawn(self, self._keys(variant, buffer.name))
            for buffer in variant.program.buffers
            if buffer.role == "input"
        }

    def lent(self, variant: Variant) -> _Lent:
        """Return the inputs on the device that no op of a variant writes."""
        program = variant.program
        owned = {program.buffers[row].name for row in np.unique(program.columns["write_buffer"])}
        names = [buffer.name for buffer in program.buffers if buffer.role == "input" and buffer.name not in owned]
        keys = {name: self._keys(variant, name) for name in names}
        return _Lent(self, {(name, rank): key for name, each in keys.items() for rank, key in enumerate(each)})

    def _keys(self, variant: Variant, name: str) -> list[_Key]:
        workload, slots = variant.workload, variant.program.buffer(name).slots
        return [
            (name, rank, workload.length(name, rank, n), workload.slots[name][rank]) for rank, n in enumerate(slots)
        ]

    def array(self, name: str, rank: int, length: int, slot: Slot) -> Array:
        key = (name, rank, length, slot)
        if key not in self._host:
            number = int.from_bytes(name.encode(), "little") % (1 << 32)
            self._host[key] = drawn(np.random.default_rng([self.seed, rank, number]), length, slot)
        return self._host[key]

    def block(self, key: _Key) -> Any:
        if key not in self._device:
            array, gpu = self.array(*key), self.gpus[key[1] % len(self.gpus)]
            self._device[key] = gpu.allocate(array.nbytes)
            gpu.upload(int(self._device[key].address), array)
        return self._device[key]


class _Drawn(Sequence[Array]):
    """A buffer's arrays by rank, each made when first used: a run of one real rank does not need the others."""

    def __init__(self, kept: _Kept, keys: list[_Key]) -> None:
        self.kept, self.keys = kept, keys

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, rank: Any) -> Any:
        return self.kept.array(*self.keys[rank])


class _Lent(Mapping[tuple[str, int], Any]):
    """Blocks of inputs on the device, by buffer and rank, each made when first used."""

    def __init__(self, kept: _Kept, keys: dict[tuple[str, int], _Key]) -> None:
        self.kept, self.keys_of = kept, keys

    def __len__(self) -> int:
        return len(self.keys_of)

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(self.keys_of)

    def __contains__(self, place: object) -> bool:
        return place in self.keys_of

    def __getitem__(self, place: tuple[str, int]) -> Any:
        return self.kept.block(self.keys_of[place])


def drawn(rng: np.random.Generator, num_slots: int, slot: Slot) -> Array:
    """Return random slots like `random_slots`; long arrays repeat their first PERIOD elements, which takes less time.

    >>> long = drawn(np.random.default_rng(0), 3, Slot((PERIOD,), "int8"))
    >>> long.shape == (3, PERIOD), bool((long[0] == long[2]).all())
    (True, True)
    """
    if num_slots * int(np.prod(slot.shape, dtype=np.int64)) <= PERIOD:
        return random_slots(rng, num_slots, slot)
    return np.resize(random_slots(rng, PERIOD, slot._replace(shape=())), (num_slots, *slot.shape))


class _Bound:
    """One variant, bound to the device for repeated runs."""

    def __init__(self, executor: CudaExecutor, kept: _Kept, variant: Variant) -> None:
        self.variant, self.real = variant, executor.real
        self.inputs, lent = kept.inputs(variant), kept.lent(variant)
        self.alone: OneRank | None = None
        about = executor.gpu, variant.program, variant.workload
        reduce_op = variant.options.reduce_op
        if executor.real is None:
            memory = DeviceMemory(*about, lent=lent, more=executor.others)
            self.run = StreamsRun(memory, executor.options, reduce_op, variant.options.spans)
            fill(memory, self.inputs)
        else:
            self.alone = OneRank(*about, self.inputs, executor.real, executor.options, reduce_op, lent, variant.check)
            self.run = self.alone.run
        self.timelines: list[Timeline] = []

    def once(self, index: int) -> float:
        """Return the seconds of a run in round `index`: the mean of `repeats` back-to-back runs."""
        repeats = self.variant.options.repeats
        with interval(self.variant.name, index):
            seconds = sum(self.run.run() for _ in range(repeats)) / repeats
        if self.variant.options.spans:
            self.timelines.append(self.run.timeline())
        return seconds

    def outcome(self, job: Job, seconds: NDArray[np.float64], kept: list[int]) -> Outcome:
        timelines = [self.timelines[index] for index in kept] if self.variant.options.spans else []
        if timelines and not job.keep_all:
            timelines = [timelines[int(np.argmin(np.abs(seconds - np.median(seconds))))]]
        found = self.check() if self.variant.check else None
        checked = (found.max_rel_error, found.tolerance, found.num_wrong) if found else ()
        return Outcome(self.variant.name, tuple(map(float, seconds)), tuple(timelines), *checked)

    def check(self) -> Agreement:
        """Run once from fresh inputs, then check the results."""
        fill(self.run.memory, self.inputs)
        self.run.run()
        left = outputs(self.run.memory, self.variant.options)
        ranks = enumerate(self.run.memory.ranks)
        held = {rank: {name: parts[i] for name, parts in left.items()} for i, rank in ranks}
        return check_results(self.variant, held, lambda name, rank: self.inputs[name][rank])
