"""delays: estimate from a trace the message time by size, and between which ranks sends wait for their receive."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dovetail.trace.analysis.eager_limits import EagerLimits, eager_limits
from dovetail.trace.analysis.matching import Messages

MANY = 8  # this many messages from one rank, received in one call, share the call's time
LATENCY_BYTES = 1 << 16  # if all messages have one size, their time counts as latency up to this size
LEAST_HELD_S = 20e-6  # a shorter wait is no evidence of how a message progressed


@dataclass(frozen=True)
class Delays:
    """Message times in seconds by size, interpolated between the sizes that occur in a trace.

    `limits`: between which ranks messages of which size wait for their receive.
    """

    num_bytes: NDArray[Any] = field(repr=False)
    seconds: NDArray[Any] = field(repr=False)
    limits: EagerLimits = field(default_factory=EagerLimits, repr=False)

    def __call__(self, num_bytes: ArrayLike) -> NDArray[np.float64]:
        """Return seconds for sizes in bytes. Beyond the largest size, `slope` continues the curve; without data, 0."""
        sizes = np.asarray(num_bytes, "f8")
        if not len(self.num_bytes):
            return np.zeros(sizes.shape)
        within: NDArray[np.float64] = np.interp(sizes, self.num_bytes, self.seconds)
        found: NDArray[np.float64] = within + np.maximum(sizes - self.num_bytes[-1], 0) * self.slope
        return found

    @property
    def slope(self) -> float:
        """Return the seconds per additional byte: from the smallest to the largest size.

        If all messages have one size, their time counts as latency up to `LATENCY_BYTES`, else as bandwidth.
        """
        if not len(self.num_bytes):
            return 0.0
        if len(self.num_bytes) < 2:
            size = float(self.num_bytes[0])
            return float(self.seconds[0]) / size if size > LATENCY_BYTES else 0.0
        return float((self.seconds[-1] - self.seconds[0]) / (self.num_bytes[-1] - self.num_bytes[0]))

    @property
    def latency_s(self) -> float:
        return float(self.seconds[0]) if len(self.seconds) else 0.0


def from_curve(seconds: Callable[[NDArray[Any]], NDArray[Any]], least: float, most: float, seen: Delays) -> Delays:
    """Return delays with the times of a machine's curve between two sizes, and the protocol limits of `seen`."""
    sizes = np.unique(np.geomspace(max(least, 1), max(most, 2), 64).astype("i8"))
    return replace(seen, num_bytes=sizes.astype("f8"), seconds=np.maximum.accumulate(seconds(sizes)))


def delays_of(
    found: Messages,
    plain: NDArray[np.bool_],
    doubtful: NDArray[np.bool_] | None = None,
    hosts: Sequence[str] = (),
) -> Delays:
    """Fit a monotone curve of delay (s) against message size (bytes) through the mean of each size.

    Only messages that their receivers waited for count. `plain`: per message, whether its call only sends, and does not
    wait for the receive at every size. `doubtful`: per message, whether the receiving call may have waited for
    something else. `hosts`: of each rank.
    """
    whole = found.received_row >= 0
    if doubtful is not None:
        whole &= ~doubtful
    late = whole & (found.sent_s >= found.waited_s)
    if not late.any():  # no receiver waited: use the upper bound of each message's time
        late, since_s = whole, np.fmax(found.sent_s, found.waited_s)
    else:
        since_s = found.sent_s
    size, took = found.num_bytes[late], np.fmin(found.received_s - since_s, _shares_s(found))[late]
    sizes, means = of_sizes(size, took, _trimmed)
    shows = _shows(found, plain)
    pairs, held = (found.src[shows], found.dst[shows]), is_held(found, plain)[shows]
    limits = eager_limits(pairs, found.num_bytes[shows], held, hosts)
    return Delays(sizes.astype("f8"), np.maximum.accumulate(means) if len(means) else means, limits)


def _shares_s(found: Messages) -> NDArray[np.float64]:
    """Return for each of MANY or more messages from one rank in one call an equal share of their common time.

    They arrive one after another, but the trace shows only when all had arrived. Infinite for other messages.
    """
    calls = np.stack([found.src.astype("f8"), found.dst.astype("f8"), found.waited_s])
    _, call, count = np.unique(calls, axis=1, return_inverse=True, return_counts=True)
    call = call.ravel()
    first_s = np.full(len(count), np.inf)
    np.minimum.at(first_s, call, found.sent_s)
    return np.where(count[call] >= MANY, (found.received_s - first_s[call]) / count[call], np.inf)


def _shows(found: Messages, plain: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return whether the trace shows if a message waited for its receive.

    The receive must have been posted late, and the send must be blocking, or seen complete before the receive.
    """
    blocking = (found.sent_end_s == found.done_end_s) & plain
    late: NDArray[np.bool_] = (found.received_row >= 0) & (found.posted_s > found.sent_s + LEAST_HELD_S)
    shows: NDArray[np.bool_] = late & (blocking | (found.done_end_s < found.posted_s))
    return shows


def is_held(found: Messages, plain: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return whether the trace shows that a message waited for its receive: its send ended after the receive began."""
    held: NDArray[np.bool_] = _shows(found, plain) & (found.done_end_s > found.posted_s)
    return held


def crossed(found: Messages) -> NDArray[np.bool_]:
    """Return for each message whether another one travelled in the opposite direction at the same time.

    The other message was sent before this one was received, and received after this one was sent.
    """
    crosses = np.zeros(len(found.src), bool)
    received_s = np.where(np.isnan(found.received_s), -np.inf, found.received_s)
    ways = {way: np.array(rows) for way, rows in _by_pair(found).items()}
    for (src, dst), rows in ways.items():
        back = ways.get((dst, src))
        if back is None or src == dst:
            continue
        back = back[np.argsort(found.sent_s[back], kind="stable")]
        latest_s = np.append(-np.inf, np.maximum.accumulate(received_s[back]))  # latest arrival of those sent so far
        crosses[rows] = latest_s[np.searchsorted(found.sent_s[back], received_s[rows])] > found.sent_s[rows]
    return crosses


def _by_pair(found: Messages) -> dict[tuple[int, int], list[int]]:
    pairs: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i, way in enumerate(zip(found.src.tolist(), found.dst.tolist(), strict=True)):
        pairs[way].append(i)
    return pairs


def of_sizes(
    num_bytes: NDArray[Any], values: NDArray[Any], of: Callable[[NDArray[Any]], float]
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Return the distinct sizes, ascending, and for each `of(values of its messages)`."""
    order = np.argsort(num_bytes, kind="stable")
    sizes, first = np.unique(num_bytes[order], return_index=True)
    return sizes, np.array([of(those) for those in np.split(values[order], first[1:])[: len(sizes)]], "f8")


def _trimmed(values: NDArray[Any]) -> float:
    """Return the mean of the values, clipped to their 10th and 90th percentile."""
    if len(values) == 1:
        return float(values[0])
    return float(np.clip(values, *np.percentile(values, (10, 90))).mean())
