"""matmul_all_to_all: rows of every rank's product go to the ranks that need them (from experts back to tokens)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dovetail.ir import Option, dtype_bytes
from dovetail.matmul.balanced_sizes import balance
from dovetail.matmul.blockwise import without_rings
from dovetail.matmul.product import ways_of
from dovetail.matmul.scattering import Scattering
from dovetail.matmul.token_counts import Exchanging


@dataclass(frozen=True)
class MatmulAllToAll(Exchanging, Scattering):
    """Rank q computes A_q·B_q from its own A_q (m_q, k) and B_q (k, n). Rank r gets the rows of all products that are
    for it, in the order of ranks.

    Parameters
    ----------
    m : int
        Rows of A over all ranks.
    k, n : int
        Columns of A, and of each rank's B.
    dtype : str
        float16, bfloat16, float32 or float64. Half types accumulate in float32.
    counts : tuple of tuple of int
        `counts[q][r]` rows of the product go from rank q to rank r, in the order of r. Default: shared evenly.

    Notes
    -----
    Sources: MC²'s MoE operators (as seed 000's library has them); seed 001 names the pattern.
    """

    name: ClassVar[str] = "matmul_all_to_all"
    families: ClassVar[tuple[str, ...]] = without_rings(Scattering)
    options: ClassVar[tuple[Option, ...]] = ways_of(Scattering, "library", "messages")

    @classmethod
    def sized(cls, ranks: int, dtype: str, flop_per_s: float, bytes_per_s: float) -> MatmulAllToAll:
        """Return an operator whose product and all_to_all take equally long at these speeds."""
        found = balance(dtype_bytes(dtype), flop_per_s, bytes_per_s)
        return cls(found.rows * ranks, found.depth, found.width, dtype)
