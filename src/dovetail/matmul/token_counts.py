"""token_counts: the number of rows that each rank sends to each other rank, given or even; operators with counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from dovetail.core import OperatorError, parse_count
from dovetail.ir.abilities import CallOption, RankArguments
from dovetail.matmul.blocks import Blocks
from dovetail.matmul.product import Product, shape_of_a, shape_of_b, shard, the_same

Counts = tuple[tuple[int, ...], ...]


def checked_counts(counts: Any, m: int) -> Counts | None:
    """Return counts as a square table of whole numbers, or None. Raises OperatorError if their sum is not m."""
    if counts is None:
        return None
    listed = isinstance(counts, list | tuple | np.ndarray) and all(np.iterable(row) for row in counts)
    if not listed:
        raise OperatorError("counts need a row and a column for each rank", found=repr(counts), hint="counts[from][to]")
    rows = tuple(tuple(parse_count(value, "a count of rows") for value in row) for row in counts)
    if any(len(row) != len(rows) for row in rows):
        raise OperatorError(
            "counts need a row and a column for each rank", found=f"rows of {[len(row) for row in rows]}"
        )
    if sum(map(sum, rows)) != m:
        raise OperatorError(f"the counts do not add up to m = {m} rows", found=f"{sum(map(sum, rows))} rows")
    return rows


def counts_for(counts: Counts | None, m: int, ranks: int) -> Counts:
    """Return the counts for `ranks` ranks: as given, else each rank's rows, shared evenly among all ranks."""
    if counts is None:
        return tuple(shard(rows, ranks) for rows in shard(m, ranks))
    if len(counts) != ranks:
        raise OperatorError(f"the counts are for {len(counts)} ranks", found=f"{ranks} ranks", hint="counts[from][to]")
    return counts


def own_counts(value: Any) -> tuple[int, ...] | None:
    """Return this rank's row of counts, as whole numbers; None for even shares.

    >>> own_counts([2, 0]), own_counts(None)
    ((2, 0), None)
    """
    if value is None:
        return None
    if not isinstance(value, list | tuple | np.ndarray):
        raise OperatorError("counts must be a list: how many rows of this rank go to each rank", found=repr(value))
    return tuple(parse_count(each, "a count of rows") for each in value)


def counts_of_ranks(arguments: Sequence[RankArguments]) -> Counts:
    """Return the table of counts from each rank's argument `counts`; ranks without it share their rows evenly. Raises
    OperatorError, naming the rank, if a row does not fit the rank's A."""
    given = [rank.options.get("counts") for rank in arguments]
    ranks = len(arguments)
    rows = [shard(shape_of_a(arguments[q])[0], ranks) if row is None else tuple(row) for q, row in enumerate(given)]
    for rank, row in enumerate(rows):
        if len(row) != ranks:
            raise OperatorError(
                f"rank {rank} gives {len(row)} counts", found=f"{ranks} ranks", hint="one count for each rank"
            )
        if sum(row) != shape_of_a(arguments[rank])[0]:
            raise OperatorError(
                f"rank {rank} counts {sum(row)} rows", found=f"its A has {shape_of_a(arguments[rank])[0]}"
            )
    return tuple(rows)


@dataclass(frozen=True)
class Exchanging(Product):
    """A product before or after which ranks exchange rows: `counts[q][r]` rows go from rank q to rank r."""

    kind: ClassVar[str] = "all_to_all"

    counts: Counts | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "counts", checked_counts(self.counts, self.m))

    def blocks(self, ranks: int) -> Blocks:
        return Blocks.exchanged(counts_for(self.counts, self.m, ranks))

    def part(self, rows: int, ranks: int) -> Self:
        return replace(self, m=rows * ranks * ranks, counts=None)

    @classmethod
    def call_options(cls) -> Mapping[str, CallOption]:
        about = "Number of this rank's rows that go to each rank, in order. Default: shared evenly."
        return {"counts": CallOption(own_counts, help=about)}

    @classmethod
    def of_ranks(cls, arguments: Sequence[RankArguments]) -> Self:
        k = the_same(arguments, lambda rank: shape_of_a(rank)[1], "columns of A")
        n = the_same(arguments, lambda rank: shape_of_b(rank)[1], "columns of B")
        counts = counts_of_ranks(arguments)
        return cls(sum(map(sum, counts)), k, n, arguments[0].dtype, counts=counts)

    @classmethod
    def pilot(cls, ranks: int, dtype: str) -> Self:
        """Return a small operator with which to measure this machine's speed."""
        return cls(512 * ranks, 512, 512, dtype)
