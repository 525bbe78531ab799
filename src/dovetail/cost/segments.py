"""segments: find the break points of a cost curve, by dynamic programming with robust lines between them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
DENSE = 20  # with this many sizes or more, a line needs three points; with fewer, two (which any line fits)
MOST_SEGMENTS = 10
MOST_POINTS = 128  # if there are more, neighbours are merged to find breaks; the final fit uses all points
NORMAL_LOSS = math.sqrt(2.0 / math.pi)  # mean abs(r) of normal noise
ROUNDS = 20


@dataclass(frozen=True)
class Points:
    """The points to fit: seconds `y` at sizes `x` (increasing), and `noise`, the relative error of each y."""

    x: Floats
    y: Floats
    noise: Floats


def segment(points: Points) -> list[tuple[int, int]]:
    """Return the segments: for each the indices of its first and last point in `points`.

    A line with slope >= 0 is fitted to every possible segment, by iteratively reweighted least squares on r = (line -
    y) / (y · noise). Its penalty is quadratic within the noise and linear beyond, so that outliers weigh little; the
    loss of a segment is the sum of abs(r). Dynamic programming finds the best cut into K segments for every K. K is
    chosen by the Schwarz criterion, the least of 2·loss / b + p·log(n), where b is the mean abs(r) of normal noise (the
    noise is known, because every size was timed repeatedly) and p = 2K + 2(K - 1): two for each line, and two for each
    break, since its place was searched for (Zhang and Siegmund 2007).

    >>> x = np.arange(1.0, 13.0)
    >>> segment(Points(x, np.where(x < 7, 10 + x, 40 + 5 * x), np.full(12, 1e-3)))
    [(0, 5), (6, 11)]
    """
    thin = _thinned(points)
    n = len(thin.x)
    least = 3 if n >= DENSE else 2
    best, cut = _cuts(_losses(thin, least), min(MOST_SEGMENTS, n // least))
    if len(best) == 1:
        return [(0, len(points.x) - 1)]
    k = 1 + int(np.argmin([score(float(row[n]), n, 4 * k + 2) for k, row in enumerate(best[1:])]))
    ends, last = [], n
    while k > 0:
        ends.append((int(cut[k][last]), last - 1))
        last, k = int(cut[k][last]), k - 1
    return _restored(ends[::-1], thin, points)


def lines(points: Points, rows: tuple[int, int]) -> tuple[float, float, float]:
    """Return the robust line of one segment as (x, seconds there, slope)."""
    part = slice(rows[0], rows[1] + 1)
    length = np.array([rows[1] + 1 - rows[0]])
    centre, value, slope, _ = _robust_lines(points.x[part], points.y[part], points.noise[part], length)
    return float(centre[0]), float(value[0]), float(slope[0])


def huber_weight(residual: Floats) -> Floats:
    """Return the weight of a residual in units of its noise: 1 within the noise, falling beyond.

    >>> huber_weight(np.array([0.5, -4.0])).tolist()
    [1.0, 0.25]
    """
    return 1.0 / np.maximum(np.abs(residual), 1.0)


def score(loss: float, n: int, parameters: int) -> float:
    """Return the Schwarz criterion of residuals in units of their noise; smaller is better."""
    return 2.0 * loss / NORMAL_LOSS + parameters * math.log(n)


def _losses(points: Points, least: int) -> Floats:
    """Return losses[i, j], the loss of the robust line through rows i to j - 1; infinite for too few rows."""
    n = len(points.x)
    result = np.full((n + 1, n + 1), math.inf)
    for i in range(n):
        lengths = np.arange(least, n - i + 1)
        if len(lengths):
            _, _, _, loss = _robust_lines(points.x[i:], points.y[i:], points.noise[i:], lengths)
            result[i, i + least :] = loss
    return result


def _robust_lines(
    x: Floats, y: Floats, noise: Floats, lengths: NDArray[np.int64]
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return (centre, value, slope, loss) of lines with slope >= 0 through the first `length` rows, for each length."""
    inside = np.arange(len(x)) < lengths[:, None]
    unit = 1.0 / (y * noise)
    weight = np.where(inside, unit * unit, 0.0)
    base = weight
    centre = value = slope = np.zeros(len(lengths))
    residual = np.zeros_like(weight)
    for _ in range(ROUNDS):
        total = weight.sum(axis=1)
        centre = weight @ x / total
        value = weight @ y / total
        dx, dy = x - centre[:, None], y - value[:, None]
        spread = (weight * dx * dx).sum(axis=1)
        rise = (weight * dx * dy).sum(axis=1)
        slope = np.maximum(np.divide(rise, spread, out=np.zeros_like(rise), where=spread > 0), 0.0)
        residual = np.where(inside, (slope[:, None] * dx - dy) * unit, 0.0)
        weight = base * huber_weight(residual)
    return centre, value, slope, np.abs(residual).sum(axis=1)


def _cuts(losses: Floats, most: int) -> tuple[list[Floats], list[NDArray[np.int64]]]:
    """Return best[k][j], the least loss of rows 0 to j - 1 in k segments, and cut[k][j], where the last one begins."""
    n = len(losses) - 1
    start = np.full(n + 1, math.inf)
    start[0] = 0.0
    best, cut = [start], [np.zeros(n + 1, dtype=np.int64)]
    for _ in range(most):
        total = best[-1][:, None] + losses
        cut.append(np.argmin(total, axis=0).astype(np.int64))
        best.append(np.min(total, axis=0))
    return best, cut


def _thinned(points: Points) -> Points:
    """Return at most MOST_POINTS points: neighbours merged into their medians."""
    n = len(points.x)
    if n <= MOST_POINTS:
        return points
    groups = np.array_split(np.arange(n), MOST_POINTS)
    columns = (np.array([np.median(column[rows]) for rows in groups]) for column in (points.x, points.y, points.noise))
    return Points(*columns)


def _restored(ends: list[tuple[int, int]], thin: Points, points: Points) -> list[tuple[int, int]]:
    """Return the rows of `points` for segments given in rows of `thin`."""
    if len(thin.x) == len(points.x):
        return ends
    groups = np.array_split(np.arange(len(points.x)), len(thin.x))
    return [(int(groups[first][0]), int(groups[last][-1])) for first, last in ends]
