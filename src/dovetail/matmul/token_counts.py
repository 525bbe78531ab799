"""token_counts: how many rows each rank has for each other, as given, or shared evenly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dovetail.core import WishError, parse_count
from dovetail.matmul.product import Said, Told, shard

Counts = tuple[tuple[int, ...], ...]


def checked_counts(counts: Any, m: int) -> Counts | None:
    """Counts as a square of whole numbers that add up to m, or None where there are none; WishError."""
    if counts is None:
        return None
    listed = isinstance(counts, list | tuple | np.ndarray) and all(np.iterable(row) for row in counts)
    if not listed:
        raise WishError("counts need a row and a column for each rank", found=repr(counts), hint="counts[from][to]")
    rows = tuple(tuple(parse_count(value, "a count of rows") for value in row) for row in counts)
    if any(len(row) != len(rows) for row in rows):
        raise WishError("counts need a row and a column for each rank", found=f"rows of {[len(row) for row in rows]}")
    if sum(map(sum, rows)) != m:
        raise WishError(f"the counts do not add up to m = {m} rows", found=f"{sum(map(sum, rows))} rows")
    return rows


def counts_for(counts: Counts | None, m: int, ranks: int) -> Counts:
    """Counts for so many ranks: those given, else every rank's share of the rows, shared among all."""
    if counts is None:
        return tuple(shard(rows, ranks) for rows in shard(m, ranks))
    if len(counts) != ranks:
        raise WishError(f"the counts are for {len(counts)} ranks", found=f"{ranks} ranks", hint="counts[from][to]")
    return counts


def own_counts(value: Any) -> tuple[int, ...] | None:
    """This rank's own row of counts, as whole numbers; None for even shares. WishError.

    >>> own_counts([2, 0]), own_counts(None)
    ((2, 0), None)
    """
    if value is None:
        return None
    if not isinstance(value, list | tuple | np.ndarray):
        raise WishError("counts are this rank's rows for each rank", found=repr(value))
    return tuple(parse_count(each, "a count of rows") for each in value)


SAID = {"counts": Said(own_counts)}


def counts_of_ranks(told: Sequence[Told]) -> Counts:
    """Each rank's own row of counts, as it said with `counts`, else even shares of its rows. WishError, naming the
    rank, where a row does not fit its A."""
    given = [rank.said.get("counts") for rank in told]
    rows = [shard(told[q].a[0], len(told)) if row is None else tuple(row) for q, row in enumerate(given)]
    for rank, row in enumerate(rows):
        if len(row) != len(told):
            raise WishError(f"rank {rank} gives {len(row)} counts", found=f"{len(told)} ranks", hint="one for each")
        if sum(row) != told[rank].a[0]:
            raise WishError(f"rank {rank} counts {sum(row)} rows", found=f"its A has {told[rank].a[0]}")
    return tuple(rows)
