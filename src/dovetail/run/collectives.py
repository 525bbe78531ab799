"""What the library's own collectives compute, for the reference executor."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dovetail.run.arrays import Array

# Each takes every member's source, in group order, and the numbers of slots they want; gives what each receives.
Semantics = Callable[[Sequence[Array], Sequence[int]], Sequence[Array]]


def _sum(sources: Sequence[Array]) -> Array:
    total = sources[0].copy()
    for source in sources[1:]:
        total = total + source
    return total


def all_reduce(sources: Sequence[Array], wanted: Sequence[int]) -> Sequence[Array]:
    """Everybody receives the sum, added up in group order, each step rounded to the dtype."""
    return [_sum(sources)] * len(sources)


def all_gather(sources: Sequence[Array], wanted: Sequence[int]) -> Sequence[Array]:
    """Everybody receives all sources one after the other; they may differ in length."""
    return [np.concatenate(sources)] * len(sources)


def reduce_scatter(sources: Sequence[Array], wanted: Sequence[int]) -> Sequence[Array]:
    """The sum, cut into what each member wants, in group order."""
    return np.split(_sum(sources), np.cumsum(wanted)[:-1])


def all_to_all(sources: Sequence[Array], wanted: Sequence[int]) -> Sequence[Array]:
    """Source i is cut into one even part for each member; member j receives part j of everybody."""
    parts = [np.split(source, len(sources)) for source in sources]
    return [np.concatenate([part[member] for part in parts]) for member in range(len(sources))]


def broadcast(sources: Sequence[Array], wanted: Sequence[int]) -> Sequence[Array]:
    """Everybody receives the first member's source."""
    return [sources[0]] * len(sources)


COLLECTIVES: dict[str, Semantics] = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "all_to_all": all_to_all,
    "broadcast": broadcast,
}
