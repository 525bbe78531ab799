"""rank_0: let rank 0 read from the cache for all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dovetail.run.ranks.embedded import STALL_S
from dovetail.run.ranks.together import words_of
from dovetail.run.ranks.world import World
from dovetail.store import Recalled

T = TypeVar("T")


def read_by_rank_0(world: World, read: Callable[[], Recalled[T]]) -> Recalled[T]:
    """Return rank 0's `read()` on every rank. If it raises, return no value and the error's text as `why_not`."""
    with world.together():
        found = None
        if world.rank == 0:
            try:
                found = read()
            except Exception as error:  # of any kind: the other ranks wait for rank 0
                found = Recalled(None, words_of(error))
        shared: Recalled[T] = world.share(found, STALL_S)
    return shared
