"""matmul_shift: every rank's product goes to the next rank, as between stages of a circular pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from dovetail.ir import Option, Schedule, dtype_bytes
from dovetail.ir.abilities import RankArguments
from dovetail.matmul.balanced_sizes import balance
from dovetail.matmul.blocks import Blocks
from dovetail.matmul.blockwise import without_rings
from dovetail.matmul.product import Share, shape_of_a, shape_of_b, the_same, uneven_or_none, ways_of
from dovetail.matmul.scattering import Scattering


@dataclass(frozen=True)
class MatmulShift(Scattering):
    """Rank r gets A_q·B_q of rank q = r - 1 (rank 0 that of the last rank); A_q (m_q, k) and B_q (k, n) are rank q's
    own.

    Parameters
    ----------
    m : int
        Rows of A over all ranks.
    k, n : int
        Columns of A, and of each rank's B.
    dtype : str
        float16, bfloat16, float32 or float64. Half types accumulate in float32.
    rows : tuple of int
        Rows of A on each rank. Default: shared evenly.

    Notes
    -----
    The library's call is an all_to_all whose other parts are empty.

    >>> MatmulShift(8, 4, 2).blocks(2).counts
    ((0, 4), (4, 0))
    """

    name: ClassVar[str] = "matmul_shift"
    kind: ClassVar[str] = "all_to_all"
    families: ClassVar[tuple[str, ...]] = without_rings(Scattering)
    options: ClassVar[tuple[Option, ...]] = ways_of(Scattering, "library", "messages")
    cuts: ClassVar[Mapping[str, Share]] = {"rows": Share("m", "rows")}

    rows: tuple[int, ...] | None = None

    def blocks(self, ranks: int) -> Blocks:
        held = self.share("rows", ranks)
        counts = tuple(tuple(own * (r == (q + 1) % ranks) for r in range(ranks)) for q, own in enumerate(held))
        return Blocks(counts, ((0,) * ranks,) * ranks)

    def part(self, rows: int, ranks: int) -> MatmulShift:
        return replace(self, m=rows * ranks, rows=None)

    def at_once(self, ranks: int) -> int:
        return 1

    def describe(self, schedule: Schedule, ranks: int) -> str:
        way = "the library’s all_to_all" if schedule["by"] == "library" else "messages"
        return f"sent to the next rank by {way}, tile by tile"

    @classmethod
    def of_ranks(cls, arguments: Sequence[RankArguments]) -> MatmulShift:
        k = the_same(arguments, lambda rank: shape_of_a(rank)[1], "columns of A")
        n = the_same(arguments, lambda rank: shape_of_b(rank)[1], "columns of B")
        rows = [shape_of_a(rank)[0] for rank in arguments]
        return cls(sum(rows), k, n, arguments[0].dtype, uneven_or_none(rows))

    @classmethod
    def pilot(cls, ranks: int, dtype: str) -> MatmulShift:
        """Return a small operator with which to measure this machine's speed."""
        return cls(512 * ranks, 512, 512, dtype)

    @classmethod
    def sized(cls, ranks: int, dtype: str, flop_per_s: float, bytes_per_s: float) -> MatmulShift:
        """Return an operator whose product and all_to_all take equally long at these speeds."""
        found = balance(dtype_bytes(dtype), flop_per_s, bytes_per_s)
        return cls(found.rows * ranks, found.depth, found.width, dtype)
