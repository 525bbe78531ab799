"""probed: find the message that a blocking probe waited for: the one that its thread receives next."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def next_taken(probes: dict[str, Array], takes: dict[str, Array]) -> Array:
    """Return for each probe the row of `takes` that its thread receives next; -1: none, or it does not match the probe.

    Columns of both: rank, thread, comm, peer, tag, `at_s`. In probes, a negative peer or tag matches any.
    """
    count = len(probes["rank"])
    both = {name: np.concatenate([probes[name], takes[name]]) for name in ("rank", "thread", "at_s")}
    is_take = np.arange(len(both["rank"])) >= count
    order = np.lexsort((is_take, both["at_s"], both["thread"], both["rank"]))
    place = np.where(is_take[order], np.arange(len(order)), len(order))
    follows = np.minimum.accumulate(place[::-1])[::-1]
    found = np.full(count, -1, "i8")
    here = ~is_take[order] & (follows < len(order))
    found[order[here]] = order[follows[here]] - count
    for name in ("rank", "thread", "comm", "peer", "tag"):
        alike = probes[name] == takes[name][found] if len(takes[name]) else found >= 0
        found[~(alike | (name in ("peer", "tag")) & (probes[name] < 0))] = -1
    return found
