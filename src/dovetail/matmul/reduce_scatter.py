"""matmul_reduce_scatter: A and B cut along k; every rank wants its own rows of the sum of all ranks' products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, ClassVar

from dovetail.ir import dtype_bytes
from dovetail.matmul.blocks import Blocks
from dovetail.matmul.product import Told, balance, checked_shares, shard, shares_for, the_same, uneven_or_none
from dovetail.matmul.scattering import Scattering


@dataclass(frozen=True)
class MatmulReduceScatter(Scattering):
    """C = A·B with A (m, k) and B (k, n) cut along k over the ranks; rank r wants its share of C's rows.

    Shares of rows differ by at most one. `shares`: what each rank has of k; shared evenly unless given. Sources: seed
    000 (MatmulReduceScatter of MC²); PyTorch's fused_matmul_reduce_scatter.

    >>> MatmulReduceScatter(4096, 4096, 1024).title
    'matmul_reduce_scatter 4096 × 4096 × 1024 float32'
    """

    name: ClassVar[str] = "matmul_reduce_scatter"
    kind: ClassVar[str] = "reduce_scatter"
    ways: ClassVar[tuple[str, ...]] = ("library", "messages", "ring", "two_rings")
    sums: ClassVar[bool] = True

    shares: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "shares", checked_shares(self.shares, self.k, "k"))

    def settled(self, facts: Mapping[str, Any], ranks: int) -> tuple[MatmulReduceScatter, tuple[str, ...]]:
        """With k summed over the ranks, on a machine whose source counts k per rank (seed 000 does)."""
        if not facts.get("k_is_per_rank") or ranks == 1:
            return self, ()
        note = f"k = {self.k} is what each rank holds on this machine: {self.k * ranks} over {ranks} ranks"
        return replace(self, k=self.k * ranks, shares=None), (note,)

    def blocks(self, ranks: int) -> Blocks:
        rows = shard(self.m, ranks)
        starts = tuple(accumulate(rows, initial=0))[:-1]
        return Blocks((rows,) * ranks, (starts,) * ranks)

    def depths(self, ranks: int) -> tuple[int, ...]:
        return shares_for(self.shares, self.k, ranks, "k")

    @classmethod
    def of_ranks(cls, told: Sequence[Told]) -> MatmulReduceScatter:
        m = the_same(told, lambda rank: rank.a[0], "rows of A")
        n = the_same(told, lambda rank: rank.b[1], "columns of B")
        depths = [rank.a[1] for rank in told]
        return cls(m, sum(depths), n, told[0].dtype, uneven_or_none(depths))

    @classmethod
    def pilot(cls, ranks: int, dtype: str) -> MatmulReduceScatter:
        """A small one, to see what this machine does a second."""
        return cls(512, 512 * ranks, 512, dtype)

    @classmethod
    def sized(cls, ranks: int, dtype: str, flop_per_s: float, bytes_per_s: float) -> MatmulReduceScatter:
        """One whose sides take as long at these speeds of a rank and of the reduce_scatter."""
        found = balance(dtype_bytes(dtype), flop_per_s, bytes_per_s)
        return cls(found.rows, found.depth * ranks, found.width, dtype)
