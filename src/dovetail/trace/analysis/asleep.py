"""asleep: which share of given times a rank was off its CPU of its own accord, by the kernel's counters in a trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Asleep:
    """A rank's seconds off CPU, between the readings of the kernel's counters.

    A process is off its CPU of its own accord in the seconds in which it neither ran nor waited for a CPU. If it has
    several threads that run, the counters do not show when one of them sleeps: these seconds are then too few.
    """

    def __init__(self, load: Mapping[str, Any]) -> None:
        known = len(load.get("time_s", ())) > 1 and None not in (*load["used_s"], *load["waited_s"])
        self.times_s = np.array(load["time_s"] if known else (), "f8")
        awake_s = np.add(load["used_s"], load["waited_s"]) if known else self.times_s
        self.until_s = self.times_s - awake_s

    def shares(self, start_s: Floats, end_s: Floats, io_start_s: Floats, io_end_s: Floats) -> Floats:
        """Return for each of these times the share of it in which the rank slept; NaN where the trace does not show it.

        Between two readings, all of these times together have at most the seconds off CPU there, less those of I/O,
        and each has the same share.
        """
        if not len(self.times_s) or not len(start_s):
            return np.full(len(start_s), np.nan)
        begin_s, stop_s = float(start_s.min()), float(end_s.max())
        inner_s = self.times_s[(self.times_s > begin_s) & (self.times_s < stop_s)]
        bounds_s = np.unique([max(begin_s, self.times_s[0]), *inner_s, min(stop_s, self.times_s[-1])])
        if len(bounds_s) < 2:
            return np.full(len(start_s), np.nan)
        off_s = np.diff(np.interp(bounds_s, self.times_s, self.until_s))
        off_s -= _within(bounds_s, io_start_s, io_end_s)
        asked_s = _within(bounds_s, start_s, end_s)
        share = np.clip(np.divide(off_s, asked_s, out=np.zeros_like(off_s), where=asked_s > 0), 0.0, 1.0)
        slept_s = np.concatenate([[0.0], np.cumsum(share * np.diff(bounds_s))])
        edges_s = np.stack([start_s, np.maximum(end_s, start_s + 1e-9)])
        slept = np.interp(edges_s, bounds_s, slept_s)
        seen = np.diff(np.clip(edges_s, bounds_s[0], bounds_s[-1]), axis=0)[0]
        found: Floats = np.divide(np.diff(slept, axis=0)[0], seen, out=np.full(len(seen), np.nan), where=seen > 0)
        return found


def _within(bounds_s: Floats, start_s: Floats, end_s: Floats) -> Floats:
    """Return the seconds of disjoint times between each two bounds."""
    if not len(start_s):
        return np.zeros(len(bounds_s) - 1)
    order = np.argsort(start_s, kind="stable")
    start_s, end_s = start_s[order], end_s[order]
    before_s = np.concatenate([[0.0], np.cumsum(end_s - start_s)])
    at = np.searchsorted(start_s, bounds_s, side="right") - 1
    last = np.maximum(at, 0)
    within_s = np.clip(bounds_s - start_s[last], 0.0, (end_s - start_s)[last])
    found: Floats = np.diff(np.where(at < 0, 0.0, before_s[last] + within_s))
    return found
