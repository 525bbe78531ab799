"""probed: find the message that a blocking probe waited for: the one that its thread receives next."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def next_received(probes: dict[str, Array], receives: dict[str, Array]) -> Array:
    """Return for each probe the row of `receives` that its thread receives next; -1: none that matches the probe.

    Columns of both: rank, thread, comm, peer, tag, `at_s`. In probes, a negative peer or tag matches any.
    """
    count = len(probes["rank"])
    both = {name: np.concatenate([probes[name], receives[name]]) for name in ("rank", "thread", "at_s")}
    is_receive = np.arange(len(both["rank"])) >= count
    order = np.lexsort((is_receive, both["at_s"], both["thread"], both["rank"]))
    place = np.where(is_receive[order], np.arange(len(order)), len(order))
    follows = np.minimum.accumulate(place[::-1])[::-1]
    found = np.full(count, -1, "i8")
    here = ~is_receive[order] & (follows < len(order))
    found[order[here]] = order[follows[here]] - count
    for name in ("rank", "thread", "comm", "peer", "tag"):
        alike = probes[name] == receives[name][found] if len(receives[name]) else found >= 0
        found[~(alike | (name in ("peer", "tag")) & (probes[name] < 0))] = -1
    return found
