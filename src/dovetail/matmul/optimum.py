"""optimum: the best tiling with tiles of any lengths, by exact dynamic programming on the measured costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.core import PlanError, parse_count
from dovetail.matmul.tiles import Seconds, Tiling, pipeline_s

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
MAX_POINTS = 257  # most boundaries in one search, which evaluates each curve about MAX_POINTS^2 times
WIDTHS = (1, 32, 256)  # partial tilings stored per boundary, by pass; if more are needed, the result may not be exact
NO_PARENT: Ints = np.full(1, -1, dtype=np.int64)
SLACK = 1e-12  # relative gain below which partial tilings are dropped


class States(NamedTuple):
    """Partial tilings, one per row: the compute of their tiles has ended, some communication has not."""

    point: Ints  # boundary reached
    end_s: Floats  # when the compute ends
    backlog_s: Floats  # seconds of communication left then
    tiles: Ints  # number of tiles
    parent: Ints  # row of the tiling without the last tile


@dataclass(frozen=True)
class Costs:
    """Seconds of a tile from boundary i to j (infinite if not allowed), and contention factors."""

    compute_s: Floats
    comm_s: Floats
    compute_factor: float
    comm_factor: float


def optimal(
    m: int,
    compute_s: Seconds,
    comm_s: Seconds,
    *,
    align: int = 128,
    floor: int = 1,
    max_count: int | None = None,
    compute_factor: float = 1.0,
    comm_factor: float = 1.0,
    max_points: int = MAX_POINTS,
) -> Tiling:
    """Return the tiling of `m` rows with the least `pipeline_s`, over all lengths that the options allow.

    Tiles end at multiples of `align` rows, counted from either end; no tile has fewer than `floor` rows (unless m is
    smaller), and there are at most `max_count`. If m / align exceeds `max_points`, the search uses a coarser grid and
    refines the result near its boundaries; `steps["exact"]` is 0 then.

    >>> rows = lambda r: 1.0 * r
    >>> optimal(4, rows, lambda r: 1.5 + r, align=1).tiles
    (1, 3)
    """
    rows, unit = parse_count(m, "m"), parse_count(align, "align", least=1)
    least = min(parse_count(floor, "floor", least=1), rows)
    most = None if max_count is None else parse_count(max_count, "max_count", least=1)
    if min(compute_factor, comm_factor) < 1.0:
        raise PlanError("contention factors are at least 1", found=f"{compute_factor}, {comm_factor}")
    if not rows:
        return Tiling("optimal", ())
    step = unit * max(1, -(-rows // (unit * (max_points - 1))))

    def search(points: Ints, passes: int = len(WIDTHS)) -> tuple[tuple[int, ...], bool]:
        costs = _costs(points, compute_s, comm_s, least, compute_factor, comm_factor)
        bounds, exact = _search(points, costs, most, WIDTHS[:passes])
        return tuple(int(n) for n in np.diff(points[bounds])), exact

    found = [search(points, len(WIDTHS) if step == unit else 2) for points in _grids(rows, step)]
    exact = step == unit and all(flag for _, flag in found)
    tilings = [tiles for tiles, _ in found]
    if step > unit:
        tilings += [search(_near(tiles, rows, step, unit, max_points))[0] for tiles in tilings]
    scored = [(pipeline_s(t, compute_s, comm_s, compute_factor, comm_factor), len(t), t) for t in tilings]
    best_s, count, tiles = min(scored)
    steps = {"align": unit, "floor": least, "count": count, "model_s": best_s, "exact": int(exact)}
    notes = () if exact else (f"searched in steps of {step} rows, then refined near the boundaries found",)
    return Tiling("optimal", tiles, dict(steps), notes)


def _grids(m: int, step: int) -> list[Ints]:
    """Return boundaries at multiples of `step`, counted from the start and, if these differ, also from the end."""
    ahead = np.append(np.arange(0, m, step, dtype=np.int64), m)
    return [ahead] if m % step == 0 else [ahead, (m - ahead)[::-1]]


def _near(tiles: tuple[int, ...], m: int, step: int, unit: int, max_points: int) -> Ints:
    """Return boundaries within `step` rows of those of `tiles`, `unit` rows apart or as fine as `max_points` allows."""
    inner = np.cumsum(tiles)[:-1]
    fine = unit * max(1, -(-2 * step * len(inner) // (unit * (max_points - 2))))
    shifts = np.arange(-step, step + 1, fine, dtype=np.int64)
    points = np.concatenate([(inner[:, None] + shifts).ravel(), inner, [0, m]])
    return np.unique(points[(points >= 0) & (points <= m)]).astype(np.int64)


def _costs(points: Ints, compute_s: Seconds, comm_s: Seconds, floor: int, compute: float, comm: float) -> Costs:
    """Return both curves at every pair of boundaries at least `floor` rows apart."""
    rows = points[None, :] - points[:, None]
    allowed = rows >= floor
    tables = []
    for curve in (compute_s, comm_s):
        table = np.full(rows.shape, np.inf)
        table[allowed] = curve(rows[allowed])
        tables.append(table)
    return Costs(tables[0], tables[1], compute, comm)


def _search(points: Ints, costs: Costs, most: int | None, widths: Sequence[int]) -> tuple[list[int], bool]:
    """Return the boundaries of the best tiling, and whether it is proved to be the best. Narrow passes give upper
    bounds to wider ones, until a pass proves its result."""
    lower = _lower_bounds(costs)
    whole = [0, len(points) - 1]
    mark_s = float(costs.compute_s[0, -1] + costs.comm_s[0, -1])
    best = whole
    for width in widths:
        mark_s, best, exact = _pass(costs, lower, most, mark_s, best, width)
        if exact or mark_s * (1 - SLACK) <= lower[1][0]:
            return best, True
    return best, False


def _lower_bounds(costs: Costs) -> tuple[Floats, Floats]:
    """Return lower bounds of the remaining seconds at each boundary: of communication, and of all if none is left."""
    size = len(costs.compute_s)
    comm, after, whole = (np.zeros(size) for _ in range(3))
    after[-1] = np.inf  # a suffix has at least one tile
    for i in range(size - 2, -1, -1):
        work, message = costs.compute_s[i, i + 1 :], costs.comm_s[i, i + 1 :]
        comm[i] = (message + comm[i + 1 :]).min()
        after[i] = min((work + after[i + 1 :]).min(), work[-1] + message[-1])
        whole[i] = max(after[i], (work + message + comm[i + 1 :]).min())
    return comm, whole


def _pass(
    costs: Costs, lower: tuple[Floats, Floats], most: int | None, mark_s: float, best: list[int], width: int
) -> tuple[float, list[int], bool]:
    """Search once, with at most `width` partial tilings at each boundary. Return seconds and boundaries of the best
    tiling, and whether none had to be dropped."""
    last, exact = len(costs.compute_s) - 1, True
    states = States(np.zeros(1, dtype=np.int64), np.zeros(1), np.zeros(1), np.zeros(1, dtype=np.int64), NO_PARENT)
    for point in range(1, last + 1):
        fresh = _advance(states, costs, point, most, (lower[0][point], lower[1][point]), mark_s * (1 - SLACK))
        if point == last:
            total = fresh.end_s + fresh.backlog_s
            if len(total) and total.min() < mark_s * (1 - SLACK):
                row = int(total.argmin())
                return float(total[row]), [*_trace(states, int(fresh.parent[row])), last], exact
            return mark_s, best, exact
        bound = np.maximum(fresh.end_s + lower[1][point], fresh.end_s + fresh.backlog_s + lower[0][point])
        hopeful = np.flatnonzero(bound < mark_s * (1 - SLACK))
        if not len(hopeful):
            continue
        fresh = _take(fresh, _front(fresh, hopeful, costs, counted=most is not None))
        if len(fresh.point) > width:
            exact, fresh = False, _thin(fresh, width)
        states = States._make(np.concatenate(pair) for pair in zip(states, fresh, strict=True))
    raise AssertionError("a tiling has at least two boundaries")


def _advance(
    states: States, costs: Costs, point: int, most: int | None, left: tuple[float, float], mark_s: float
) -> States:
    """Return every partial tiling extended by a tile that ends at `point`, except those that cannot end before the best
    known time `mark_s`, even without contention. `left`: lower bounds of the remaining seconds."""
    work, message = costs.compute_s[:, point][states.point], costs.comm_s[:, point][states.point]
    good = np.maximum(work + left[1], states.backlog_s + message + left[0]) < mark_s - states.end_s
    if most is not None:
        good &= states.tiles < most
    parent = np.flatnonzero(good)
    work, message, backlog = work[parent], message[parent], states.backlog_s[parent]
    both = np.minimum(work * costs.compute_factor, backlog * costs.comm_factor)
    end = states.end_s[parent] + both + work - both / costs.compute_factor
    backlog = backlog + message - both / costs.comm_factor
    return States(np.full(len(parent), point, dtype=np.int64), end, backlog, states.tiles[parent] + 1, parent)


def _front(states: States, rows: Ints, costs: Costs, counted: bool) -> Ints:
    """Return the rows that no other row dominates in end of compute, communication left and, if `counted`, tiles.

    Communication left is counted from a common time, unless running compute and communication at the same time never
    pays.
    """
    pays = 1 / costs.compute_factor + 1 / costs.comm_factor >= 1
    end, left = states.end_s[rows], states.backlog_s[rows]
    left = end + left if pays else left
    if not counted:
        return rows[_front_2d(end, left)]
    fronts, tiles = list[Ints](), states.tiles[rows]
    for count in np.unique(tiles):
        some = np.concatenate([*fronts, np.flatnonzero(tiles == count)])
        front = some[_front_2d(end[some], left[some])]
        fronts.append(front[tiles[front] == count])
    return rows[np.concatenate(fronts)] if fronts else rows[:0]


def _front_2d(first: Floats, second: Floats) -> Ints:
    """Return the Pareto front: rows for which no other row has both values as small or smaller; of equal rows the
    first.
    """
    if not len(first):
        return np.zeros(0, np.int64)
    least = first.argmin()
    rows = np.append(np.flatnonzero(second < second[least]), least)
    if len(rows) == 1:
        return rows
    rows = rows[np.argsort(first[rows], kind="stable")]
    left = second[rows]
    rows = rows[np.append(True, left[1:] < np.minimum.accumulate(left)[:-1])]
    ends = first[rows]  # of rows with equal first values, the last has the least second value
    front: Ints = rows[np.append(ends[1:] != ends[:-1], True)]
    return front


def _thin(states: States, width: int) -> States:
    """Return at most `width` rows: the one with the least total, and others spread evenly along the front."""
    total = states.end_s + states.backlog_s
    best = int(total.argmin())
    if width == 1:
        return _take(states, np.array([best]))
    rows = _evenly(len(total), width).copy()
    rows[np.abs(rows - best).argmin()] = best
    return _take(states, np.unique(rows))


@cache
def _evenly(count: int, width: int) -> Ints:
    return np.linspace(0, count - 1, width).round().astype(np.int64)


def _take(states: States, rows: Ints) -> States:
    return States._make(column[rows] for column in states)


def _trace(states: States, row: int) -> list[int]:
    """Return the boundaries of the tiling of state `row`, in ascending order."""
    path: list[int] = []
    while row >= 0:
        path.append(int(states.point[row]))
        row = int(states.parent[row])
    return path[::-1]
