"""worker: one rank of a job. Binds the job's Programs, runs the rounds, and sends the results to rank 0."""

from __future__ import annotations

import math
import os
import pickle
import platform
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, lru_cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail import _native
from dovetail.core import RunError, read_own, save_json
from dovetail.ir import Agreement, Buffer, Kind, Slot, kernel_calls, op_works
from dovetail.run.arrays import Array, allocate, poison, random_slots
from dovetail.run.check import check_results
from dovetail.run.engine import allocate_rank, bind, bind_script, run_engines, timeline_of
from dovetail.run.job import EACH_S, Job, JobResult, Outcome, Variant, run_rounds
from dovetail.run.load import Meter
from dovetail.run.options import LEVELS, SHARED, RunOptions
from dovetail.run.ranks.exchange import Exchange
from dovetail.run.ranks.heartbeat import Pulse
from dovetail.run.ranks.world import World
from dovetail.run.reduce import REDUCE_OPS
from dovetail.run.shared.arrays import lent_memory, may_stay
from dovetail.timeline import Timeline
from dovetail.trace import init, interval
from dovetail.trace.clocks import Line, RankClock, Reader, clocks_to_first

SETUP_LIMIT_S = 120.0
CHECK_LIMIT_S = 300.0
GROWTH = 4  # factor by which repeats grow until they last EACH_S
LONGEST = 10  # times EACH_S: repeats that last longer do not grow
MOST_BY_REFERENCE = 2e9  # operations of a reference program: a few seconds by NumPy
KEPT = 4  # inputs of other ranks that are cached while a product is checked: each is as large as a rank's own


def serve(folder: str, world: World, pulse: Pulse, trace: str | None = None) -> int:
    """Run this rank's part of the job in `folder`. Return 0, or 3 after a failure, which is written to the folder.

    `trace`: a folder for a trace of its ops. A trace that is already being recorded gets them, too.
    """
    place = Path(folder)
    save_json(place / f"ready.{world.rank}.json", {"pid": os.getpid(), "host": platform.node()})
    try:
        if trace is not None:
            init(trace)
            _native.trace_rank(world.rank, world.size)
        job: Job = pickle.loads(read_own(place / "job.pkl"))
        if world.size != job.num_ranks:
            raise RunError(f"the job has {job.num_ranks} ranks, the launcher started {world.size}")
        rank = _Rank(world, job, place)
        pulse.last_words, pulse.doing = rank.save_latest, rank.doing
        result = rank.run()
        if world.rank == 0:
            (place / "result.part").write_bytes(pickle.dumps(result))
            (place / "result.part").replace(place / "result.pkl")
        world.barrier(SETUP_LIMIT_S)
    except Exception as error:
        write_failure(place, world.rank, error)
        with suppress(Exception):  # save what it measured before another rank failed
            pulse.last_words()
        world.abort(3)
        return 3
    world.finalize()
    return 0


def write_failure(place: Path, rank: int, error: Exception) -> None:
    """Write the reason to a file for the parent."""
    text = str(error) if isinstance(error, RunError) else f"{type(error).__name__}: {error}"
    document = {"rank": rank, "reason": text, "traceback": traceback.format_exc()}
    save_json(place / f"failure.{rank}.json", document)


class Spans(NamedTuple):
    """One round on one rank, on its own clock: when it began, and each op's row, start and end (NaN: not reached)."""

    begin_s: float
    rows: Any
    start_s: Any
    end_s: Any

    def on(self, line: Line) -> Spans:
        """Return the spans on another clock."""
        begin_s, start_s, end_s = (
            line(np.asarray(values) * 1e9) * 1e-9 for values in (self.begin_s, self.start_s, self.end_s)
        )
        return Spans(float(begin_s), self.rows, start_s, end_s)

    def since(self, zero_s: float) -> tuple[Any, Any, Any]:
        """Return rows, starts and ends, in seconds since `zero_s`."""
        return self.rows, np.asarray(self.start_s) - zero_s, np.asarray(self.end_s) - zero_s


