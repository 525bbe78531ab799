"""all_gather_columns_matmul: A and B are cut by columns; every rank multiplies all of A by its own B."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dovetail.core import OperatorError
from dovetail.ir import Heuristic, Kind, Option, Program, Sample, Schedule, Slot, Work, Workload
from dovetail.ir.abilities import RankArguments
from dovetail.ir.arrays import ArraySpec
from dovetail.ir.operator import Costs, Times
from dovetail.matmul.all_gathering import RESULTS, AllGathering, agreed
from dovetail.matmul.blocks import Blocks
from dovetail.matmul.blockwise import MC2, SHARDS
from dovetail.matmul.gather_columns import gather_columns_model, gather_columns_program
from dovetail.matmul.gathering import Gathering
from dovetail.matmul.kernels import MATMUL
from dovetail.matmul.product import SIZES, TILING, Share, row_work, shape_of_a, shape_of_b, the_same, uneven_or_none
from dovetail.matmul.samples import add_slices


@dataclass(frozen=True)
class AllGatherColumnsMatmul(AllGathering):
    """C_r = A·B_r on every rank r, with A (m, k) cut by columns over the ranks and B_r (k, n_r) its own: n = Σ n_r.

    C_r = Σ_q A_q·B_r[q]: a product for each rank q, as soon as its columns A_q (m, k_q) have arrived. B_r[q] (k_q, n_r)
    are the rows of B_r that are multiplied by A_q.

    Parameters
    ----------
    m, k, n : int
        Sizes of the whole product, over all ranks. Any may be 0.
    dtype : str
        float16, bfloat16, float32 or float64. Half types accumulate in float32.
    several : int
        Number of matrices B on each rank, each with its own result.
    gathered : bool
        Whether every rank gets all of A (m, k), too.
    depths, columns : tuple of int
        Columns of A and columns of B on each rank. Default: shared evenly.

    Notes
    -----
    Source: seed 001 (products cut along K); an all-gather along the last dimension, then GEMM.

    >>> AllGatherColumnsMatmul(4096, 4096, 1024).title
    'all_gather_columns_matmul 4096 × 4096 × 1024 float32'
    """

    name: ClassVar[str] = "all_gather_columns_matmul"
    cuts: ClassVar[Mapping[str, Share]] = {"depths": Share("k", "k"), "columns": Share("n", "columns")}
    cut_alike: ClassVar[bool] = False
    families: ClassVar[tuple[str, ...]] = ("serial", *SHARDS.values(), "uniform", "mc2", "optimal")
    heuristics: ClassVar[tuple[Heuristic, ...]] = (Heuristic("FiCCO", why_not="applies to whole rows"), MC2)
    options: ClassVar[tuple[Option, ...]] = (
        *SIZES,
        *TILING,
        Option("by", str, "How A is gathered.", "auto", choices=("auto", *Gathering.ways), of="schedules"),
        *RESULTS,
    )

    depths: tuple[int, ...] | None = None
    columns: tuple[int, ...] | None = None

    def blocks(self, ranks: int) -> Blocks:
        return Blocks.gathered((self.m,) * ranks)

    def heights(self, ranks: int) -> tuple[int, ...]:
        """Number of columns of A on each rank; also the number of rows of B that they are multiplied by."""
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

    def prediction_model(self, schedule: Schedule, ranks: int) -> tuple[Program, Workload, Times]:
        """Simulate the program as if every rank had as many columns of A as the rank with the most."""
        alike = replace(self, k=max(self.heights(ranks)) * ranks, depths=None)
        about = {"results": self.several, "gathered": self.gathered}
        program, pieces = gather_columns_model(self.name, self.m, ranks, schedule, **about)  # type: ignore[arg-type]
        return program, alike.workload(program, schedule), pieces

    def workload(self, program: Program, schedule: Schedule) -> Workload:
        """Describe a program: slots are rows of a rank's columns of A, rows of results, and blocks of rows of B."""
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

    def inputs(self, schedule: Schedule, ranks: int) -> Sequence[ArraySpec]:
        """Return the specs of A (m, k_r) and every B (k, n_r), with rows grouped by the rank of their columns of A."""
        heights, alike = self.heights(ranks), self._alike(ranks)
        a = [(self.m, height) for height in heights]
        b = [(self.k, columns) for columns in self.widths(ranks)]
        ours = self.array("A", a, slots=() if alike else tuple((self.m * height,) for height in heights))
        slots = tuple((ranks, heights[0], columns) if alike else (self.k * columns,) for _, columns in b)
        return (ours, *(self.array(f"B{i}", b, slots=slots) for i in range(self.several)))

    def outputs(self, schedule: Schedule, ranks: int) -> Sequence[ArraySpec]:
        """Return the specs of every C (m, n_r), then of the gathered A (m, k), if it is a result."""
        found = [self.array(f"C{i}", ((self.m, n) for n in self.widths(ranks))) for i in range(self.several)]
        if not self.gathered:
            return found
        whole = (self.m * ranks, self.heights(ranks)[0]) if self._alike(ranks) else (self.m * self.k,)
        return [*found, self.array("gathered", [(self.m, self.k)] * ranks, slots=(whole,) * ranks)]

    def _alike(self, ranks: int) -> bool:
        """Whether all ranks have equally many columns of A."""
        return len(set(self.heights(ranks))) == 1

    def _serial(self, by: str, ranks: int) -> Schedule:
        return Schedule.of("serial", tiles=(self.m,) if self.m else (), by=by, own_block="together", fused=False)

    def samples(self, ranks: int) -> Sequence[Sample]:
        if not self.m or not max(self.widths(ranks)):
            return ()
        return (Sample("columns of each rank, by rows", self.m, partial(add_slices, held=self.m, slices=ranks)),)

    def schedules(self, costs: Costs) -> Iterator[Schedule]:
        """Yield the schedules of block-wise operators, except those that multiply several ranks' columns in one
        product, since each rank's product is a separate term of the sum."""
        return (each for each in super().schedules(costs) if not each.get("fused"))

    def neighbours(self, schedule: Schedule) -> Iterator[Schedule]:
        return (each for each in super().neighbours(schedule) if not each.get("fused"))

    @classmethod
    def of_ranks(cls, arguments: Sequence[RankArguments]) -> AllGatherColumnsMatmul:
        m = the_same(arguments, lambda rank: shape_of_a(rank)[0], "rows of A")
        agreed_on = agreed(arguments)
        depths, columns = [shape_of_a(rank)[1] for rank in arguments], [shape_of_b(rank)[1] for rank in arguments]
        for rank, each in enumerate(arguments):
            if shape_of_b(each)[0] != sum(depths):
                raise OperatorError(
                    f"rank {rank} has {shape_of_b(each)[0]} rows of B", found=f"A has {sum(depths)} columns in all"
                )
        shares = uneven_or_none(depths), uneven_or_none(columns)
        return cls(m, sum(depths), sum(columns), arguments[0].dtype, *agreed_on, *shares)

    @classmethod
    def pilot(cls, ranks: int, dtype: str) -> AllGatherColumnsMatmul:
        """Return a small operator with which to measure this machine's speed."""
        return cls(512, 512 * ranks, 512 * ranks, dtype)


def _sizes(
    program: Program, name: str, heights: NDArray[np.int64], m: int, rank: int, columns: int
) -> NDArray[np.int64]:
    """Return the elements of each slot of a buffer on a rank, if ranks have different numbers of columns. Received data
    are ordered by rank, or by call of the library."""
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
