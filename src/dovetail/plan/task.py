"""Task: a wish on a machine with everything settled that a search for a plan needs to know."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.collective import FAMILIES, family
from dovetail.collective import Family as AllReduce
from dovetail.core import CostError, PlanError, WishError, parse_count
from dovetail.cost import CostModel, Prices, price
from dovetail.ir import Kind, Program, dtype_bytes
from dovetail.machine import Machine
from dovetail.matmul import MatmulAllReduce, program
from dovetail.plan.tiles import ALIGN, READINGS, Reading, Seconds
from dovetail.sim import simulate

SAMPLES = 10  # sizes at which an all-reduce of our own is simulated to learn its curve
OURS_RANKS = 16  # beyond, programs of our own messages grow past what a search can weigh in a second
KINDS: tuple[AllReduce, ...] = FAMILIES


@dataclass(frozen=True)
class Options:
    """What the caller of `plan` may ask for; None leaves it to the search."""

    schedule: str = "auto"
    reading: Reading = "max"
    contention: float | None = None
    floor: int | None = None
    align: int | None = None
    max_tiles: int | None = None
    all_reduce: str = "auto"
    rows_per_message: int | None = None
    noise: float = 0.0
    extrapolate: bool = False


@dataclass(frozen=True)
class Task:
    """`wish` on `ranks` ranks of `machine`, by any all-reduce of `kinds`; tiles of at least `floor` rows, a multiple
    of `align` apart. `notes` are sentences for the user."""

    wish: MatmulAllReduce
    machine: Machine
    ranks: int
    options: Options
    kinds: tuple[AllReduce, ...]
    floor: int
    align: int
    notes: tuple[str, ...]

    @staticmethod
    def of(wish: MatmulAllReduce, machine: Machine, ranks: int | None, options: Options) -> Task:
        """Settle what was left open; WishError or PlanError where it cannot be."""
        count = machine.ranks if ranks is None else parse_count(ranks, "ranks", least=1)
        if count > machine.ranks:
            found = f"machine '{machine.name}' has {machine.ranks}"
            raise WishError(f"the wish is for {count} ranks", found=found, hint="plan for fewer ranks")
        _check_options(options)
        wish, notes = _whole_k(wish, machine, count)
        align = options.align or _usual_align(wish.m)
        task = Task(wish, machine, count, options, (), 1, align, notes)
        floor = options.floor if options.floor is not None else task.least_known_rows()
        kinds, more = _kinds(task)
        return replace(task, kinds=kinds, floor=max(1, min(floor, wish.m)), notes=(*notes, *more))

    @property
    def model(self) -> CostModel:
        return CostModel.of(self.machine)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of the result."""
        return self.wish.n * dtype_bytes(self.wish.dtype)

    @property
    def k_of_rank(self) -> int:
        """Columns of A on the rank that has most."""
        return -(-self.wish.k // self.ranks)

    def program(self, tiles: tuple[int, ...], kind: AllReduce, rows_per_message: int | None = None) -> Program:
        return program(self.wish, self.ranks, tiles, family(kind), rows_per_message)

    def price(self, emitted: Program) -> Prices:
        workload = self.wish.workload(self.ranks)
        return price(emitted, self.machine, workload, self.options.contention, extrapolate=self.options.extrapolate)

    def compute_s(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        """Seconds of the product of `rows` rows on the slowest rank; below the measured range, those of its start."""
        works = set(self.wish.workload(self.ranks).kernels["matmul"])
        each = [self.model.kernel_seconds(work.key, rows, work.flops, extrapolate=True) for work in works]
        slowest: NDArray[np.float64] = np.maximum.reduce(each)
        return slowest

    def comm_s(self, kind: AllReduce) -> Seconds:
        """Seconds of the all-reduce of a tile, by its rows: the library's curve, or ours as simulated."""
        if kind != "library":
            return self._simulated_comm_s(kind)
        key, factor = self.library_key, self.options.contention or 1.0
        return lambda rows: factor * self.model.seconds(key, np.asarray(rows) * self.row_bytes, extrapolate=True)

    @property
    def library_key(self) -> str:
        return f"all_reduce:{self.ranks}" if self.ranks > 1 else "copy"

    def least_known_rows(self) -> int:
        """The fewest rows whose product was measured, 1 where the machine is asked for FLOP only."""
        least = 1
        for work in set(self.wish.workload(self.ranks).kernels["matmul"]):
            name = self.model.kernel_curve(work.key)
            if name.startswith("kernel:") and not self.options.extrapolate:
                least = max(least, int(np.ceil(self.model.curve(name).low)))
        return least

    @cached_property
    def _curves(self) -> dict[AllReduce, tuple[NDArray[np.float64], NDArray[np.float64]]]:
        return {}

    def _simulated_comm_s(self, kind: AllReduce) -> Seconds:
        if kind not in self._curves:
            rows = np.unique(np.geomspace(self.floor, max(self.wish.m, 1), SAMPLES).round().astype(np.int64))
            self._curves[kind] = rows.astype(np.float64), np.array([self._alone_s(int(r), kind) for r in rows])
        known, seconds = self._curves[kind]
        return lambda rows: np.interp(rows, known, seconds)

    def _alone_s(self, rows: int, kind: AllReduce) -> float:
        """Simulated seconds of one tile's all-reduce, its compute taken to cost nothing."""
        task = replace(self, wish=replace(self.wish, m=rows))
        emitted = task.program((rows,), kind)
        prices = replace(task, options=replace(self.options, extrapolate=True)).price(emitted)
        free = np.where(emitted.kind == Kind.compute, 0.0, prices.work_s)
        return simulate(emitted, prices.with_columns(work_s=free)).makespan_s


def _check_options(options: Options) -> None:
    if options.reading not in READINGS:
        raise PlanError(f"unknown reading '{options.reading}' of the short block", hint="'max' or 'min'")
    if options.all_reduce not in ("auto", *KINDS):
        raise PlanError(f"no all-reduce '{options.all_reduce}'", hint=f"one of auto, {', '.join(KINDS)}")
    for name in ("floor", "align", "max_tiles", "rows_per_message"):
        value = getattr(options, name)
        if value is not None:
            parse_count(value, name, least=1)
    if not 0.0 <= options.noise < 1.0:
        raise PlanError("noise is a share of the serial time, from 0 to 1", found=repr(options.noise), hint="e.g. 0.02")


def _whole_k(wish: MatmulAllReduce, machine: Machine, ranks: int) -> tuple[MatmulAllReduce, tuple[str, ...]]:
    """The wish with k summed over the ranks, on a machine whose source counts k per rank (seed 000 does)."""
    if not machine.facts.get("k_is_per_rank") or ranks == 1:
        return wish, ()
    note = f"k = {wish.k} is what each rank holds on machine '{machine.name}': {wish.k * ranks} over {ranks} ranks"
    return replace(wish, k=wish.k * ranks), (note,)


def _usual_align(m: int) -> int:
    """128 rows, the seed's; less where m has not 32 such blocks.

    >>> _usual_align(4096), _usual_align(1000), _usual_align(20)
    (128, 16, 1)
    """
    blocks = max(m // 32, 1)
    return int(min(ALIGN, 1 << (blocks.bit_length() - 1)))


def _kinds(task: Task) -> tuple[tuple[AllReduce, ...], tuple[str, ...]]:
    """All-reduces that the machine has costs for, out of those asked for, and notes; CostError if there are none."""
    asked = KINDS if task.options.all_reduce == "auto" else tuple(k for k in KINDS if k == task.options.all_reduce)
    if task.ranks == 1 and "library" in asked:
        return ("library",), ()
    known = tuple(kind for kind in asked if _is_known(task, kind))
    if not known:
        links = {f"p2p:{kind}" for kind in _link_kinds(task)}
        raise CostError(
            f"machine '{task.machine.name}' has no cost of an all-reduce over {task.ranks} ranks",
            found=f"costs {', '.join(sorted(task.machine.costs)) or 'none'}",
            hint=f"probe {' or '.join(sorted({task.library_key} | links))}, or choose another machine",
        )
    if task.ranks > OURS_RANKS and known[0] == "library" and len(known) > 1:
        return ("library",), (f"Our own all-reduces are weighed up to {OURS_RANKS} ranks unless asked for by name.",)
    return known, ()


def _is_known(task: Task, kind: AllReduce) -> bool:
    if kind == "library":
        return task.library_key == "copy" or task.library_key in task.model
    return all(f"p2p:{name}" in task.model or f"exchange:{name}" in task.model for name in _link_kinds(task))


def _link_kinds(task: Task) -> set[str]:
    pairs = ((a, b) for a in range(task.ranks) for b in range(task.ranks) if a != b)
    return {task.machine.route(a, b)[0] for a, b in pairs}
