"""noise: relative standard error of each median, from the repeats."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dovetail.cost.samples import Samples

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
LEAST_NOISE = 1e-3  # relative error that every timing has at least
TO_SIGMA = 1.4826  # standard deviation in median absolute deviations, for normal noise
OF_MEDIAN = 1.2533  # standard error of a median in standard errors of a mean
_FEW = (math.nan, math.nan, 1.196, 1.495, 1.363, 1.206, 1.200, 1.140, 1.129, 1.107)  # Croux and Rousseeuw 1992


def noise_of(samples: Samples, rows: list[Ints], x: Floats, y: Floats) -> Floats:
    """Return the relative standard error of the medians `y` of `rows` at `x`, smoothed by a median over three sizes.

    It is the greater of the error from all timings of a size and the error from its repeats (sweeps), as timings of one
    sweep are correlated. If no size was timed three times, it is estimated from the medians' distances to the straight
    line between their neighbours.
    """
    counts = np.array([len(each) for each in rows])
    if counts.max() < 3:
        return np.full(len(x), max(_roughness(x, y), LEAST_NOISE))
    errors = np.array([_error(samples, each) for each in rows]) / y
    padded = np.concatenate([errors[:1], errors, errors[-1:]])
    smoothed = np.median(np.stack([padded[:-2], padded[1:-1], padded[2:]]), axis=0)
    noise: Floats = np.maximum(smoothed, LEAST_NOISE)
    return noise


def sigma(values: Floats) -> float:
    """Return a robust standard deviation; 0 for a single value.

    >>> round(sigma(np.array([1.0, 2.0, 3.0, 4.0, 100.0])), 3)
    1.788
    """
    n = len(values)
    if n < 2:
        return 0.0
    few = _FEW[n] if n < len(_FEW) else n / (n - 0.8)
    return few * TO_SIGMA * float(np.median(np.abs(values - np.median(values))))


def _error(samples: Samples, rows: Ints) -> float:
    """Return the standard error, in seconds, of the median of `rows`."""
    seconds, repeat = samples.seconds[rows], samples.repeat[rows]
    single = OF_MEDIAN * sigma(seconds) / math.sqrt(len(rows))
    repeats = np.unique(repeat)
    if len(repeats) in (1, len(rows)):
        return single
    medians = np.array([np.median(seconds[repeat == each]) for each in repeats])
    return max(single, OF_MEDIAN * sigma(medians) / math.sqrt(len(repeats)))


def _roughness(x: Floats, y: Floats) -> float:
    """Return the relative scatter of medians about the line between their neighbours; 0 for fewer than five."""
    if len(x) < 5:
        return 0.0
    share = (x[1:-1] - x[:-2]) / (x[2:] - x[:-2])
    middle = y[:-2] + share * (y[2:] - y[:-2])
    unit = np.sqrt(1.0 + share**2 + (1.0 - share) ** 2)
    return TO_SIGMA * float(np.median(np.abs(y[1:-1] - middle) / y[1:-1] / unit))
