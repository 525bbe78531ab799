"""gathering: base class of operators that gather A before they multiply; all their families of schedules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dovetail.core import CostError
from dovetail.ir import Builder, Heuristic, Option, Program, Sample, Schedule, Slot, Work, Workload
from dovetail.ir.arrays import ArraySpec
from dovetail.ir.operator import Costs, Times
from dovetail.matmul.blockwise import MC2, SHARDS, Blockwise
from dovetail.matmul.ficco import HEURISTICS, RULE, TRANCHES, Outcome, Ruled, best_threshold, ficco_rule
from dovetail.matmul.gather import even_tiles, gather_model, gather_program
from dovetail.matmul.kernels import MATMUL
from dovetail.matmul.product import SIZES, TILING, row_work, shard
from dovetail.matmul.samples import add_products, add_slices
from dovetail.passes.regions import split

FICCO = tuple(
    f"{own}-{fused}-{cut}" for cut, own, fused in product(("1D", "2D"), ("uniform", "hetero"), ("fused", "unfused"))
)
FITTED_DEPTHS, FITTED_ASPECTS = tuple(2**power for power in range(6, 15)), (2, 8, 32)  # to fit FiCCO's threshold
MANY_SLOTS = 1 << 22  # most slots of a rank if slices of K differ in width, as each then has its own size
THRESHOLD = (
    "Threshold of FiCCO's rule, in seconds of a product at the machine's peak, which its paper does not give. "
    "Default: fitted to the machine. 1: the paper's formula taken literally."
)


@dataclass(frozen=True)
class Gathering(Blockwise):
    """A product whose A is gathered first. Derived classes define which rows go where, and further results."""

    families: ClassVar[tuple[str, ...]] = ("serial", *SHARDS.values(), "uniform", "mc2", "optimal", *FICCO, RULE)
    heuristics: ClassVar[tuple[Heuristic, ...]] = (*HEURISTICS, MC2)
    kind: ClassVar[str] = "all_gather"
    ways: ClassVar[tuple[str, ...]] = ("library", "messages", "ring", "two_rings")
    options: ClassVar[tuple[Option, ...]] = (
        *SIZES,
        *TILING,
        Option("by", str, "How A is gathered.", "auto", choices=("auto", *ways), of="schedules"),
        Option("ficco_threshold_s", float, THRESHOLD, least=1e-9, of="schedules"),
    )

    @property
    def results(self) -> int:
        """The number of matrices B, each with its own result."""
        return 1

    @property
    def wants_gathered(self) -> bool:
        """Whether the gathered A is a result, too."""
        return False

    def widths(self, ranks: int) -> tuple[int, ...]:
        """Return the columns of B on each rank."""
        return shard(self.n, ranks)

    def program(self, schedule: Schedule, ranks: int) -> Program:
        about = {"results": self.results, "gathered": self.wants_gathered, "kind": self.kind}
        return gather_program(self.name, self.blocks(ranks), schedule, **about)  # type: ignore[arg-type]

    def prediction_model(self, schedule: Schedule, ranks: int) -> tuple[Program, Workload, Times]:
        about = {"results": self.results, "gathered": self.wants_gathered, "kind": self.kind}
        program, pieces = gather_model(self.name, self.blocks(ranks), schedule, **about)  # type: ignore[arg-type]
        return program, self.workload(program, schedule), pieces

    def workload(self, program: Program, schedule: Schedule) -> Workload:
        """Describe a program: slots are rows of A and of results; if K is cut, slices of rows of A, and of B."""
        ranks = range(program.num_ranks)
        held = {buffer.name: buffer for buffer in program.buffers}
        slices = held["B0"].slots[0] if "B0" in held else 1
        widths, columns = np.array(split(self.k, slices)), self.widths(program.num_ranks)
        slots, sizes = dict[str, tuple[Slot, ...]](), dict[str, tuple[NDArray[np.int64], ...]]()
        for name, buffer in held.items():
            if name[0] in "CTP":
                slots[name] = tuple(Slot((columns[r],), self.dtype) for r in ranks)
            elif slices == 1 and name[0] == "B":
                slots[name] = tuple(Slot((self.k, columns[r]), self.dtype) for r in ranks)
            elif slices == 1 or self.k % slices == 0:
                shape = (self.k // slices,)
                slots[name] = tuple(Slot((*shape, columns[r]) if name[0] == "B" else shape, self.dtype) for r in ranks)
            else:
                slots[name] = (Slot((), self.dtype),) * len(ranks)
                about = [(buffer.slots[r], columns[r]) for r in ranks]
                known = {each: self._sizes(name, each[0], widths, each[1]) for each in set(about)}
                sizes[name] = tuple(known[each] for each in about)
        return Workload(slots, (MATMUL,), sizes)

    def _sizes(self, name: str, count: int, widths: NDArray[np.int64], columns: int) -> NDArray[np.int64]:
        """Return the elements of each slot if slices of K differ in width: of A by row, of gathered rows by step."""
        if name[0] == "B":
            return widths * columns
        each = count // len(widths)
        return np.repeat(widths, each) if name == "G" else np.tile(widths, each)

    def works(self, ranks: int) -> list[Work]:
        """Return the work of one row, on each rank."""
        return [row_work(self.k, n, self.dtype) for n in self.widths(ranks)]

    def inputs(self, schedule: Schedule, ranks: int) -> Sequence[ArraySpec]:
        """Return the specs of A (m_r, k) and every B (k, n_r); if K is cut, their slots are slices."""
        slices = schedule.get("slices", 1)
        a = [(rows, self.k) for rows in self.blocks(ranks).held]
        b = [(self.k, columns) for columns in self.widths(ranks)]
        ours = self.array("A", a, slots=tuple(sliced_columns(*shape, slices) for shape in a))
        slots = tuple(sliced_rows(*shape, slices) for shape in b)
        return (ours, *(self.array(f"B{i}", b, slots=slots) for i in range(self.results)))

    def outputs(self, schedule: Schedule, ranks: int) -> Sequence[ArraySpec]:
        """Return the specs of every C (rows, n_r), then of the gathered A (rows, k), if it is a result."""
        rows = [self.blocks(ranks).rows(rank) for rank in range(ranks)]
        c = list(zip(rows, self.widths(ranks), strict=True))
        found = [self.array(f"C{i}", c) for i in range(self.results)]
        if not self.wants_gathered:
            return found
        slots = tuple(sliced_columns(count, self.k, schedule.get("slices", 1)) for count in rows)
        return [*found, self.array("gathered", ((count, self.k) for count in rows), slots=slots)]

    def ficco(self, costs: Costs, ways: Sequence[str]) -> Iterator[Schedule]:
        """Yield FiCCO's eight families, and the pick of its rule on request, since fitting its threshold is slow."""
        if RULE not in self.families:
            return
        asked = costs.options["ficco_threshold_s"] is not None or costs.family == RULE
        ruled = self._ruled(costs) if asked else None
        for each in (each for by in ways for each in self._eight(self.blocks(costs.ranks).longest, costs.ranks, by)):
            yield each
            if ruled and each.family == ruled.family:
                yield each.as_of(RULE, picked=ruled.family, **ruled.steps)

    def _ruled(self, costs: Costs) -> Ruled:
        """Return the pick of FiCCO's static rule for one rank's product, at the product's speed on this machine."""
        threshold_s = costs.options["ficco_threshold_s"]
        return ficco_rule(*self._of_a_rank(costs), self.fitted_s(costs) if threshold_s is None else threshold_s)

    def _of_a_rank(self, costs: Costs) -> tuple[int, int, float, float]:
        """Return rows, depth and FLOP of a rank's product, and its FLOP/s on this machine."""
        ranks, works = costs.ranks, self.works(costs.ranks)
        rows = max(self.blocks(ranks).rows(rank) for rank in range(ranks))
        flops = rows * max(work.flops for work in works)
        whole_s = float(costs.work_s(works, np.array([rows]))[0])
        return rows, self.k, flops, flops / whole_s if whole_s else 0.0

    def fitted_s(self, costs: Costs) -> float:
        """Return the threshold of FiCCO's rule, in seconds, with which its picks take the least simulated time.

        It is fitted on products with more rows than depth (for others the rule needs no threshold): with equal depth
        and width, if the machine has costs for these, and with this operator's depth and width. For each family the
        fastest way to communicate counts.
        """
        square = [(aspect * depth, depth, depth) for depth in FITTED_DEPTHS for aspect in FITTED_ASPECTS]
        own = [(2**power * self.k, self.k, max(self.widths(costs.ranks))) for power in range(1, 9)]
        found = [self._outcome(costs, *each) for each in (square + own if self.k and self.n else square)]
        return best_threshold([each for each in found if each])

    def _outcome(self, costs: Costs, rows: int, depth: int, width: int) -> Outcome | None:
        """Return the predicted seconds of FiCCO's families for `rows` rows per rank; None if costs are missing."""
        other = self._sized_like(rows, depth, width, costs.ranks)
        there, longest, taken = costs.for_operator(other), other.blocks(costs.ranks).longest, dict[str, float]()
        try:
            for by in (by for by in other.known_ways(there) if by in ("library", "messages")):
                for each in (each for each in other._eight(longest, costs.ranks, by) if each.family in TRANCHES):
                    taken[each.family] = min(taken.get(each.family, np.inf), there.predicted_s(each))
            return Outcome(other._of_a_rank(there), taken) if np.isfinite([*taken.values()]).all() else None
        except CostError:
            return None

    def _sized_like(self, rows: int, depth: int, width: int, ranks: int) -> Gathering:
        """Return an operator of this class whose ranks each multiply `rows` rows by `width` columns."""
        one = type(self)(ranks * ranks, depth, ranks, self.dtype)
        m, n = one.blocks(ranks).rows(0), max(one.widths(ranks))
        return type(self)(ranks * ranks * rows // m, depth, ranks * width // n, self.dtype)

    def _eight(self, longest: int, ranks: int, by: str) -> Iterator[Schedule]:
        for family in FICCO:
            own, fused, cut = family.split("-")
            about = {"by": by, "own_block": "together" if own == "uniform" else "first", "fused": fused == "fused"}
            if cut == "1D":
                yield Schedule.of(family, tiles=even_tiles(longest, ranks), **about)
            elif self.k >= ranks and longest and (self.k % ranks == 0 or longest * ranks * ranks <= MANY_SLOTS):
                yield Schedule.of(family, slices=ranks, **about)

    def describe(self, schedule: Schedule, ranks: int) -> str:
        ways = {
            "library": f"gathered by the library’s {self.kind}",
            "messages": f"sent directly to each rank{', one after another' if schedule.get('in_turn') else ''}",
            "ring": "forwarded around a ring",
            "two_rings": "forwarded around two rings",
        }
        own = "own block multiplied first" if schedule["own_block"] == "first" else "own part with the others’"
        slices = f", K in {schedule['slices']} slices" if schedule.get("slices") else ""
        products = "one product" if schedule.get("fused") else "several products"
        return f"{ways[schedule['by']]}{slices}, {own}, {products} per step"

    def samples(self, ranks: int) -> Sequence[Sample]:
        rows = max((self.blocks(ranks).rows(r) for r in range(ranks)), default=0)
        if not rows or not max(self.widths(ranks), default=0):
            return ()
        whole = Sample("the product, by rows", rows, partial(_add_samples, rows))
        if ranks == 1 or self.k < ranks:
            return (whole,)
        return whole, Sample("slices of K, by rows", rows, partial(_add_slices, rows, ranks))

    def row_bytes(self, ranks: int) -> int:
        """Return the bytes of one row of A."""
        return self.k * self.element_bytes


def _add_samples(held: int, b: Builder, ranks: int, rows: Sequence[int]) -> dict[int, list[int]]:
    return add_products(b, ranks, rows, held, names=("A", "B0", "P"))


def _add_slices(held: int, slices: int, b: Builder, ranks: int, rows: Sequence[int]) -> dict[int, list[int]]:
    return add_slices(b, ranks, rows, held, slices)


def sliced_columns(rows: int, columns: int, slices: int) -> tuple[int, ...]:
    """Return the buffer shape of rows cut into slices: (rows × slices, width); flat if widths differ.

    >>> sliced_columns(4, 6, 2), sliced_columns(4, 5, 2)
    ((8, 3), (20,))
    """
    width, rest = divmod(columns, slices)
    return (rows * columns,) if rest else (rows * slices, width)


def sliced_rows(rows: int, columns: int, slices: int) -> tuple[int, ...]:
    """Return the buffer shape of B cut along K: (slices, height, columns); flat if heights differ."""
    height, rest = divmod(rows, slices)
    return (rows * columns,) if rest else (slices, height, columns)
