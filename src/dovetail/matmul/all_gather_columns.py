"""all_gather_columns_matmul: A cut by columns, B by columns of its own; every rank multiplies all of A by its own B."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dovetail.core import OperatorError
from dovetail.ir import Heuristic, Kind, Option, Program, Sample, Schedule, Slot, Work, Workload
from dovetail.ir.operator import Arrays, Costs, Times
from dovetail.matmul.all_gathering import RESULTS, AllGathering, agreed
from dovetail.matmul.blocks import Blocks
from dovetail.matmul.blockwise import MC2, SHARDS
from dovetail.matmul.gather_columns import gather_columns_model, gather_columns_program
from dovetail.matmul.gathering import Gathering
from dovetail.matmul.kernels import MATMUL
from dovetail.matmul.product import (
    SIZES,
    TILING,
    RankArguments,
    Share,
    add_slices,
    arrays_of,
    row_work,
    the_same,
    uneven_or_none,
)


@dataclass(frozen=True)
class AllGatherColumnsMatmul(AllGathering):
    """C_r = A·B_r on every rank r, with A (m, k) cut by columns over the ranks and B_r (k, n_r) its own: n = Σ n_r.

    What a rank's columns of A add to C follows as they come: the contraction is cut, so that C is a sum of as many
    products as there are ranks. `several`: so many B on each rank, each with a result. `gathered`: every rank gets all
    of A, too. `depths`, `columns`: what each rank has of k and of n; shared evenly unless given. Source: seed 001
    (products cut along K); an all-gather along the last dimension, then GEMM.

    >>> AllGatherColumnsMatmul(4096, 4096, 1024).title
    'all_gather_columns_matmul 4096 × 4096 × 1024 float32'
    """

    name: ClassVar[str] = "all_gather_columns_matmul"
    cuts: ClassVar[Mapping[str, Share]] = {"depths": Share("k", "k"), "columns": Share("n", "columns")}
    cut_alike: ClassVar[bool] = False
    families: ClassVar[tuple[str, ...]] = ("serial", *SHARDS.values(), "uniform", "mc2", "optimal")
    heuristics: ClassVar[tuple[Heuristic, ...]] = (Heuristic("FiCCO", why_not="speaks of whole rows that travel"), MC2)
    options: ClassVar[tuple[Option, ...]] = (
        *SIZES,
        *TILING,
        Option("by", str, "How A travels.", "auto", choices=("auto", *Gathering.ways), of="schedules"),
        *RESULTS,
    )

    depths: tuple[int, ...] | None = None
    columns: tuple[int, ...] | None = None

    def blocks(self, ranks: int) -> Blocks:
        return Blocks.gathered((self.m,) * ranks)

    def heights(self, ranks: int) -> tuple[int, ...]:
        """Columns of A on each rank, and the rows of B that they belong to."""
        return self.share("depths", ranks)

    def works(self, ranks: int) -> list[Work]:
        deepest = max(self.heights(ranks))
        return [row_work(deepest, n, self.dtype) for n in self.widths(ranks)]

    def row_bytes(self, ranks: int) -> int:
        """Bytes of one row of a rank's columns."""
        return max(self.heights(ranks)) * self.element_bytes

    def part(self, rows: int, ranks: int) -> AllGatherColumnsMatmul:
        return replace(self, m=rows)

    def program(self, schedule: Schedule, ranks: int) -> Program:
        about = {"results": self.several, "gathered": self.gathered}
        return gather_columns_program(self.name, self.m, ranks, schedule, **about)  # type: ignore[arg-type]

    def modelled(self, schedule: Schedule, ranks: int) -> tuple[Program, Workload, Times]:
        """As if all ranks had as many columns of A as the one that has most."""
        alike = replace(self, k=max(self.heights(ranks)) * ranks, depths=None)
        about = {"results": self.several, "gathered": self.gathered}
        program, pieces = gather_columns_model(self.name, self.m, ranks, schedule, **about)  # type: ignore[arg-type]
        return program, alike.workload(program), pieces

    def workload(self, program: Program) -> Workload:
        """Slots are rows: of a rank's columns of A, of results; and the rows of B that belong to a rank's columns."""
        ranks = range(program.num_ranks)
        heights, columns = np.array(self.heights(len(ranks))), self.widths(len(ranks))
        alike = len(set(heights)) == 1 or program.buffer("B0").slots[0] == 1
        slots, sizes = dict[str, tuple[Slot, ...]](), dict[str, tuple[NDArray[np.int64], ...]]()
        for name in (buffer.name for buffer in program.buffers):
            if name[0] in "CP":
                slots[name] = tuple(Slot((columns[r],), self.dtype) for r in ranks)
            elif alike:
                own = [int(height) for height in heights]
                slots[name] = tuple(
                    Slot((own[r], columns[r]) if name[0] == "B" else (own[r],), self.dtype) for r in ranks
                )
            else:
                slots[name] = (Slot((), self.dtype),) * len(ranks)
                sizes[name] = tuple(_sizes(program, name, heights, self.m, r, columns[r]) for r in ranks)
        return Workload(slots, (MATMUL,), sizes)

    def arguments(self, program: Program, rank: int, given: Sequence[Any], out: Any) -> tuple[Arrays, Arrays]:
        """A (m, its columns), every B (k, its columns), and results, of which the gathered A is the last."""
        heights, columns = self.heights(program.num_ranks), self.widths(program.num_ranks)[rank]
        shapes = {"A": (self.m, heights[rank]), **{f"B{i}": (self.k, columns) for i in range(self.several)}}
        a, *others = arrays_of(self, given, shapes)
        alike = len(set(heights)) == 1
        shape = (len(heights), heights[0], columns) if alike else (-1,)
        held = {"A": a if alike else a.reshape(-1), **{f"B{i}": b.reshape(shape) for i, b in enumerate(others)}}
        slots = (self.m * len(heights), heights[0]) if alike else (-1,)
        return held, self.wanted(out, (self.m, self.k), lambda gathered: gathered.reshape(slots))

    def result(self, program: Program, rank: int, held: Arrays) -> Any:
        found = [held[name] for name in self._outputs]
        if self.gathered:
            found[-1] = found[-1].reshape(self.m, self.k)
        return found[0] if len(found) == 1 else tuple(found)

    def _serial(self, by: str, ranks: int) -> Schedule:
        return Schedule.of("serial", tiles=(self.m,) if self.m else (), by=by, own="together", fused=False)

    def samples(self, ranks: int) -> Sequence[Sample]:
        if not self.m or not max(self.widths(ranks)):
            return ()
        return (Sample("columns of each rank, by rows", self.m, partial(add_slices, held=self.m, slices=ranks)),)

    def schedules(self, costs: Costs) -> Iterator[Schedule]:
        """As of all that travels in blocks, but for one product of several ranks' columns: these are summed up."""
        return (each for each in super().schedules(costs) if not each.get("fused"))

    def neighbours(self, schedule: Schedule) -> Iterator[Schedule]:
        return (each for each in super().neighbours(schedule) if not each.get("fused"))

    @classmethod
    def of_ranks(cls, arguments: Sequence[RankArguments]) -> AllGatherColumnsMatmul:
        m = the_same(arguments, lambda rank: rank.a[0], "rows of A")
        said = agreed(arguments)
        depths, columns = [rank.a[1] for rank in arguments], [rank.b[1] for rank in arguments]
        for rank, each in enumerate(arguments):
            if each.b[0] != sum(depths):
                raise OperatorError(
                    f"rank {rank} has {each.b[0]} rows of B", found=f"A has {sum(depths)} columns in all"
                )
        shares = uneven_or_none(depths), uneven_or_none(columns)
        return cls(m, sum(depths), sum(columns), arguments[0].dtype, *said, *shares)

    @classmethod
    def pilot(cls, ranks: int, dtype: str) -> AllGatherColumnsMatmul:
        """A small one, to see what this machine does a second."""
        return cls(512, 512 * ranks, 512 * ranks, dtype)


def _sizes(
    program: Program, name: str, heights: NDArray[np.int64], m: int, rank: int, columns: int
) -> NDArray[np.int64]:
    """Elements of each slot on a rank, where ranks have unlike numbers of columns: what came lies by rank, or call by
    call of the library."""
    if name == "A":
        return np.full(m, heights[rank])
    if name[0] == "B":
        return heights * columns
    if name == "gathered":
        return np.tile(heights, m)
    col = program.columns
    calls = np.flatnonzero((col["kind"] == Kind.collective) & (col["rank"] == 0))
    rows = col["read_count"][col["read_start"][calls]].tolist()
    return np.concatenate([np.repeat(heights, each) for each in rows or [m]])
