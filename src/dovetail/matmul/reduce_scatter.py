"""matmul_reduce_scatter: A and B are cut along k; every rank gets its own rows of the sum of all ranks' products."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

from dovetail.matmul.blocks import Blocks
from dovetail.matmul.contracting import Contracting
from dovetail.matmul.product import shard
from dovetail.matmul.scattering import Scattering


@dataclass(frozen=True)
class MatmulReduceScatter(Contracting, Scattering):
    """C = A·B with A (m, k) and B (k, n) cut along k over the ranks; rank r gets its share of C's rows.

    Parameters
    ----------
    m, k, n : int
        Sizes of the whole product, over all ranks. Any may be 0.
    dtype : str
        float16, bfloat16, float32 or float64. Half types accumulate in float32.
    shares : tuple of int
        Columns of A, and rows of B, on each rank. Default: shared evenly.

    Notes
    -----
    Shares of C's rows differ by at most one. Sources: seed 000 (MatmulReduceScatter of MC²); PyTorch's
    fused_matmul_reduce_scatter.

    >>> MatmulReduceScatter(4096, 4096, 1024).title
    'matmul_reduce_scatter 4096 × 4096 × 1024 float32'
    """

    name: ClassVar[str] = "matmul_reduce_scatter"
    kind: ClassVar[str] = "reduce_scatter"
    ways: ClassVar[tuple[str, ...]] = ("library", "messages", "ring", "two_rings")
    sums: ClassVar[bool] = True

    def blocks(self, ranks: int) -> Blocks:
        rows = shard(self.m, ranks)
        starts = tuple(accumulate(rows, initial=0))[:-1]
        return Blocks((rows,) * ranks, (starts,) * ranks)
