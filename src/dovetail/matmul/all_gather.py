"""all_gather_matmul: A cut by rows, B by columns; every rank multiplies all of A by its own B."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from dovetail.core import parse_count
from dovetail.ir import Option, Studied, dtype_bytes
from dovetail.matmul.blocks import Blocks
from dovetail.matmul.ficco import MI300X, SCENARIOS
from dovetail.matmul.gathering import Gathering
from dovetail.matmul.product import (
    Said,
    Told,
    balance,
    checked_shares,
    parse_flag,
    shares_for,
    the_same,
    uneven_or_none,
)


@dataclass(frozen=True)
class AllGatherMatmul(Gathering):
    """C_r = A·B_r on every rank r, with A (m, k) cut by rows over the ranks and B_r (k, n_r) its own: n = Σ n_r.

    `several`: so many B on each rank, each with a result. `gathered`: every rank gets all of A, too. `rows`, `columns`:
    what each rank has of A and of B; shared evenly unless given. Sources: seed 000
    (AllGatherMatmul of MC²), seed 001 (data-parallel all-gather, then GEMM).

    >>> AllGatherMatmul(4096, 4096, 1024).title
    'all_gather_matmul 4096 × 4096 × 1024 float32'
    """

    name: ClassVar[str] = "all_gather_matmul"
    said: ClassVar[Mapping[str, Said]] = {"gathered": Said(partial(parse_flag, name="gathered"), default=False)}
    options: ClassVar[tuple[Option, ...]] = (
        *Gathering.options,
        Option("several", int, "Matrices B on each rank, each with a result of its own.", 1, least=1),
        Option("gathered", bool, "Return the gathered A, too.", False),
    )

    several: int = 1
    gathered: bool = False
    rows: tuple[int, ...] | None = None
    columns: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "several", parse_count(self.several, "several", least=1))
        object.__setattr__(self, "gathered", parse_flag(self.gathered, "gathered"))
        object.__setattr__(self, "rows", checked_shares(self.rows, self.m, "rows"))
        object.__setattr__(self, "columns", checked_shares(self.columns, self.n, "columns"))

    @property
    def results(self) -> int:
        return self.several

    @property
    def wants_gathered(self) -> bool:
        return self.gathered

    def blocks(self, ranks: int) -> Blocks:
        return Blocks.gathered(shares_for(self.rows, self.m, ranks, "rows"))

    def widths(self, ranks: int) -> tuple[int, ...]:
        return shares_for(self.columns, self.n, ranks, "columns")

    def part(self, rows: int, ranks: int) -> AllGatherMatmul:
        return replace(self, m=rows * ranks, rows=None)

    @classmethod
    def studied(cls) -> Sequence[Studied]:
        """FiCCO's g1 to g16, of bfloat16, which the paper does not name; those of experts as if gathered."""
        return [Studied(name, cls(m, k, n, "bfloat16"), MI300X) for name, (m, n, k) in SCENARIOS.items()]

    @classmethod
    def of_ranks(cls, told: Sequence[Told]) -> AllGatherMatmul:
        k = the_same(told, lambda rank: rank.a[1], "columns of A")
        several = the_same(told, lambda rank: rank.several, "matrices B")
        gathered = the_same(told, lambda rank: bool(rank.said.get("gathered")), "as `gathered`")
        rows, columns = [rank.a[0] for rank in told], [rank.b[1] for rank in told]
        shares = uneven_or_none(rows), uneven_or_none(columns)
        return cls(sum(rows), k, sum(columns), told[0].dtype, several, gathered, *shares)

    @classmethod
    def pilot(cls, ranks: int, dtype: str) -> AllGatherMatmul:
        """A small one, to see what this machine does a second."""
        return cls(512, 512, 512 * ranks, dtype)

    @classmethod
    def sized(cls, ranks: int, dtype: str, flop_per_s: float, bytes_per_s: float) -> AllGatherMatmul:
        """One whose sides take as long at these speeds of a rank and of the all_gather."""
        found = balance(dtype_bytes(dtype), flop_per_s, bytes_per_s)
        return cls(found.rows, found.width, found.depth * ranks, dtype)
