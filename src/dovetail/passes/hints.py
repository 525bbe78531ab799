"""hints: what an algorithm's author asks of the passes, op by op."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.ir import Program


class Hints(NamedTuple):
    """The author's requests for a traced Program (one net lane per rank, ops in the order written): one entry per op.

    `channel`: the channel id, -1: any; the same for a send and its receive. `lane`: the lane (threadblock) on the op's
    own rank, -1: any. `copies`: number of parallel instances into which the op is cut (1: it is not cut).
    """

    channel: NDArray[np.int32]
    lane: NDArray[np.int32]
    copies: NDArray[np.int32]

    def of(self, rows: NDArray[Any]) -> Hints:
        """Return the entries of `rows`, in that order."""
        return Hints(*(hint[rows] for hint in self))

    def agree(self, one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
        """Return for each pair of rows whether one op could meet the requests of both."""
        same: NDArray[np.bool_] = self.copies[one] == self.copies[other]
        for hint in (self.channel, self.lane):
            same &= (hint[one] == hint[other]) | (hint[one] < 0) | (hint[other] < 0)
        return same


def no_hints(program: Program) -> Hints:
    """Return hints without requests: any channel, any lane, one instance."""
    n = program.num_ops
    return Hints(np.full(n, -1, np.int32), np.full(n, -1, np.int32), np.ones(n, np.int32))
