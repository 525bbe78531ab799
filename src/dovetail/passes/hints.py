"""Hints: what the author of an algorithm asked of the passes, op by op."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.ir import Program


class Hints(NamedTuple):
    """Beside a traced Program (one net lane a rank, ops in the order written): one entry for each op.

    `channel`: the channel id asked for, -1: any; a send and its receive ask alike. `lane`: the lane (threadblock) asked
    for on the op's own rank, -1: any. `copies`: into how many parallel instances the op is cut (1: none).
    """

    channel: NDArray[np.int32]
    lane: NDArray[np.int32]
    copies: NDArray[np.int32]


def no_hints(program: Program) -> Hints:
    """Any channel, any lane, one instance."""
    n = program.num_ops
    return Hints(np.full(n, -1, np.int32), np.full(n, -1, np.int32), np.ones(n, np.int32))
