"""Candidates: every schedule worth simulating, and what the simulation says of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.collective import Family as AllReduce
from dovetail.core import CostError
from dovetail.cost import Prices
from dovetail.ir import Kind, Program
from dovetail.plan.optimum import optimal
from dovetail.plan.task import Task
from dovetail.plan.tiles import Reading, Tiling, mc2, serial, uniform
from dovetail.sim import simulate
from dovetail.timeline import Timeline

FAMILIES = ("serial", "uniform", "mc2", "optimal")  # on equal predictions the earlier one is taken
COUNTS = (2, 3, 4, 5, 6, 8, 10, 12, 16)  # of uniform tiles
MESSAGES = (64 << 10, 256 << 10, 1 << 20)  # bytes of a slice of one of our own messages
SLICES = 64  # at most, that a tile's messages are cut into
MANY_OPS = 4000  # uniform tilings by our own messages are weighed up to about so many ops
SLICED = 2  # of the best tilings of each of our own all-reduces are tried with sliced messages


@dataclass(frozen=True)
class Candidate:
    """A tiling, and by which messages each tile is reduced."""

    tiling: Tiling
    all_reduce: AllReduce
    rows_per_message: int | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for candidates that make the same Program."""
        return self.tiling.tiles, self.all_reduce, self.rows_per_message


@dataclass(frozen=True)
class Scored:
    """A candidate as a Program, its prices, and its predicted Timeline."""

    candidate: Candidate
    program: Program
    prices: Prices
    timeline: Timeline

    @property
    def family(self) -> str:
        return self.candidate.tiling.family

    @property
    def predicted_s(self) -> float:
        return self.timeline.makespan_s

    @property
    def order(self) -> tuple[float, int, int]:
        """Fastest first; as fast: simplest family, then fewest tiles. Times are rounded to a part in 10^9."""
        seconds = float(f"{self.predicted_s:.9e}")
        return seconds, FAMILIES.index(self.family), len(self.candidate.tiling.tiles)


def candidates(task: Task) -> Iterator[Candidate]:
    """Every family, by every all-reduce that the machine has costs for."""
    asked = task.options.rows_per_message
    for kind in task.kinds:
        ops_per_tile = task.ranks * 4 * task.ranks if kind != "library" else 0
        for tiling in tilings(task, kind):
            if tiling.family != "uniform" or len(tiling.tiles) * ops_per_tile <= MANY_OPS:
                yield Candidate(tiling, kind, asked if kind != "library" else None)


def tilings(task: Task, kind: AllReduce) -> Iterator[Tiling]:
    """Serial, uniform, MC² by both readings, and the optimum with and without contention."""
    m, comm_s = task.wish.m, task.comm_s(kind)
    most = task.options.max_tiles
    yield serial(m)
    for count in COUNTS:
        if count <= -(-m // task.align) and (most is None or count <= most):
            yield uniform(m, count, task.align)
    readings: tuple[Reading, ...] = ("max", "min") if task.options.reading == "max" else ("min", "max")
    rules = [mc2(m, task.k_of_rank, task.wish.n, task.compute_s, comm_s, reading=reading) for reading in readings]
    for rule in rules if rules[0].tiles != rules[1].tiles else rules[:1]:
        if most is None or len(rule.tiles) <= most:
            yield rule
    for factors in dict.fromkeys(((1.0, 1.0), _contention(task, kind))):
        yield optimal(
            m,
            task.compute_s,
            comm_s,
            align=task.align,
            floor=task.floor,
            max_count=most,
            compute_factor=factors[0],
            comm_factor=factors[1],
        )


def sliced(task: Task, scored: Iterable[Scored]) -> Iterator[Candidate]:
    """The best tilings of each of our own all-reduces again, with their messages cut."""
    if task.options.rows_per_message is not None or not task.row_bytes:
        return
    ranked = sorted(scored, key=lambda s: s.order)
    for kind in task.kinds:
        if kind == "library":
            continue
        for best in [s.candidate for s in ranked if s.candidate.all_reduce == kind][:SLICED]:
            for rows in dict.fromkeys(max(1, size // task.row_bytes) for size in MESSAGES):
                if rows < max(best.tiling.tiles, default=0) <= rows * SLICES:
                    yield Candidate(best.tiling, kind, rows)


def score(task: Task, found: Iterable[Candidate]) -> list[Scored]:
    """Each candidate emitted, priced and simulated; without those whose sizes the machine has no cost for.

    Serial is never left out: where it has no cost, CostError says what to probe.
    """
    known: dict[Any, Scored] = {}
    scored: list[Scored] = []
    for candidate in found:
        same = known.get(candidate.key)
        if same is None:
            try:
                same = _simulated(task, candidate)
            except CostError:
                if candidate.tiling.family == "serial":
                    raise
                continue
            known[candidate.key] = same
        scored.append(Scored(candidate, same.program, same.prices, same.timeline))
    return scored


def _simulated(task: Task, candidate: Candidate) -> Scored:
    program = task.program(candidate.tiling.tiles, candidate.all_reduce, candidate.rows_per_message)
    prices = task.price(program)
    return Scored(candidate, program, prices, simulate(program, prices, task.machine.name))


def _contention(task: Task, kind: AllReduce) -> tuple[float, float]:
    """How much compute and traffic slow each other, as one factor each, to guide the search; `sim` has the detail."""
    program = task.program(serial(task.wish.m).tiles, kind)
    prices = task.price(program)
    computes = program.kind == Kind.compute
    return _typical(prices.slow_by_net[computes]), _typical(prices.slow_by_compute[~computes])


def _typical(factors: NDArray[np.float64]) -> float:
    return float(np.median(factors)) if len(factors) else 1.0
