"""exchange: how far apart the cores of ranks 0 and 1 are: seconds of an exchange of a word through shared memory."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from dovetail import _native
from dovetail.run.ranks.world import World

COUNT = 1000  # exchanges of one measurement
LIMIT_S = 1.0  # seconds that a rank waits for the other
PAGE_BYTES = 4096


class Exchange:
    """A page that ranks 0 and 1 of one machine map. Collective: made on every rank at once."""

    def __init__(self, world: World, path: Path, limit_s: float) -> None:
        if world.rank == 0:
            path.write_bytes(bytes(PAGE_BYTES))
        world.barrier(limit_s)
        self._rank = world.rank
        self._page = np.memmap(path, np.uint8, "r+", shape=(PAGE_BYTES,)) if world.rank < 2 else None

    def seconds(self) -> float:
        """Return the seconds of one exchange; NaN on other ranks, and where a rank does not come within a second.

        Ranks 0 and 1 call it at once.
        """
        if self._page is None:
            return math.nan
        found = _native.exchange_s(self._page, self._rank, COUNT, LIMIT_S)
        if found < 0:
            self._page = None  # no longer in step
        return found if found >= 0 else math.nan
