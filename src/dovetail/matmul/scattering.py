"""scattering: wishes whose products travel after they are made, and all their schedule families."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, ClassVar

from dovetail.ir import Builder, Heuristic, Option, Program, Sample, Schedule, Slot, Work, Workload
from dovetail.ir.wish import Arrays, Costs
from dovetail.matmul.blockwise import MC2, Blockwise
from dovetail.matmul.ficco import NO_RULE
from dovetail.matmul.gather import even_tiles
from dovetail.matmul.kernels import MATMUL
from dovetail.matmul.product import SIZES, TILING, add_products, arrays_of, results_in, row_work
from dovetail.matmul.scatter import scatter_program

SCATTERED = tuple(f"{own}-{fused}-1D" for own, fused in product(("uniform", "hetero"), ("fused", "unfused")))
SHARDS = {"ring": "shard-ring", "two_rings": "shard-two-rings", "messages": "shard-messages"}


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

    def shard_schedule(self, by: str, rows: int) -> Schedule:
        return Schedule.of("shard", tiles=(rows,), by=by, own="last", fused=False)

    def program(self, schedule: Schedule, ranks: int) -> Program:
        return scatter_program(self.name, self.blocks(ranks), schedule, sums=self.sums)

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

    def serial(self, ranks: int) -> Schedule:
        return self._serial("library", ranks)

    def _serial(self, by: str, ranks: int) -> Schedule:
        longest = self.blocks(ranks).longest
        return Schedule.of("serial", tiles=(longest,) if longest else (), by=by, own="together", fused=True)

    def schedules(self, costs: Costs) -> Iterator[Schedule]:
        """Serial; whole blocks, round a ring or straight; tiles; FiCCO's four of rows, turned round."""
        ranks, longest, ways = costs.ranks, self.blocks(costs.ranks).longest, self.known_ways(costs)
        whole, ours = (longest,) if longest else (), [by for by in ways if by != "library"]
        yield from (self._serial(by, ranks) for by in ways if by in ("library", "messages"))
        if ranks == 1:
            return
        yield from (Schedule.of(SHARDS[by], tiles=whole, by=by, own="last", fused=False) for by in ours)
        for by in [by for by in ways if by != "ring" or "two_rings" not in ways]:
            for tiling in self.tilings(costs, by):
                made = Schedule.of(tiling.family, tiles=tiling.tiles, by=by, own="last", fused=False)
                yield replace(made, steps=tiling.steps, notes=tiling.notes)
        for by, family in product([by for by in ways if by in ("library", "messages")], SCATTERED):
            own, fused, _ = family.split("-")
            about = {"by": by, "own": "together" if own == "uniform" else "last", "fused": fused == "fused"}
            yield Schedule.of(family, tiles=even_tiles(longest, ranks), **about)

    def explained(self, schedule: Schedule, ranks: int) -> str:
        ways = {
            "library": f"taken away by the library’s {self.kind}",
            "messages": "sent straight to each rank",
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
