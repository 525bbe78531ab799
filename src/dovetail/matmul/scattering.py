"""scattering: base class of operators that communicate the products; all their families of schedules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import ClassVar

from dovetail.ir import Builder, Heuristic, Option, Program, Sample, Schedule, Work, Workload
from dovetail.ir.arrays import ArraySpec, slots_of
from dovetail.ir.operator import Costs, Times
from dovetail.matmul.blockwise import MC2, SHARDS, Blockwise
from dovetail.matmul.ficco import NO_RULE
from dovetail.matmul.gather import even_tiles
from dovetail.matmul.product import SIZES, TILING, row_work, workload_of
from dovetail.matmul.samples import add_products
from dovetail.matmul.scatter import scatter_model, scatter_program

SCATTERED = tuple(f"{own}-{fused}-1D" for own, fused in product(("uniform", "hetero"), ("fused", "unfused")))


@dataclass(frozen=True)
class Scattering(Blockwise):
    """A product whose rows go to other ranks. Derived classes define where, and whether they are summed."""

    gathers: ClassVar[bool] = False
    sums: ClassVar[bool] = False
    heuristics: ClassVar[tuple[Heuristic, ...]] = (*NO_RULE, MC2)
    families: ClassVar[tuple[str, ...]] = ("serial", *SHARDS.values(), "uniform", "mc2", "optimal", *SCATTERED)
    options: ClassVar[tuple[Option, ...]] = (
        *SIZES,
        *TILING,
        Option("by", str, "How products are sent.", "auto", choices=("auto", *SHARDS, "library"), of="schedules"),
    )

    def depths(self, ranks: int) -> tuple[int, ...]:
        """Return the columns of A (and rows of B) on each rank."""
        return (self.k,) * ranks

    def program(self, schedule: Schedule, ranks: int) -> Program:
        return scatter_program(self.name, self.blocks(ranks), schedule, sums=self.sums)

    def prediction_model(self, schedule: Schedule, ranks: int) -> tuple[Program, Workload, Times]:
        program, pieces = scatter_model(self.name, self.blocks(ranks), schedule, sums=self.sums)
        return program, self.workload(program, schedule), pieces

    def workload(self, program: Program, schedule: Schedule) -> Workload:
        """Describe a program: slots are rows of A and of products; B is one slot."""
        ranks = program.num_ranks
        slots = slots_of([*self.inputs(schedule, ranks), *self.outputs(schedule, ranks)])
        slots |= {"G": slots["A"], "P": slots["C"], "R": slots["C"]}
        return workload_of(program, slots)

    def works(self, ranks: int) -> list[Work]:
        return [row_work(k, self.n, self.dtype) for k in self.depths(ranks)]

    def inputs(self, schedule: Schedule, ranks: int) -> Sequence[ArraySpec]:
        """Return the specs of A (m_r, k_r) and B (k_r, n)."""
        depths = self.depths(ranks)
        return (
            self.array("A", zip(self.blocks(ranks).held, depths, strict=True)),
            self.array("B", ((k, self.n) for k in depths), within=2),
        )

    def outputs(self, schedule: Schedule, ranks: int) -> Sequence[ArraySpec]:
        """Return the spec of C (rows, n): rows of the sum of all products, or of each rank's product in order."""
        blocks = self.blocks(ranks)
        rows = blocks.counts[0] if self.sums else [blocks.rows(rank) for rank in range(ranks)]
        return (self.array("C", ((count, self.n) for count in rows)),)

    def ficco(self, costs: Costs, ways: Sequence[str]) -> Iterator[Schedule]:
        """Yield the mirror images of FiCCO's four 1-D schedules: communication after the product."""
        tiles = even_tiles(self.blocks(costs.ranks).longest, costs.ranks)
        for by, family in product(ways, SCATTERED):
            own, fused, _ = family.split("-")
            about = {"by": by, "own_block": "together" if own == "uniform" else "last", "fused": fused == "fused"}
            yield Schedule.of(family, tiles=tiles, **about)

    def describe(self, schedule: Schedule, ranks: int) -> str:
        ways = {
            "library": f"sent by the library’s {self.kind}",
            "messages": f"sent directly to each rank{', one after another' if schedule.get('in_turn') else ''}",
            "ring": "summed around a ring",
            "two_rings": "summed around two rings",
        }
        when = schedule["own_block"]
        own = "own part with the others’" if when == "together" else f"own block multiplied {when}"
        products = "one product" if schedule.get("fused") else "several products"
        return f"{ways[schedule['by']]}, {own}, {products} per step"

    def samples(self, ranks: int) -> Sequence[Sample]:
        rows = max(self.blocks(ranks).held, default=0)
        if not rows or not self.n:
            return ()
        return (Sample("the product, by rows", rows, partial(_add_samples, rows)),)

    def row_bytes(self, ranks: int) -> int:
        return self.n * self.element_bytes


def _add_samples(held: int, b: Builder, ranks: int, rows: Sequence[int]) -> dict[int, list[int]]:
    return add_products(b, ranks, rows, held)
