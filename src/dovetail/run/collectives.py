"""collectives: NumPy versions of the library's collectives, for the reference executor."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

import numpy as np

from dovetail.ir.collectives import COLLECTIVES
from dovetail.run.arrays import Array
from dovetail.run.reduce import combine


def received(kind: str, sources: Sequence[Any], wanted: Sequence[int], op: str) -> Sequence[Array]:
    """Return what each member of a collective receives.

    Parameters
    ----------
    kind : str
        One of OP_COLLECTIVES.
    sources : sequence of arrays
        The input of each member, in the order of the group; for an all_to_all a list of arrays, one for each member.
    wanted : sequence of int
        The number of slots that each member receives, if outputs are cut from a whole.
    op : str
        The reduction, in the order of the group, with each step rounded to the dtype.

    Examples
    --------
    >>> given = [np.array([1, 2, 3]), np.array([4, 5, 6])]
    >>> [part.tolist() for part in received("reduce_scatter", given, [2, 1], "sum")]
    [[5, 7], [9]]
    """
    traits, members = COLLECTIVES[kind], range(len(sources))
    if traits.exchanges:
        return [np.concatenate([parts[member] for parts in sources]) for member in members]
    whole = sources[0]
    if traits.reduces:
        whole = reduce(partial(combine, op), sources)
    elif traits.joined:
        whole = np.concatenate(sources)
    return np.split(whole, np.cumsum(wanted)[:-1]) if traits.cut else [whole] * len(sources)
