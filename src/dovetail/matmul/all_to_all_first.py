"""all_to_all_matmul: rows of A go to the ranks that want them (tokens to experts), each with a B of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from dovetail.ir import Option, dtype_bytes
from dovetail.matmul.gather import Blocks
from dovetail.matmul.gathering import Gathering
from dovetail.matmul.product import Said, Told, balance, the_same, ways_of
from dovetail.matmul.token_counts import SAID, Counts, checked_counts, counts_for, counts_of_ranks


@dataclass(frozen=True)
class AllToAllMatmul(Gathering):
    """C_r = A_r·B_r, where A_r (m_r, k) are the rows that all ranks have for rank r, in the order of ranks, and B_r
    (k, n) is its own.

    `m`: rows over all ranks; `counts[q][r]` of them go from rank q to rank r, in the order of r in q's A; shared evenly
    unless given. Source: seed 001 (expert-parallel all-to-all, then GEMM); MC²'s MoE operators.

    >>> AllToAllMatmul(8, 4, 4, counts=((1, 3), (4, 0))).blocks(2).rows(0)
    5
    """

    name: ClassVar[str] = "all_to_all_matmul"
    said: ClassVar[Mapping[str, Said]] = SAID
    options: ClassVar[tuple[Option, ...]] = ways_of(Gathering, "library", "messages")
    kind: ClassVar[str] = "all_to_all"
    ways: ClassVar[tuple[str, ...]] = ("library", "messages")

    counts: Counts | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "counts", checked_counts(self.counts, self.m))

    def blocks(self, ranks: int) -> Blocks:
        return Blocks.exchanged(counts_for(self.counts, self.m, ranks))

    def widths(self, ranks: int) -> tuple[int, ...]:
        return (self.n,) * ranks

    def part(self, rows: int, ranks: int) -> AllToAllMatmul:
        return replace(self, m=rows * ranks * ranks, counts=None)

    @classmethod
    def of_ranks(cls, told: Sequence[Told]) -> AllToAllMatmul:
        k = the_same(told, lambda rank: rank.a[1], "columns of A")
        n = the_same(told, lambda rank: rank.b[1], "columns of B")
        counts = counts_of_ranks(told)
        return cls(sum(map(sum, counts)), k, n, told[0].dtype, counts)

    @classmethod
    def pilot(cls, ranks: int, dtype: str) -> AllToAllMatmul:
        """A small one, to see what this machine does a second."""
        return cls(512 * ranks, 512, 512, dtype)

    @classmethod
    def sized(cls, ranks: int, dtype: str, flop_per_s: float, bytes_per_s: float) -> AllToAllMatmul:
        """One whose sides take as long at these speeds of a rank and of the all_to_all."""
        found = balance(dtype_bytes(dtype), flop_per_s, bytes_per_s)
        return cls(found.rows * ranks, found.width, found.depth, dtype)
