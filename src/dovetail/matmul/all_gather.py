"""all_gather_matmul: A is cut by rows, B by columns; every rank multiplies all of A by its own B."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from dovetail.ir import PublishedCase
from dovetail.ir.abilities import RankArguments
from dovetail.matmul.all_gathering import AllGathering, agreed
from dovetail.matmul.blocks import Blocks
from dovetail.matmul.ficco import MI300X, SCENARIOS
from dovetail.matmul.product import Share, shape_of_a, shape_of_b, the_same, uneven_or_none


@dataclass(frozen=True)
class AllGatherMatmul(AllGathering):
    """C_r = A·B_r on every rank r, with A (m, k) cut by rows over the ranks and B_r (k, n_r) its own: n = Σ n_r.

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
    rows, columns : tuple of int
        Rows of A and columns of B on each rank. Default: shared evenly.

    Notes
    -----
    Sources: seed 000 (AllGatherMatmul of MC²), seed 001 (data-parallel all-gather, then GEMM).

    >>> AllGatherMatmul(4096, 4096, 1024).title
    'all_gather_matmul 4096 × 4096 × 1024 float32'
    """

    name: ClassVar[str] = "all_gather_matmul"
    cuts: ClassVar[Mapping[str, Share]] = {"rows": Share("m", "rows"), "columns": Share("n", "columns")}

    rows: tuple[int, ...] | None = None
    columns: tuple[int, ...] | None = None

    def blocks(self, ranks: int) -> Blocks:
        return Blocks.gathered(self.share("rows", ranks))

    def part(self, rows: int, ranks: int) -> AllGatherMatmul:
        return replace(self, m=rows * ranks, rows=None)

    @classmethod
    def published_cases(cls) -> Sequence[PublishedCase]:
        """Return FiCCO's scenarios in bfloat16 (the paper names no dtype); g13 to g16 as if A were gathered."""
        return [PublishedCase(name, cls(m, k, n, "bfloat16"), MI300X) for name, (m, n, k) in SCENARIOS.items()]

    @classmethod
    def of_ranks(cls, arguments: Sequence[RankArguments]) -> AllGatherMatmul:
        k = the_same(arguments, lambda rank: shape_of_a(rank)[1], "columns of A")
        agreed_on = agreed(arguments)
        rows, columns = [shape_of_a(rank)[0] for rank in arguments], [shape_of_b(rank)[1] for rank in arguments]
        shares = uneven_or_none(rows), uneven_or_none(columns)
        return cls(sum(rows), k, sum(columns), arguments[0].dtype, *agreed_on, *shares)

    @classmethod
    def pilot(cls, ranks: int, dtype: str) -> AllGatherMatmul:
        """Return a small operator with which to measure this machine's speed."""
        return cls(512, 512, 512 * ranks, dtype)
