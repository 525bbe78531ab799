"""matmul_all_to_all: rows of every rank's product go back to the ranks that want them (from experts to tokens)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from dovetail.ir import Option, dtype_bytes
from dovetail.matmul.gather import Blocks
from dovetail.matmul.product import Said, Told, balance, the_same, ways_of
from dovetail.matmul.scattering import Scattering
from dovetail.matmul.token_counts import SAID, Counts, checked_counts, counts_for, counts_of_ranks


@dataclass(frozen=True)
class MatmulAllToAll(Scattering):
    """Rank q computes A_q·B_q, with A_q (m_q, k) and B_q (k, n) its own; the rows for rank r go to rank r, which gets
    those of all ranks, in the order of ranks.

    `m`: rows over all ranks; `counts[q][r]` of them are rank q's for rank r, in the order of r; shared evenly unless
    given. Source: MC²'s MoE operators (references of seed 000); seed 001 names the pattern.
    """

    name: ClassVar[str] = "matmul_all_to_all"
    said: ClassVar[Mapping[str, Said]] = SAID
    options: ClassVar[tuple[Option, ...]] = ways_of(Scattering, "library", "messages")
    kind: ClassVar[str] = "all_to_all"

    counts: Counts | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "counts", checked_counts(self.counts, self.m))

    def blocks(self, ranks: int) -> Blocks:
        return Blocks.exchanged(counts_for(self.counts, self.m, ranks))

    def part(self, rows: int, ranks: int) -> MatmulAllToAll:
        return replace(self, m=rows * ranks * ranks, counts=None)

    @classmethod
    def of_ranks(cls, told: Sequence[Told]) -> MatmulAllToAll:
        k = the_same(told, lambda rank: rank.a[1], "columns of A")
        n = the_same(told, lambda rank: rank.b[1], "columns of B")
        counts = counts_of_ranks(told)
        return cls(sum(map(sum, counts)), k, n, told[0].dtype, counts)

    @classmethod
    def pilot(cls, ranks: int, dtype: str) -> MatmulAllToAll:
        """A small one, to see what this machine does a second."""
        return cls(512 * ranks, 512, 512, dtype)

    @classmethod
    def sized(cls, ranks: int, dtype: str, flop_per_s: float, bytes_per_s: float) -> MatmulAllToAll:
        """One whose sides take as long at these speeds of a rank and of the all_to_all."""
        found = balance(dtype_bytes(dtype), flop_per_s, bytes_per_s)
        return cls(found.rows * ranks, found.depth, found.width, dtype)
