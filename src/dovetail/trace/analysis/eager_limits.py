"""eager_limits: from which size messages wait for their receive, between each two ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray


class EagerLimit(NamedTuple):
    """What a trace shows of the size from which sends wait for their receive.

    `eager_bytes`: largest message that did not wait. `rendezvous_bytes`: smallest that did. None: no such message.
    """

    eager_bytes: int | None = None
    rendezvous_bytes: int | None = None

    def filled(self, other: EagerLimit) -> EagerLimit:
        """Return the limit with what it lacks from another one, unless that contradicts it."""
        eager, held = self
        if eager is None and other.eager_bytes is not None and (held is None or other.eager_bytes < held):
            eager = other.eager_bytes
        if held is None and other.rendezvous_bytes is not None and (eager is None or other.rendezvous_bytes > eager):
            held = other.rendezvous_bytes
        return EagerLimit(eager, held)


@dataclass(frozen=True)
class EagerLimits:
    """The limits between each two ranks. Libraries have one inside a host, and another one between hosts.

    `of_pair`: by source and destination. `of_way`: of all pairs inside a host (True), or between hosts (False), for
    pairs whose own messages do not show it. `hosts`: of each rank; empty: all ranks are on one.
    """

    of_pair: Mapping[tuple[int, int], EagerLimit] = field(default_factory=dict)
    of_way: Mapping[bool, EagerLimit] = field(default_factory=dict)
    hosts: Sequence[str] = ()

    def of(self, src: int, dst: int) -> EagerLimit:
        """Return the limit of messages from one rank to another."""
        alike = self.of_way.get(_is_inside(self.hosts, src, dst), EagerLimit())
        return self.of_pair.get((src, dst), EagerLimit()).filled(alike)

    def is_rendezvous(self, num_bytes: ArrayLike, src: ArrayLike, dst: ArrayLike) -> NDArray[np.bool_]:
        """Return whether messages of these sizes in bytes, between these ranks, wait for their receive."""
        sizes, pairs = np.asarray(num_bytes), np.asarray(src, "i8") << 32 | np.asarray(dst, "i8")
        distinct, which = np.unique(pairs, return_inverse=True)
        found = (self.of(int(pair) >> 32, int(pair) & 0xFFFFFFFF).rendezvous_bytes for pair in distinct)
        least = np.array([np.inf if it is None else it for it in found])
        held: NDArray[np.bool_] = sizes >= least[which].reshape(sizes.shape)
        return held


def eager_limits(
    pairs: tuple[NDArray[Any], NDArray[Any]], num_bytes: NDArray[Any], held: NDArray[np.bool_], hosts: Sequence[str]
) -> EagerLimits:
    """Return the limits that messages show, given their sources and destinations, bytes, and whether each waited."""
    src, dst = (side.astype("i8") for side in pairs)
    inside = np.array([_is_inside(hosts, *pair) for pair in zip(src.tolist(), dst.tolist(), strict=True)], bool)
    keys = src << 32 | dst
    of_pair = {(key >> 32, key & 0xFFFFFFFF): _limit(num_bytes, held, keys == key) for key in np.unique(keys).tolist()}
    of_way = {way: _limit(num_bytes, held, inside == way) for way in np.unique(inside).tolist()}
    return EagerLimits(of_pair, of_way, hosts)


def _is_inside(hosts: Sequence[str], src: int, dst: int) -> bool:
    known = min(src, dst) >= 0 and max(src, dst) < len(hosts)
    return not known or hosts[src] == hosts[dst]


def _limit(num_bytes: NDArray[Any], held: NDArray[np.bool_], chosen: NDArray[np.bool_]) -> EagerLimit:
    """Return the limit by which more than half of the chosen messages of each size waited, or did not."""
    sizes, which = np.unique(num_bytes[chosen], return_inverse=True)
    share = np.bincount(which, held[chosen], len(sizes)) / np.maximum(np.bincount(which, minlength=len(sizes)), 1)
    waits = sizes[share > 0.5]
    free = sizes[share <= 0.5]
    return EagerLimit(int(free[-1]) if len(free) else None, int(waits[0]) if len(waits) else None)
