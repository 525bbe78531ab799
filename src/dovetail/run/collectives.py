"""collectives: NumPy versions of the library's collectives, for the reference executor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np

from dovetail.run.arrays import Array
from dovetail.run.reduce import combine

# Each takes every member's source, in group order, the numbers of slots they want, and the reduce op; gives what each
# receives. An all_to_all takes every member's parts instead, cut for each.
Semantics = Callable[[Sequence[Any], Sequence[int], str], Sequence[Array]]


def _total(sources: Sequence[Array], op: str) -> Array:
    return reduce(partial(combine, op), sources)


def all_reduce(sources: Sequence[Array], wanted: Sequence[int], op: str) -> Sequence[Array]:
    """Everybody receives the sum (or what else `op` makes), in group order, each step rounded to the dtype."""
    return [_total(sources, op)] * len(sources)


def all_gather(sources: Sequence[Array], wanted: Sequence[int], op: str) -> Sequence[Array]:
    """Everybody receives all sources one after the other; they may differ in length."""
    return [np.concatenate(sources)] * len(sources)


def reduce_scatter(sources: Sequence[Array], wanted: Sequence[int], op: str) -> Sequence[Array]:
    """The sum, cut into what each member wants, in group order."""
    return np.split(_total(sources, op), np.cumsum(wanted)[:-1])


def all_to_all(sources: Sequence[Sequence[Array]], wanted: Sequence[int], op: str) -> Sequence[Array]:
    """Source i has a part for each member; member j receives part j of everybody."""
    return [np.concatenate([parts[member] for parts in sources]) for member in range(len(sources))]


def broadcast(sources: Sequence[Array], wanted: Sequence[int], op: str) -> Sequence[Array]:
    """Everybody receives the first member's source."""
    return [sources[0]] * len(sources)


COLLECTIVES: dict[str, Semantics] = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "all_to_all": all_to_all,
    "broadcast": broadcast,
}