class _Rank:
    def __init__(self, world: World, job: Job, place: Path) -> None:
        self.world, self.job, self.place = world, job, place
        self.arrays: dict[tuple[str, tuple[int, ...], str], Array] = {}
        self.latest: tuple[Variant, float] | None = None
        self.spans: dict[str, list[Spans]] = {variant.name: [] for variant in job.variants}
        self.engines = {v.name: self.bound(v) for v in job.variants}
        world.barrier(SETUP_LIMIT_S)
        self.meetings = world.meet(SETUP_LIMIT_S)
        self.clocks: list[RankClock] = []  # of all ranks, on rank 0 once the last round is over

    def bound(self, variant: Variant) -> _native.Engine | _native.Script:
        about = variant.program, self.world.rank, self.memory(variant)
        if variant.options.transport != SHARED:
            return bind(self.world.transport, *about, workload=variant.workload)
        if self.world.neighbours is None:
            raise RunError("the ranks share no memory", hint="are they on one host?")
        return bind_script(self.world.neighbours, *about, workload=variant.workload)

    def memory(self, variant: Variant) -> dict[str, Array]:
        """Return this rank's arrays for one variant. Variants share buffers of the same name, dtype and size."""
        arrays = {}
        for buffer in variant.program.buffers:
            sizes = tuple(elements_of(variant, buffer, rank) for rank in range(self.world.size))
            key = (buffer.name, sizes, dtype_of(variant, buffer))
            if key not in self.arrays:
                self.arrays[key] = self.fresh(variant, buffer)
            arrays[buffer.name] = self.arrays[key].reshape(shape_of(variant, buffer, self.world.rank))
        return arrays

    def fresh(self, variant: Variant, buffer: Buffer) -> Array:
        count, slot = elements_of(variant, buffer, self.world.rank), Slot((), dtype_of(variant, buffer))
        made = self.began(variant, buffer, self.world.rank) if buffer.role == "input" else allocate(count, slot)
        computes = bool((variant.program.kind == Kind.compute).any())
        lends = computes and self.world.lends and may_stay(variant.program)
        memory = lent_memory(self.world, made.nbytes) if lends else None  # as arrays of `dovetail.empty`
        if memory is None:
            return made
        lent: Array = memory.view(made.dtype)
        lent[...] = made
        return lent

    def began(self, variant: Variant, buffer: Buffer, rank: int) -> Array:
        """Return the initial contents of an input buffer of any rank, flat."""
        name = int.from_bytes(buffer.name.encode(), "little") % (1 << 32)
        signed = variant.workload.slots[buffer.name][0].signed
        count, slot = elements_of(variant, buffer, rank), Slot((), dtype_of(variant, buffer), signed)
        return random_slots(np.random.default_rng([self.job.seed, rank, name]), count, slot)

    def run(self) -> JobResult | None:
        meter, apart_s = Meter(self.world, SETUP_LIMIT_S), list[float]()
        meets = self.world.size > 1 and meter.each_has_a_core
        exchange = Exchange(self.world, self.place / "exchange", SETUP_LIMIT_S) if meets else None
        self.job = replace(self.job, variants=tuple(fitted(v, self.run_one) for v in self.job.variants))

        def disturbed() -> NDArray[np.bool_]:
            apart_s.append(exchange.seconds() if exchange else math.nan)
            return meter.disturbed()

        ran = run_rounds(self.job, self.run_one, self.common_s, disturbed)
        self.clocks = self.one_clock()
        outcomes = [self.outcome(v, ran.seconds[:, i], ran.kept) for i, v in enumerate(self.job.variants)]
        facts = self.world.gather(self.facts())
        if self.world.rank:
            return None
        about = len(ran.seconds), ran.disturbed, merge_facts(facts), meter.load()
        return JobResult(tuple(outcomes), *about, tuple(apart_s[index] for index in ran.kept))

    def one_clock(self) -> list[RankClock]:
        """Synchronise clocks a second time. Return the clocks of all ranks on rank 0, an empty list elsewhere."""
        self.meetings += self.world.meet(SETUP_LIMIT_S)
        mine = Reader(Line(), _native.trace_clock_of() or self.world.rank, self.meetings)
        found = clocks_to_first(dict(enumerate(self.world.gather(mine, SETUP_LIMIT_S))))
        return [found[rank] for rank in sorted(found)]

    def common_s(self) -> float:
        """Return the time by rank 0's clock, so that all ranks agree on whether time is up."""
        now: float = self.world.share(_native.monotonic_s(), SETUP_LIMIT_S)
        return now

    def run_one(self, variant: Variant, index: int) -> float:
        """Run a variant once; return the seconds from a barrier to the last rank's end, equal on every rank."""
        memory = self.memory(variant)
        for buffer in variant.program.buffers:
            if buffer.role != "input":
                poison(memory[buffer.name])
        engine, limit_s = self.engines[variant.name], max(20.0, 2 * variant.options.stall_s)
        self.world.barrier(limit_s)
        begin = _native.monotonic_s()
        self.latest = variant, begin
        with interval(variant.name, index):
            failure = run_bound(engine, variant.options.at(self.world.provided))
        mine_s = (_native.monotonic_s() - begin) / variant.options.repeats
        if variant.options.spans:
            self.spans[variant.name].append(Spans(begin, *engine.spans()))
        if failure:
            self.save_latest()
            raise RunError(f"variant '{variant.name}', round {index}: {failure}")
        everyone = self.world.gather(mine_s, limit_s)
        longest: float = self.world.share(max(everyone) if everyone else None, limit_s)
        return longest

    def doing(self) -> str:
        return f"in variant '{self.latest[0].name}'" if self.latest else "before its first run"

    def save_latest(self) -> None:
        """Save the spans of this rank's latest run, when the launcher ends it."""
        if self.latest:
            variant, begin_s = self.latest
            self.save_partial(variant, Spans(begin_s, *self.engines[variant.name].spans()))

    def save_partial(self, variant: Variant, spans: Spans) -> None:
        """Save a timeline of the ops that this rank had done when the run failed."""
        part = timeline_of(variant.program, variant.workload, [spans.since(spans.begin_s)], {"partial": True})
        save_json(self.place / f"partial.{self.world.rank}.json", part.to_json())

    def outcome(self, variant: Variant, seconds: Any, kept: list[int]) -> Outcome:
        timelines = self.timelines(variant, seconds, kept) if variant.options.spans else ()
        found = self.check(variant) if variant.check else None
        checked = (found.max_rel_error, found.tolerance, found.num_wrong) if found else ()
        return Outcome(variant.name, tuple(map(float, seconds)), timelines, *checked)

    def timelines(self, variant: Variant, seconds: Any, kept: list[int]) -> tuple[Timeline, ...]:
        spans = [self.spans[variant.name][index] for index in kept]
        median = self.world.share(closest_to_median(seconds, spans))
        keep = range(len(spans)) if self.job.keep_all else [median]
        gathered = self.world.gather([spans[i] for i in keep], SETUP_LIMIT_S)
        error_ns = max((clock.error_ns or 0.0 for clock in self.clocks), default=0.0)
        meta = {"executor": self.world.executor, "clock_error_s": error_ns * 1e-9, "variant": variant.name}
        on_one = [[s.on(c.line) for s in part] for part, c in zip(gathered, self.clocks, strict=True)]
        return tuple(_timeline(variant, list(parts), meta) for parts in zip(*on_one, strict=True))

    def check(self, variant: Variant) -> Agreement:
        """Run once from the initial inputs, then compare everything that post-conditions name with float64."""
        program, rank, memory = variant.program, self.world.rank, self.memory(variant)
        inputs = {buffer.name: buffer for buffer in program.buffers if buffer.role == "input"}
        for name in inputs.keys() & self.written:
            memory[name][...] = self.began(variant, inputs[name], rank).reshape(memory[name].shape)
        self.run_one(replace(variant, options=replace(variant.options, repeats=1)), -1)

        @lru_cache(maxsize=KEPT if program.kernels else None)
        def began(name: str, at: int) -> Array:
            if at == rank and name not in self.written:
                return memory[name]
            return self.began(variant, inputs[name], at).reshape(shape_of(variant, inputs[name], at))

        found = check_results(variant, {rank: memory}, began, lambda: {rank: self.reference(variant, began)})
        total = Agreement.total(self.world.gather(found, CHECK_LIMIT_S))
        shared: Agreement = self.world.share(total, CHECK_LIMIT_S)
        return shared

    def reference(self, variant: Variant, began: Callable[[str, int], Array]) -> dict[str, Array]:
        """Run the reference program of a variant and return this rank's outputs.

        It runs the kernels' reference functions, or compiled kernels if the reference functions would take too long.
        """
        assert variant.against is not None
        (program, workload), rank = variant.against, self.world.rank
        arrays = allocate_rank(program, workload, rank)
        for buffer in program.buffers:
            if buffer.role == "input":
                arrays[buffer.name][...] = began(buffer.name, rank)
        work = sum(each.flops for each in op_works(program, workload).values())
        references = kernel_calls(workload) if work <= MOST_BY_REFERENCE else None
        engine = bind(self.world.transport, program, rank, arrays, references, workload=workload)
        (failure,) = run_engines([engine], replace(variant.options, repeats=1, stall_s=CHECK_LIMIT_S))
        if failure:
            raise RunError(f"the reference program failed: {failure}")
        return {buffer.name: arrays[buffer.name] for buffer in program.buffers if buffer.role == "output"}

    @cached_property
    def written(self) -> set[str]:
        """Names of buffers that a variant's ops write: a run may change their initial contents."""
        programs = [variant.program for variant in self.job.variants]
        return {p.buffers[row].name for p in programs for row in np.unique(p.columns["write_buffer"])}

    def facts(self) -> dict[str, Any]:
        model = next((line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")), "unknown")
        return {
            "host": platform.node(),
            "cpu": model,
            "mpi": self.world.library,
            "thread_level": LEVELS[self.world.provided],
            "cores": len(os.sched_getaffinity(0)),
            "blas_threads": os.environ.get("OPENBLAS_NUM_THREADS", ""),
        }


def fitted(variant: Variant, run_one: Callable[[Variant, int], float]) -> Variant:
    """Return the variant with only as many repeats as last EACH_S. `run_one`: returns seconds of a run.

    Calls in a row may take a thousand times longer than one alone: ranks that outnumber the cores, and that spin
    without yielding, wait for the scheduler. So repeats grow from 1. One call alone may take as long, because other
    ranks still spin in the barrier before it: repeats go on growing while they cost little.

    >>> asked = Variant("a", None, None, RunOptions(repeats=500))
    >>> ways = (lambda n: 1e-6, lambda n: 1e-4, lambda n: 1.0, lambda n: 5e-3 if n == 1 else 0.1, lambda n: 5e-3 / n)
    >>> [fitted(asked, lambda v, _: way(v.options.repeats)).options.repeats for way in ways]
    [500, 64, 1, 1, 500]
    >>> once = replace(asked, options=RunOptions())
    >>> fitted(once, None) == once  # not run: its spans are counted by round
    True
    """
    options = variant.options
    most, count, spent_s = options.repeats, 0, 0.0
    while 1 < most > count and spent_s < LONGEST * EACH_S:
        more = min(GROWTH * count, most) if count else 1
        found = replace(variant, options=replace(options, repeats=more, spans=False))
        total_s = more * run_one(found, -1)
        if spent_s >= EACH_S and total_s > spent_s * GROWTH / 2:
            break
        count, spent_s = more, total_s
    return replace(variant, options=replace(options, repeats=max(count, 1)))


def run_bound(bound: _native.Engine | _native.Script, options: RunOptions) -> str:
    """Run an engine or script to its end. Return why it failed, or an empty string."""
    if isinstance(bound, _native.Script):
        return bound.run(options.stall_s, REDUCE_OPS.index(options.reduce_op), options.repeats)
    (failure,) = run_engines([bound], options)
    return failure


def elements_of(variant: Variant, buffer: Buffer, rank: int) -> int:
    """Return how many elements a rank holds in a buffer."""
    return prod(shape_of(variant, buffer, rank))


def dtype_of(variant: Variant, buffer: Buffer) -> str:
    """Return the dtype of a buffer's slots."""
    return variant.workload.slots[buffer.name][0].dtype


def shape_of(variant: Variant, buffer: Buffer, rank: int) -> tuple[int, ...]:
    """Return the shape of a buffer: its slots, then the shape of a slot; flat if slots differ in size."""
    workload = variant.workload
    return workload.length(buffer.name, rank, buffer.slots[rank]), *workload.slots[buffer.name][rank].shape


def _timeline(variant: Variant, spans: list[Spans], meta: dict[str, Any]) -> Timeline:
    zero_s = min(s.begin_s for s in spans)
    return timeline_of(variant.program, variant.workload, [s.since(zero_s) for s in spans], meta)


def closest_to_median(seconds: Any, spans: list[Spans]) -> int:
    """Return the round whose end on this rank is nearest to the median makespan."""
    ends = np.array([np.max(s.end_s, initial=s.begin_s) - s.begin_s for s in spans])
    return int(np.argmin(np.abs(ends - np.median(seconds))))


def merge_facts(facts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return for each fact its value if it is equal on all ranks, else the list of values by rank."""
    merge: Callable[[list[Any]], Any] = lambda values: values[0] if len(set(values)) == 1 else values  # noqa: E731
    return {key: merge([f[key] for f in facts]) for key in facts[0]}


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
