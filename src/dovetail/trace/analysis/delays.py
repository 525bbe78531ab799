"""delays: message times by size, and the size from which sends wait for their receive, estimated from a trace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dovetail.trace.analysis.matching import Messages

MANY = 8  # messages of one call, from one rank
LATENCY_BYTES = 1 << 16
LEAST_HELD_S = 20e-6  # a shorter wait shows nothing of how a message got on


@dataclass(frozen=True)
class Delays:
    """Message times in seconds by size, interpolated between sizes that were seen.

    `eager_bytes`: largest message that did not wait for its receive. `rendezvous_bytes`: smallest that did. None if
    unseen.
    """

    num_bytes: NDArray[Any] = field(repr=False)
    seconds: NDArray[Any] = field(repr=False)
    eager_bytes: int | None = None
    rendezvous_bytes: int | None = None

    def __call__(self, num_bytes: ArrayLike) -> NDArray[np.float64]:
        """Return seconds for sizes in bytes. Beyond the largest size the last slope continues; without data 0."""
        sizes = np.asarray(num_bytes, "f8")
        if not len(self.num_bytes):
            return np.zeros(sizes.shape)
        within: NDArray[np.float64] = np.interp(sizes, self.num_bytes, self.seconds)
        found: NDArray[np.float64] = within + np.maximum(sizes - self.num_bytes[-1], 0) * self.slope
        return found

    @property
    def slope(self) -> float:
        """Seconds for a further byte of the largest messages. A single size cannot separate latency from bandwidth: up
        to `LATENCY_BYTES` its time counts as latency, beyond that as bandwidth."""
        if not len(self.num_bytes):
            return 0.0
        if len(self.num_bytes) < 2:
            size = float(self.num_bytes[0])
            return float(self.seconds[0]) / size if size > LATENCY_BYTES else 0.0
        return float((self.seconds[-1] - self.seconds[0]) / (self.num_bytes[-1] - self.num_bytes[0]))

    @property
    def latency_s(self) -> float:
        return float(self.seconds[0]) if len(self.seconds) else 0.0

    def is_rendezvous(self, num_bytes: ArrayLike) -> NDArray[np.bool_]:
        """Whether messages of these sizes wait for their receive, by those that were seen to."""
        sizes = np.asarray(num_bytes)
        if self.rendezvous_bytes is None:
            return np.zeros(sizes.shape, bool)
        return sizes >= self.rendezvous_bytes


def from_curve(seconds: Callable[[NDArray[Any]], NDArray[Any]], least: float, most: float, seen: Delays) -> Delays:
    """The delays that a machine's curve gives between two sizes; protocols as `seen`."""
    sizes = np.unique(np.geomspace(max(least, 1), max(most, 2), 64).astype("i8"))
    return replace(seen, num_bytes=sizes.astype("f8"), seconds=np.maximum.accumulate(seconds(sizes)))


def delays_of(found: Messages, plain: NDArray[np.bool_], doubtful: NDArray[np.bool_] | None = None) -> Delays:
    """Fit a monotone curve of delay (s) against message size through the mean of each size. Only messages that their
    receivers waited for count.

    `plain`: whether a message's call only sends it, and need not wait for its receive at any size; `doubtful`: whether
    the call that receives it may have waited for something else.
    """
    whole = found.taken_row >= 0
    if doubtful is not None:
        whole &= ~doubtful
    late = whole & (found.sent_s >= found.waited_s)
    if not late.any():  # nobody waited: take the upper bound of each message's time
        late, since_s = whole, np.fmax(found.sent_s, found.waited_s)
    else:
        since_s = found.sent_s
    size, took = found.num_bytes[late], np.fmin(found.taken_s - since_s, _shares_s(found))[late]
    sizes, means = of_sizes(size, took, _trimmed)
    shows = _shows(found, plain)
    shown, held = of_sizes(found.num_bytes[shows], is_held(found, plain)[shows], lambda those: float(those.mean()))
    least = int(shown[held > 0.5][0]) if (held > 0.5).any() else None
    most = int(shown[held <= 0.5][-1]) if (held <= 0.5).any() else None
    return Delays(sizes.astype("f8"), np.maximum.accumulate(means) if len(means) else means, most, least)


def _shares_s(found: Messages) -> NDArray[np.float64]:
    """Of each message that came with many from one rank in one call: the time since the first of these was sent, shared
    out; they come one after another, and the call shows only when all were there. Infinite for other messages."""
    calls = np.stack([found.src.astype("f8"), found.dst.astype("f8"), found.waited_s])
    _, call, count = np.unique(calls, axis=1, return_inverse=True, return_counts=True)
    call = call.ravel()
    first_s = np.full(len(count), np.inf)
    np.minimum.at(first_s, call, found.sent_s)
    return np.where(count[call] >= MANY, (found.taken_s - first_s[call]) / count[call], np.inf)


def _shows(found: Messages, plain: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether it shows if a message waits for its receive: that was posted late, and the send is known to be over.

    Where nobody looked whether it was sent until its receive was there, nothing is seen.
    """
    blocking = (found.sent_end_s == found.away_s) & plain
    late: NDArray[np.bool_] = (found.taken_row >= 0) & (found.posted_s > found.sent_s + LEAST_HELD_S)
    shows: NDArray[np.bool_] = late & (blocking | (found.away_s < found.posted_s))
    return shows


def is_held(found: Messages, plain: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether a message was seen to wait for its receive: the call that sends it ended after that was posted."""
    held: NDArray[np.bool_] = _shows(found, plain) & (found.away_s > found.posted_s)
    return held


def crossed(found: Messages) -> NDArray[np.bool_]:
    """For each message, whether another one travelled in the opposite direction at the same time.

    That is: sent before this one was received, and received after this one was sent.
    """
    met = np.zeros(len(found.src), bool)
    taken_s = np.where(np.isnan(found.taken_s), -np.inf, found.taken_s)
    ways = {way: np.array(rows) for way, rows in _by_way(found).items()}
    for (src, dst), rows in ways.items():
        back = ways.get((dst, src))
        if back is None or src == dst:
            continue
        back = back[np.argsort(found.sent_s[back], kind="stable")]
        latest_s = np.append(-np.inf, np.maximum.accumulate(taken_s[back]))  # of those sent so far
        met[rows] = latest_s[np.searchsorted(found.sent_s[back], taken_s[rows])] > found.sent_s[rows]
    return met


def _by_way(found: Messages) -> dict[tuple[int, int], list[int]]:
    pairs: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i, way in enumerate(zip(found.src.tolist(), found.dst.tolist(), strict=True)):
        pairs[way].append(i)
    return pairs


def of_sizes(
    num_bytes: NDArray[Any], values: NDArray[Any], of: Callable[[NDArray[Any]], float]
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Return the distinct sizes, rising, and for each the reduced values of its messages."""
    order = np.argsort(num_bytes, kind="stable")
    sizes, first = np.unique(num_bytes[order], return_index=True)
    return sizes, np.array([of(those) for those in np.split(values[order], first[1:])[: len(sizes)]], "f8")


def _trimmed(values: NDArray[Any]) -> float:
    """The mean, with values clipped to the 10th and 90th percentile."""
    if len(values) == 1:
        return float(values[0])
    return float(np.clip(values, *np.percentile(values, (10, 90))).mean())
