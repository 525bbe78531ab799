"""fit: a monotone piecewise Curve through samples, robust against outliers, with break points and error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dovetail.core import CostError
from dovetail.cost.curve import Curve, Label, Mode, Segment
from dovetail.cost.modes import mode_rows, modes
from dovetail.cost.noise import noise_of
from dovetail.cost.samples import Samples
from dovetail.cost.segments import Points, huber_weight, lines, score, segment

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Which = Literal["most", "fastest", "slowest"]
WORD_BYTES = 64  # messages that fit in a cache line all cost the same
ROUNDS = 20  # rounds of reweighting
BOOTSTRAPS = 200  # resamplings for the confidence interval


def fit(samples: Samples, mode: Which = "most", label: Label = "measured") -> Curve:
    """Return the Curve of `samples`: seconds against x, never falling.

    1. If timings fall into several modes, the curve follows one: the one with the greatest share, or as `mode` says.
    2. Take the median at each size; weight relative residuals by the noise among repeats.
    3. Find break points by dynamic programming, as many as the noise justifies (`segments.segment`).
    4. Fit all lines at once by non-negative least squares on start, slopes and jumps, reweighted for outliers. The
       curve is thus monotone. If two lines cross between samples, the break is the crossing; else it is midway.
    5. Confidence interval: 95 % of refits to resampled repeats (200, from a fixed seed).

    A curve against rows or FLOP starts at 0 s for 0. A curve against bytes is valid from 0 if the smallest measured
    message has at most 64 bytes. Raises CostError if there are no samples, or a size of 0 rows takes time.
    """
    found = modes(samples)
    index = _chosen(found, mode)
    rows = [parts[min(index, len(parts) - 1)] for parts in mode_rows(samples)]
    anchored = samples.x_unit != "bytes"
    points, rows = _points(samples, rows, anchored)
    several = anchored and len(points.x) > 1  # then every row, also the first, costs the slope
    start = 0.0 if several else float(points.x[0])
    first = min(1.0, float(points.x[0])) if several else start
    basis = _joined(points, start, first, segment(points))
    amounts, weight = basis.solve(points)
    curve_at = basis.matrix(points.x) @ amounts
    low = 0.0 if anchored or points.x[0] <= WORD_BYTES else float(points.x[0])
    return Curve(
        samples.x_unit,
        basis.segments(amounts, first, anchored),
        low,
        float(points.x[-1]),
        label,
        tuple(map(float, points.x)),
        tuple(map(float, curve_at / points.y - 1.0)),
        _interval(basis, points, _resampled(samples, rows), weight, curve_at),
        found,
        _provenance(samples, found, index),
        samples.to_json(),
    )


def fit_factor(samples: Samples, label: Label = "measured") -> Curve:
    """Return the curve of a slow-down factor (≥ 1, in the column `seconds`) against bytes: lines through the medians.

    A factor may fall with size, so the curve is not `rising`: it has no inverse and no n_half.
    """
    if not len(samples.x):
        raise CostError("no samples to fit")
    sizes, factors = samples.sizes, np.maximum(samples.medians, 1.0)
    more: dict[str, Any] = {"provenance": dict(samples.provenance), "samples": samples.to_json()}
    return Curve.through(list(sizes), list(factors), rising=False, high=float(sizes[-1]), label=label, **more)


def as_measured(samples: Samples, label: Label = "measured") -> Curve:
    """Return seconds against bytes as measured: lines through the medians at each size. Such a curve may fall, for
    example where a library changes its algorithm with the size.

    >>> round(1e6 * as_measured(Samples.of({8: [3e-6] * 3, 16: [2e-6, 2e-6, 9e-6]})).seconds(12), 3)
    2.5
    """
    more: dict[str, Any] = {"provenance": dict(samples.provenance), "samples": samples.to_json()}
    x, y = samples.sizes.tolist(), samples.medians.tolist()
    slopes = (np.diff(y) / np.diff(x)).tolist()
    rises = [slope for slope in slopes[-1:] if slope > 0] or [y[-1] / max(x[-1], 1.0)]  # beyond the measured sizes
    segments = tuple(Segment(*row) for row in zip(x, y, [*slopes, *rises], strict=True))
    return Curve(samples.x_unit, segments, 0.0, x[-1], label, rising=False, **more)


def _chosen(found: Sequence[Mode], mode: Which) -> int:
    if mode not in ("most", "fastest", "slowest"):
        raise CostError(f"unknown mode '{mode}'", hint="most, fastest or slowest")
    if mode == "most":  # of equal shares the slower one, to be on the safe side
        return max(range(len(found)), key=lambda i: (found[i].share, i))
    return 0 if mode == "fastest" else len(found) - 1


def _points(samples: Samples, rows: list[Ints], anchored: bool) -> tuple[Points, list[Ints]]:
    """Return the medians of `rows` with their noise, and `rows`, without a size of 0 that takes no time."""
    sizes = samples.sizes
    y = np.array([np.median(samples.seconds[each]) for each in rows])
    free = (sizes == 0.0) & anchored
    if np.any(y[free] > 0) or np.any(y[~free] <= 0):
        raise CostError("a size of 0 must take 0 s, and larger sizes more", found=f"{y[0]:g} s at {sizes[0]:g}")
    if free.all():
        raise CostError("all samples are of size 0", hint="measure at least one size above 0")
    x, y, rows = sizes[~free], y[~free], [each for each, skip in zip(rows, free, strict=True) if not skip]
    return Points(x, y, noise_of(samples, rows, x, y)), rows


def _joined(points: Points, start: float, first: float, parts: list[tuple[int, int]]) -> _Basis:
    """Return the segments joined: continuously where their lines cross between two samples, else with a jump midway.

    A crossing beyond those two samples is tried, too, and used unless the jump improves the fit enough to justify its
    parameter (as in `segment`). There are no breaks before `first`.
    """
    crossings, midways = [], []
    for left, right in pairwise(parts):
        (xa, ya, ma), (xb, yb, mb) = lines(points, left), lines(points, right)
        cross = ((yb - mb * xb) - (ya - ma * xa)) / (ma - mb) if ma != mb else math.nan
        crossings.append(cross)
        midways.append(math.sqrt(points.x[left[1]] * points.x[right[0]]))
    basis = _Basis(start, midways, [True] * len(midways))
    for i, cross in enumerate(crossings):
        edges = [first, *basis.breaks, float(points.x[-1])]
        if edges[i] < cross < edges[i + 2]:
            other = basis.with_joint(i, cross)
            within = points.x[parts[i][1]] < cross < points.x[parts[i + 1][0]]
            if within or score(other.loss(points), len(points.x), 0) <= score(basis.loss(points), len(points.x), 1):
                basis = other
    return basis


class _Basis:
    """A rising curve as a non-negative combination of columns: start, slope of each segment, jump at some breaks."""

    def __init__(self, start: float, breaks: list[float], jumps: list[bool]) -> None:
        self.start, self.breaks, self.jumps = start, breaks, jumps

    def with_joint(self, index: int, at: float) -> _Basis:
        """Return the basis with break `index` at `at`, continuous there."""
        breaks, jumps = list(self.breaks), list(self.jumps)
        breaks[index], jumps[index] = at, False
        return _Basis(self.start, breaks, jumps)

    def loss(self, points: Points) -> float:
        """Return the sum of absolute residuals in units of the noise."""
        fitted = self.matrix(points.x) @ self.solve(points)[0]
        return float(np.abs((fitted - points.y) / (points.y * points.noise)).sum())

    def matrix(self, x: Floats) -> Floats:
        edges = [self.start, *self.breaks, math.inf]
        columns = [np.ones_like(x)]
        columns += [np.clip(x - a, 0.0, b - a) for a, b in pairwise(edges)]
        columns += [(x >= at).astype(np.float64) for at, jump in zip(self.breaks, self.jumps, strict=True) if jump]
        return np.stack(columns, axis=1)

    def solve(self, points: Points) -> tuple[Floats, Floats]:
        """Return the amount of each column, and the final weight of each point (1: no outlier)."""
        weight = np.ones(len(points.x))
        amounts = np.zeros(0)
        for _ in range(ROUNDS):
            amounts = self.weighted(points.x, points.y, np.sqrt(weight) / (points.y * points.noise))
            residual = (self.matrix(points.x) @ amounts - points.y) / (points.y * points.noise)
            weight = huber_weight(residual)
        return amounts, weight

    def weighted(self, x: Floats, y: Floats, unit: Floats) -> Floats:
        from scipy.optimize import nnls

        rows = self.matrix(x) * unit[:, None]
        scale = np.linalg.norm(rows, axis=0)
        scale[scale == 0.0] = 1.0
        amounts: Floats = nnls(rows / scale, y * unit)[0] / scale
        return amounts

    def segments(self, amounts: Floats, first: float, anchored: bool) -> tuple[Segment, ...]:
        """Return the segments from `first` on and, if `anchored`, one from (0, 0) to `first`."""
        count = len(self.breaks) + 1
        slopes, rest = amounts[1 : count + 1], list(amounts[count + 1 :])
        result = [Segment(first, float(amounts[0] + slopes[0] * (first - self.start)), float(slopes[0]))]
        for at, jump, slope in zip(self.breaks, self.jumps, slopes[1:], strict=True):
            before = result[-1].at(at)
            result.append(Segment(at, before + (float(rest.pop(0)) if jump else 0.0), float(slope)))
        if anchored:
            result.insert(0, Segment(0.0, 0.0, result[0].seconds / first))
        return tuple(result)


def _interval(
    basis: _Basis, points: Points, drawn: Floats | None, weight: Floats, fitted: Floats
) -> tuple[tuple[float, float], ...]:
    """Return the 95 % interval of the curve at each point, from refits to resampled medians with fixed breaks and
    weights.
    """
    if drawn is None:
        return ()
    matrix = basis.matrix(points.x)
    unit = np.sqrt(weight) / (points.y * points.noise)
    refits = np.array([matrix @ basis.weighted(points.x, y, unit) for y in drawn])
    low, high = np.quantile(refits, [0.025, 0.975], axis=0)
    return tuple(zip(map(float, np.minimum(low, fitted)), map(float, np.maximum(high, fitted)), strict=True))


def _resampled(samples: Samples, rows: list[Ints]) -> Floats | None:
    """Return the medians of BOOTSTRAPS resamplings, a row for each; None if no size was timed twice.

    If there are at least three repeats with equally many timings of every size, whole repeats are drawn, as timings of
    one sweep are correlated; otherwise the timings of each size are.
    """
    if max(map(len, rows)) < 2:
        return None
    rng = np.random.default_rng(0)
    repeats, counts = np.unique(np.concatenate([samples.repeat[each] for each in rows]), return_counts=True)
    even = len({len(each) for each in rows}) == 1 and len(rows[0]) % len(repeats) == 0
    if len(repeats) >= 3 and even and len(set(counts.tolist())) == 1 and _balanced(samples, rows, len(repeats)):
        table = np.stack([samples.seconds[each].reshape(len(repeats), -1) for each in rows])
        drawn = table[:, rng.integers(len(repeats), size=(BOOTSTRAPS, len(repeats)))]
        medians: Floats = np.median(drawn.reshape(len(rows), BOOTSTRAPS, -1), axis=2).T
        return medians
    pick = [rng.choice(samples.seconds[each], (BOOTSTRAPS, len(each))) for each in rows]
    return np.stack([np.median(each, axis=1) for each in pick], axis=1)


def _balanced(samples: Samples, rows: list[Ints], repeats: int) -> bool:
    """Whether every size has equally many timings of every repeat."""
    each = [np.unique(samples.repeat[row], return_counts=True)[1] for row in rows]
    return all(len(counts) == repeats and len(set(counts.tolist())) == 1 for counts in each)


def _provenance(samples: Samples, found: Sequence[Mode], index: int) -> dict[str, Any]:
    counts = {"num_samples": len(samples.x), "num_repeats": len(np.unique(samples.repeat))}
    mode = {} if len(found) == 1 else {"mode": f"{index + 1} of {len(found)}, {found[index].share:.0%} of the samples"}
    return {**samples.provenance, **counts, **mode}
