"""all_to_all_matmul: rows of A go to the ranks that need them (tokens to experts); each rank has its own B."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dovetail.ir import Option, PublishedCase, dtype_bytes
from dovetail.matmul.balanced_sizes import balance
from dovetail.matmul.blockwise import without_rings
from dovetail.matmul.ficco import EXPERTS, GPUS, MI300X, SCENARIOS
from dovetail.matmul.gathering import Gathering
from dovetail.matmul.product import ways_of
from dovetail.matmul.token_counts import Exchanging


@dataclass(frozen=True)
class AllToAllMatmul(Exchanging, Gathering):
    """C_r = A_r·B_r on rank r, where A_r (m_r, k) are the rows that all ranks have for rank r, in the order of ranks,
    and B_r (k, n) is rank r's own.

    Parameters
    ----------
    m : int
        Rows of A over all ranks.
    k, n : int
        Columns of A, and of each rank's B.
    dtype : str
        float16, bfloat16, float32 or float64. Half types accumulate in float32.
    counts : tuple of tuple of int
        `counts[q][r]` rows go from rank q to rank r, in the order of r in q's A. Default: shared evenly.

    Notes
    -----
    Sources: seed 001 (expert-parallel all-to-all, then GEMM); MC²'s MoE operators.

    >>> AllToAllMatmul(8, 4, 4, counts=((1, 3), (4, 0))).blocks(2).rows(0)
    5
    """

    name: ClassVar[str] = "all_to_all_matmul"
    families: ClassVar[tuple[str, ...]] = without_rings(Gathering)
    options: ClassVar[tuple[Option, ...]] = ways_of(Gathering, "library", "messages")
    ways: ClassVar[tuple[str, ...]] = ("library", "messages")

    def widths(self, ranks: int) -> tuple[int, ...]:
        return (self.n,) * ranks

    @classmethod
    def published_cases(cls) -> Sequence[PublishedCase]:
        """Return FiCCO's scenarios g13 to g16 in bfloat16: each GPU multiplies its M rows by N / 8 columns."""
        shapes = ((name, SCENARIOS[name]) for name in EXPERTS)
        return [PublishedCase(name, cls(m * GPUS, k, n // GPUS, "bfloat16"), MI300X) for name, (m, n, k) in shapes]

    @classmethod
    def sized(cls, ranks: int, dtype: str, flop_per_s: float, bytes_per_s: float) -> AllToAllMatmul:
        """Return an operator whose product and all_to_all take equally long at these speeds."""
        found = balance(dtype_bytes(dtype), flop_per_s, bytes_per_s)
        return cls(found.rows * ranks, found.width, found.depth, dtype)
