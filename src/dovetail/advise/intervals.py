"""intervals: disjoint intervals of one rank and activity, whose seconds before any time are known."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Intervals(NamedTuple):
    """Disjoint intervals of one rank and activity, in order of time. `before_s[i]`: seconds of the first i."""

    start_s: Array
    length_s: Array
    before_s: Array

    @classmethod
    def of(cls, start_s: Array, end_s: Array) -> Intervals:
        length_s = np.maximum(end_s - start_s, 0.0)
        return cls(start_s, length_s, np.concatenate([[0.0], np.cumsum(length_s)]))

    def seconds_until(self, time_s: Array) -> Array:
        """Return the seconds of the intervals before each time."""
        if not len(self.start_s):
            return np.zeros(len(time_s))
        at = np.searchsorted(self.start_s, time_s, side="right") - 1
        within = np.clip(time_s - self.start_s[at], 0.0, self.length_s[at])
        found: Array = np.where(at < 0, 0.0, self.before_s[at] + within)
        return found

    def seconds_in(self, other: Intervals) -> float:
        """Return the seconds that lie in intervals of the other, too."""
        ends_s = other.seconds_until(self.start_s + self.length_s)
        return float((ends_s - other.seconds_until(self.start_s)).sum())
