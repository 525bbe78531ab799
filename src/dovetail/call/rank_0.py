"""rank_0: what rank 0 reads in the cache, or is given, on every rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dovetail.run.mpi.embedded import STALL_S
from dovetail.run.mpi.together import words_of
from dovetail.run.mpi.world import World
from dovetail.store import Recalled

T = TypeVar("T")


def read_by_rank_0(world: World, read: Callable[[], Recalled[T]]) -> Recalled[T]:
    """Return what `read` finds on rank 0, and why that is not used, on every rank; if it raises, only why."""
    with world.together():
        found = None
        if world.rank == 0:
            try:
                found = read()
            except Exception as error:  # whatever it is: the other ranks wait for this one
                found = Recalled(None, words_of(error))
        shared: Recalled[T] = world.share(found, STALL_S)
    return shared
