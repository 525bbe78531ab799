"""scattering: operators whose products travel after they are made, and all their schedule families."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, ClassVar

from dovetail.ir import Builder, Heuristic, Option, Program, Sample, Schedule, Slot, Work, Workload
from dovetail.ir.operator import Arrays, Costs, Times
from dovetail.matmul.blockwise import MC2, SHARDS, Blockwise
from dovetail.matmul.ficco import NO_RULE
from dovetail.matmul.gather import even_tiles
from dovetail.matmul.kernels import MATMUL
from dovetail.matmul.product import SIZES, TILING, add_products, arrays_of, results_in, row_work
from dovetail.matmul.scatter import scatter_model, scatter_program

SCATTERED = tuple(f"{own}-{fused}-1D" for own, fused in product(("uniform", "hetero"), ("fused", "unfused")))


@dataclass(frozen=True)
class Scattering(Blockwise):
    """A product whose rows go to other ranks; an operator says which rows go where, and whether they are summed."""

    gathers: ClassVar[bool] = False
    sums: ClassVar[bool] = False
    heuristics: ClassVar[tuple[Heuristic, ...]] = (*NO_RULE, MC2)
    families: ClassVar[tuple[str, ...]] = ("serial", *SHARDS.values(), "uniform", "mc2", "optimal", *SCATTERED)
    options: ClassVar[tuple[Option, ...]] = (
        *SIZES,
        *TILING,
        Option("by", str, "How products travel.", "auto", choices=("auto", *SHARDS, "library"), of="schedules"),
    )

    def depths(self, ranks: int) -> tuple[int, ...]:
        """Columns of A (and rows of B) on each rank."""
        return (self.k,) * ranks

    def program(self, schedule: Schedule, ranks: int) -> Program:
        return scatter_program(self.name, self.blocks(ranks), schedule, sums=self.sums)

    def modelled(self, schedule: Schedule, ranks: int) -> tuple[Program, Workload, Times]:
        program, pieces = scatter_model(self.name, self.blocks(ranks), schedule, sums=self.sums)
        return program, self.workload(program), pieces

    def workload(self, program: Program) -> Workload:
        """Slots are rows, of A and of products; B is one slot."""
        depths, slots = self.depths(program.num_ranks), dict[str, tuple[Slot, ...]]()
        for name, *_ in program.buffers:
            shapes: dict[str, Any] = {"A": lambda k: (k,), "G": lambda k: (k,), "B": lambda k: (k, self.n)}
            shape = shapes.get(name, lambda k: (self.n,))
            if name in ("A", "G", "B", "P", "R", "C"):
                slots[name] = tuple(Slot(shape(k), self.dtype) for k in depths)
        return Workload(slots, (MATMUL,))

    def works(self, ranks: int) -> list[Work]:
        return [row_work(k, self.n, self.dtype) for k in self.depths(ranks)]

    def arguments(self, program: Program, rank: int, given: Sequence[Any], out: Any) -> tuple[Arrays, Arrays]:
        """A (its rows, its k), B (its k, n), and its rows of the result."""
        ranks = program.num_ranks
        k = self.depths(ranks)[rank]
        a, b = arrays_of(self, given, {"A": (self.blocks(ranks).held[rank], k), "B": (k, self.n)})
        return {"A": a, "B": b[None]}, results_in(out, ["C"])

    def result(self, program: Program, rank: int, held: Arrays) -> Any:
        return held["C"]

    def ficco(self, costs: Costs, ways: Sequence[str]) -> Iterator[Schedule]:
        """FiCCO's four of rows, turned round."""
        tiles = even_tiles(self.blocks(costs.ranks).longest, costs.ranks)
        for by, family in product(ways, SCATTERED):
            own, fused, _ = family.split("-")
            about = {"by": by, "own": "together" if own == "uniform" else "last", "fused": fused == "fused"}
            yield Schedule.of(family, tiles=tiles, **about)

    def explained(self, schedule: Schedule, ranks: int) -> str:
        ways = {
            "library": f"taken away by the library’s {self.kind}",
            "messages": f"sent straight to each rank{' in turn' if schedule.get('in_turn') else ''}",
            "ring": "summed up round a ring",
            "two_rings": "summed up round two rings",
        }
        own = "the own part with the others’" if schedule["own"] == "together" else f"the own block {schedule['own']}"
        return f"{ways[schedule['by']]}, {own}, {'one product' if schedule.get('fused') else 'products'} a step"

    def samples(self, ranks: int) -> Sequence[Sample]:
        rows = max(self.blocks(ranks).held, default=0)
        if not rows or not self.n:
            return ()
        return (Sample("the product, by rows", rows, partial(_add_samples, rows)),)

    def row_bytes(self, ranks: int) -> int:
        return self.n * self.element_bytes


def _add_samples(held: int, b: Builder, ranks: int, rows: Sequence[int]) -> dict[int, list[int]]:
    return add_products(b, ranks, rows, held)
