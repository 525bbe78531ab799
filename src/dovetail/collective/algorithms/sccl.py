"""sccl: an algorithm that SCCL found for the DGX-1 (Cai et al. 2021, table 4; seed 002, section 7.5)."""

from __future__ import annotations

from typing import Any

from dovetail.collective.algorithm import Algorithm
from dovetail.core import OperatorError

# NVLinks between the eight V100 of a DGX-1, 6 per GPU: two fully connected quads, and a link from each GPU to its
# counterpart in the other quad.
_DOUBLE = ((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7))
_SINGLE = ((0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7))
DGX1_LINKS = dict.fromkeys(_SINGLE, 1) | dict.fromkeys(_DOUBLE, 2)


def sccl_122_all_gather(num_ranks: int = 8, *, in_place: bool = False, **settings: Any) -> Algorithm:
    """Send to all neighbours, then forward the other quad's data: SCCL's (1 chunk, 2 steps, 2 rounds) on a DGX-1."""
    if num_ranks != 8:
        raise OperatorError(f"sccl_122_all_gather on {num_ranks} ranks", hint="a DGX-1 has 8 GPUs")
    p = Algorithm("sccl_122_all_gather", "all_gather", num_ranks, in_place=in_place, **settings)
    far = {}
    for rank in range(num_ranks):
        own = p.chunk(rank, "input", 0).copy(rank, "output", rank)
        far[rank ^ 4] = own.copy(rank ^ 4)
        for turn in (1, 2, 3):
            own.copy(rank ^ turn)
    for rank, chunk in far.items():
        for turn in (1, 2, 3):
            chunk.copy(rank ^ turn)
    return p
