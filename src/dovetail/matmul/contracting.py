"""contracting: base class of operators whose A and B are cut along k: each rank computes one term of a sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from dovetail.ir import dtype_bytes
from dovetail.ir.abilities import RankArguments
from dovetail.matmul.balanced_sizes import balance
from dovetail.matmul.product import Product, Share, shape_of_a, shape_of_b, the_same, uneven_or_none


@dataclass(frozen=True)
class Contracting(Product):
    """A product cut along k. `shares`: the columns of A and rows of B on each rank; default: shared evenly."""

    cuts: ClassVar[Mapping[str, Share]] = {"shares": Share("k", "k")}

    shares: tuple[int, ...] | None = None

    def depths(self, ranks: int) -> tuple[int, ...]:
        """Return the columns of A (and rows of B) on each rank."""
        return self.share("shares", ranks)

    def resolve(self, facts: Mapping[str, Any], ranks: int) -> tuple[Self, tuple[str, ...]]:
        """Return the operator with k summed over ranks, if the machine's source counts k per rank (seed 000 does)."""
        if not facts.get("k_is_per_rank") or ranks == 1:
            return self, ()
        note = f"k = {self.k} counts per rank on this machine: {self.k * ranks} over {ranks} ranks"
        return replace(self, k=self.k * ranks, shares=None), (note,)

    @classmethod
    def of_ranks(cls, arguments: Sequence[RankArguments]) -> Self:
        m = the_same(arguments, lambda rank: shape_of_a(rank)[0], "rows of A")
        n = the_same(arguments, lambda rank: shape_of_b(rank)[1], "columns of B")
        depths = [shape_of_a(rank)[1] for rank in arguments]
        return cls(m, sum(depths), n, arguments[0].dtype, uneven_or_none(depths))

    @classmethod
    def pilot(cls, ranks: int, dtype: str) -> Self:
        """Return a small operator with which to measure this machine's speed."""
        return cls(512, 512 * ranks, 512, dtype)

    @classmethod
    def sized(cls, ranks: int, dtype: str, flop_per_s: float, bytes_per_s: float) -> Self:
        """Return an operator whose product and collective take equally long at these speeds."""
        found = balance(dtype_bytes(dtype), flop_per_s, bytes_per_s)
        return cls(found.rows, found.depth * ranks, found.width, dtype)
