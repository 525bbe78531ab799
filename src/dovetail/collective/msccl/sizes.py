"""sizes: find the largest buffer for which a file completes.

The runtimes send as many chunks of a step in one message as it can hold, and chunks grow with the buffer:
a message holds `MESSAGE_BYTES // (bytes / nchunksperloop)` chunks, at least 1. A step of more chunks needs several
messages, and these take more places in the channel.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.collective.msccl.lower import in_pieces
from dovetail.collective.msccl.parts import DIALECTS, MESSAGE_BYTES, Header
from dovetail.ir import Program
from dovetail.ir.collectives import traits_of
from dovetail.ir.proof.verify import least_depth

_MOST_MESSAGES = 1 << 19  # of a program that is cut
_STEPS_IN_MESSAGE = 4  # that a Simple message holds; in rooted collectives a message is one step


class Split(NamedTuple):
    """The smallest messages for which channels suffice: `chunks` chunks. `depth`: what one-chunk messages would need
    (None: not needed, or too many messages to try)."""

    chunks: int
    depth: int | None


def smallest_messages(program: Program, depth: int) -> Split:
    """Find the fewest chunks per message for which channels of `depth` suffice. Uncut messages must suffice."""
    counts = np.concatenate([program.columns[f"{side}_count"] for side in ("read", "write")])
    sizes = _sizes(counts)
    need = least_depth(in_pieces(program, sizes[0])) if len(sizes) > 1 else depth
    if need is not None and need <= depth:
        return Split(sizes[0], None)
    low, high = 0, len(sizes) - 1
    while low + 1 < high:  # low needs more than depth, high does not
        middle = (low + high) // 2
        tried = least_depth(in_pieces(program, sizes[middle]))
        low, high = (low, middle) if tried is not None and tried <= depth else (middle, high)
    return Split(sizes[high], need if sizes[0] == 1 else None)


def _sizes(counts: NDArray[np.int64]) -> list[int]:
    """The sizes of messages to try, ascending: of all sizes that give equal numbers of pieces, the smallest."""
    sizes = np.arange(_fewest(counts), max(int(counts.max(initial=1)), 1) + 1)
    pieces = np.sum([-(-count // sizes) for count in np.unique(np.append(1, counts))], axis=0)
    changes = np.diff(pieces, prepend=-1) != 0
    return [int(size) for size in sizes[changes]]


def largest(header: Header, chunks: int, target: str | None, takers: tuple[str, ...]) -> dict[str, int]:
    """Return for each runtime, or only `target`, the bytes of the largest buffer whose messages hold `chunks`."""
    share = 1 if header.proto != "Simple" or not traits_of(header.kind).rooted else _STEPS_IN_MESSAGE
    asked = (target,) if target is not None else takers or DIALECTS
    return {name: header.nchunksperloop * (MESSAGE_BYTES[name][header.proto] // share // chunks) for name in asked}


def too_large(header: Header, found: dict[str, int]) -> Iterator[tuple[str, int]]:
    """Yield each runtime that selects the file for buffers larger than its limit, with the limit (bytes)."""
    for name, limit in found.items():
        most = header.max_bytes
        if most is not None and name == "msccl":
            most -= 1  # in msccl a size must be less
        endless = most is None or (most == 0 and name != "msccl")
        if endless or (most is not None and most > limit):
            yield name, limit


def _fewest(counts: NDArray[np.int64]) -> int:
    """The smallest size of messages that does not give too many of them."""
    low, high = 1, max(int(counts.max(initial=1)), 1)
    while low < high:
        middle = (low + high) // 2
        many = int((-(-counts // middle)).sum()) > _MOST_MESSAGES
        low, high = (middle + 1, high) if many else (low, middle)
    return low
