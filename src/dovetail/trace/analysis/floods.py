"""floods: messages that follow one another at once, counted in a whole trace, where excerpts would cut them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.trace.analysis.delays import LATENCY_BYTES
from dovetail.trace.analysis.matching import Messages

Array = NDArray[Any]
AT_ONCE_S = 5e-6  # calls with less between them follow at once, as the recorder's folded calls do (native/trace)


class Flood(NamedTuple):
    """Messages from one rank to another that follow another message at once, at the sender and at the receiver.

    `runs`: how many such sequences. `num_bytes`: of the largest message. `row`: of the first send.
    """

    src: int
    dst: int
    messages: int
    runs: int
    num_bytes: int
    sending_s: float
    taking_s: float
    row: int


def floods_of(found: Messages) -> list[Flood]:
    """Return the floods of a trace's messages, by pair of ranks. Long messages, whose bytes take time, are no flood."""
    seen = np.flatnonzero(found.received_row >= 0)
    sent = _follow(seen, found.src, found.dst, found.sent_s, found.sent_end_s)
    taken = _follow(seen, found.dst, found.src, found.waited_s, found.received_s)
    apart = _since_last(seen, found)
    before, sending_s, taking_s = sent[0], np.minimum(sent[1], apart[0]), np.minimum(taken[1], apart[1])
    follows = (before >= 0) & (before == taken[0]) & (found.num_bytes <= LATENCY_BYTES)
    at = np.flatnonzero(follows)
    if not len(at):
        return []
    count = int(max(found.src[at].max(), found.dst[at].max())) + 1
    pairs, first, of = np.unique(
        found.src[at].astype("i8") * count + found.dst[at], return_index=True, return_inverse=True
    )
    of = of.ravel()
    begins = ~follows[before[at]]  # the first that follows, of each run
    sums = [np.bincount(of, weights, len(pairs)) for weights in (None, begins, sending_s[at], taking_s[at])]
    most = np.zeros(len(pairs), "i8")
    np.maximum.at(most, of, found.num_bytes[at])
    rows = found.sent_row[at[first]]
    columns = (pairs // count, pairs % count, sums[0] + sums[1], sums[1], most, sums[2], sums[3], rows)
    kinds = (int, int, int, int, int, float, float, int)
    return [Flood(*(kind(x) for kind, x in zip(kinds, row, strict=True))) for row in zip(*columns, strict=True)]


def _since_last(seen: Array, found: Messages) -> tuple[Array, Array]:
    """Return for each message the seconds since its sender, and its receiver, ended any send or receive before it.

    In an exchange, sends and receives take turns: each second counts for one of them.
    """
    rank = np.concatenate([found.src[seen], found.dst[seen]])
    end_s = np.concatenate([found.sent_end_s[seen], found.received_s[seen]])
    order = np.lexsort((end_s, rank))
    apart_s = np.diff(end_s[order], prepend=-np.inf)
    apart_s[np.diff(rank[order], prepend=-1) != 0] = np.inf
    sides = np.full((2, len(found.src)), np.inf)
    back = np.empty(len(order))
    back[order] = apart_s
    sides[0, seen], sides[1, seen] = back[: len(seen)], back[len(seen) :]
    return sides[0], sides[1]


def _follow(seen: Array, mine: Array, other: Array, start_s: Array, end_s: Array) -> tuple[Array, Array]:
    """Return for each message the message that its rank handled at once before it, with the same partner; -1: none.

    Also the seconds from that one's end to this one's.
    """
    before, took_s = np.full(len(mine), -1), np.zeros(len(mine))
    order = seen[np.lexsort((end_s[seen], start_s[seen], mine[seen]))]
    a, b = order[:-1], order[1:]
    alike = (mine[a] == mine[b]) & (other[a] == other[b]) & (start_s[b] - end_s[a] <= AT_ONCE_S)
    before[b[alike]] = a[alike]
    took_s[b[alike]] = (end_s[b] - end_s[a])[alike]
    return before, took_s
