"""contest: alternating whole runs with and without knobs, and the ratio of their times with its interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb
from statistics import median
from typing import Any

FASTER, SLOWER, UNCLEAR = "faster", "slower", "unclear"
WANTED = 0.9  # coverage that a verdict needs: five pairs


@dataclass(frozen=True)
class Ratio:
    """Time with knobs over time without, of pairs of runs: the median, and an interval for the median.

    The interval lies between two of the ratios in order, and assumes nothing about how times are distributed. Its
    `coverage` is the probability that it contains the true median: 0.9375 for the whole range of five pairs.
    """

    ratios: tuple[float, ...]
    without_s: float | None = None  # median seconds of the runs without; None if unknown

    @property
    def saved_s(self) -> tuple[float, float, float] | None:
        """Seconds that a run saves: median, and the interval, the least first; None if `without_s` is unknown.

        >>> Ratio((0.5, 0.75, 0.625, 0.75, 0.5), 8.0).saved_s
        (3.0, 2.0, 4.0)
        """
        if self.without_s is None:
            return None
        low, high = self.interval
        return self.without_s * (1 - self.value), self.without_s * (1 - high), self.without_s * (1 - low)

    @property
    def value(self) -> float:
        """The median."""
        return median(self.ratios)

    @property
    def _cut(self) -> int:
        """How many ratios at each end are outside the interval."""
        n = len(self.ratios)
        return max((k for k in range((n + 1) // 2) if _coverage(n, k) >= WANTED), default=0)

    @property
    def interval(self) -> tuple[float, float]:
        """The interval.

        >>> Ratio((0.9, 0.95, 0.92, 0.99, 0.91)).interval
        (0.9, 0.99)
        """
        ordered = sorted(self.ratios)
        return ordered[self._cut], ordered[-1 - self._cut]

    @property
    def coverage(self) -> float:
        """Probability that the interval contains the true median."""
        return _coverage(len(self.ratios), self._cut)

    @property
    def verdict(self) -> str:
        """FASTER or SLOWER if the interval excludes 1 and has enough pairs; else UNCLEAR.

        >>> [Ratio(ratios).verdict for ratios in ((0.9,) * 5, (1.2,) * 5, (0.9,) * 4, (0.9, 0.9, 0.9, 0.9, 1.01))]
        ['faster', 'slower', 'unclear', 'unclear']
        """
        low, high = self.interval
        if self.coverage < WANTED or low <= 1 <= high:
            return UNCLEAR
        return FASTER if high < 1 else SLOWER

    def to_json(self) -> dict[str, Any]:
        """Return the ratios and all that is computed of them."""
        return {
            "ratios": list(self.ratios),
            "median": self.value,
            "interval": list(self.interval),
            "coverage": self.coverage,
            "verdict": self.verdict,
            "without_s": self.without_s,
        }


class FailedRun(Exception):
    """Raised for a run that ended with another exit code than 0: `code`."""

    def __init__(self, code: int, with_knobs: bool) -> None:
        super().__init__(f"a run {'with' if with_knobs else 'without'} knobs ended with exit code {code}")
        self.code, self.with_knobs = code, with_knobs


def alternate(without: Callable[[], float], with_knobs: Callable[[], float], pairs: int) -> Ratio:
    """Return the ratio of pairs of runs. Every second pair begins with the knobs, so that a drift favours neither."""
    ratios, usual = [], []
    for i in range(pairs):
        order: Sequence[Callable[[], float]] = (without, with_knobs) if i % 2 == 0 else (with_knobs, without)
        first, second = (run() for run in order)
        usual.append(first if i % 2 == 0 else second)
        ratios.append(second / first if i % 2 == 0 else first / second)
    return Ratio(tuple(ratios), median(usual))


def _coverage(n: int, k: int) -> float:
    """Return the probability that the median lies between the ratios that are number k from either end, from 0."""
    return 1 - sum(comb(n, i) for i in range(k + 1)) / float(1 << (n - 1))
