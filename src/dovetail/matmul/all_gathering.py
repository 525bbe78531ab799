"""all_gathering: base class of operators whose ranks each multiply all of A by their own B."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Self

from dovetail.core import OperatorError, parse_count
from dovetail.ir import Option, dtype_bytes
from dovetail.ir.abilities import CallOption, RankArguments
from dovetail.matmul.balanced_sizes import balance
from dovetail.matmul.gathering import Gathering
from dovetail.matmul.product import parse_flag, the_same

RESULTS = (
    Option("several", int, "Matrices B on each rank, each with its own result.", 1, least=1),
    Option("gathered", bool, "Return the gathered A, too.", False),
)
MOST_SEVERAL = 1024


@dataclass(frozen=True)
class AllGathering(Gathering):
    """An all-gather of A, then products. `several`: number of matrices B on each rank, each with its own result.
    `gathered`: every rank also returns all of A. Derived classes define how A is cut; their field `columns` is each
    rank's share of B."""

    options: ClassVar[tuple[Option, ...]] = (*Gathering.options, *RESULTS)

    several: int = 1
    gathered: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "several", parse_count(self.several, "several", least=1))
        if self.several > MOST_SEVERAL:
            raise OperatorError(f"{self.several} matrices B on each rank", hint=f"at most {MOST_SEVERAL}")
        object.__setattr__(self, "gathered", parse_flag(self.gathered, "gathered"))

    @classmethod
    def call_options(cls) -> Mapping[str, CallOption]:
        read = partial(parse_flag, name="gathered")
        return {"gathered": CallOption(read, False, "Whether every rank gets all of A, too.")}

    @property
    def results(self) -> int:
        return self.several

    @property
    def wants_gathered(self) -> bool:
        return self.gathered

    def widths(self, ranks: int) -> tuple[int, ...]:
        return self.share("columns", ranks)

    @classmethod
    def sized(cls, ranks: int, dtype: str, flop_per_s: float, bytes_per_s: float) -> Self:
        """Return an operator whose product and all_gather take equally long at these speeds."""
        found = balance(dtype_bytes(dtype), flop_per_s, bytes_per_s)
        return cls(found.rows, found.width, found.depth * ranks, dtype)


def agreed(arguments: Sequence[RankArguments]) -> tuple[int, bool]:
    """Return the number of matrices B, and whether A is a result. Raises OperatorError if ranks disagree."""
    several = the_same(arguments, lambda rank: len(rank.shapes) - 1, "matrices B")
    return several, the_same(arguments, lambda rank: bool(rank.options.get("gathered")), "as `gathered`")
