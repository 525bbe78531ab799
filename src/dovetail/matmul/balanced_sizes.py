"""balanced_sizes: sizes of a product whose compute takes as long as its communication, at given speeds."""

from __future__ import annotations

from typing import NamedTuple

SIDE_S = 0.06  # seconds of compute, and of communication: long against their overhead, short enough to repeat often
MOST_BYTES = 32 << 20  # most bytes that are communicated
ROWS, BLOCK = 2048, 64  # usual number of rows; sizes are multiples of BLOCK
LEAST_DEPTH, MOST_DEPTH = 8, 1 << 16  # limits, per rank, of the dimension that is not communicated


class Balance(NamedTuple):
    """Sizes of a balanced product: `rows` × `width` elements are communicated; `depth` is the third dimension of each
    rank's product (the contracted one, or the columns of each rank)."""

    rows: int
    width: int
    depth: int


def balance(element_bytes: int, flop_per_s: float, bytes_per_s: float) -> Balance:
    """Return sizes with which compute and communication each take SIDE_S at these speeds.

    >>> balance(4, 110e9, 118e6), balance(4, 110e9, 11.8e6)
    (Balance(rows=2048, width=896, depth=1864), Balance(rows=2752, width=64, depth=18648))
    """
    elements = min(SIDE_S * bytes_per_s, MOST_BYTES) / element_bytes
    width = _whole(elements / ROWS, BLOCK)
    rows = ROWS if width > BLOCK else _whole(elements / width, BLOCK)
    comm_s = rows * width * element_bytes / bytes_per_s
    return Balance(rows, width, min(_whole(comm_s * flop_per_s / (2 * rows * width), LEAST_DEPTH), MOST_DEPTH))


def _whole(count: float, block: int) -> int:
    """Return the nearest multiple of `block`, at least one block."""
    return max(round(count / block), 1) * block
