"""goumas: seed 003, the slides on loop tiling with overlap: two tiles of one volume, and the table of results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from itertools import pairwise
from math import sqrt
from typing import NamedTuple

from dovetail.loops.matrices import as_matrix, diagonal
from dovetail.pipeline.recurrence import Link, pipeline_s
from dovetail.reproduce.rows import CONFLICT, MISSED, NOT, REPRODUCED, Row, cannot, exact, factor, printed
from dovetail.tiling.hyperplanes import best_mapping, non_overlapping, num_processors, overlapping
from dovetail.tiling.search import best_tile
from dovetail.tiling.spaces import Space
from dovetail.tiling.tile_points import traffic
from dovetail.tiling.tiling import Tiling

COSTS, GRIDS, TABLE = "Tile Computation - Communication Cost", "UET-UCT grids", "Table of Results"
CLUSTER = "a time of their cluster: 16 PCs, 100 Mbit/s Ethernet, MPICH of 2001"
DEPENDENCES = ((3, 1), (1, 2))
SIDE = 4  # processors along i, and along j
WIRE = 100e6 / 8  # bytes/s of Fast Ethernet, as printed
VALUE = 4  # bytes of a value; not printed
FILLS = 2  # buffer fills of a step, assumed where a time of one point is derived


class Tile(NamedTuple):
    """A tile of the example: its sides as columns, and its costs as printed."""

    sides: tuple[tuple[int, int], ...]
    v_comp: int
    v_comm: int


class Column(NamedTuple):
    """A column of the table of results, as printed; `side`: of a tile's square, in points."""

    space: tuple[int, int, int]
    side: int
    v: int
    g: int
    t_overlapping_s: str
    t_fill_ms: str
    p: int
    t_theoretical_s: str
    difference_percent: str
    t_non_overlapping_s: str
    improvement_percent: str

    @property
    def grain(self) -> int:
        """Points of a tile."""
        return self.side**2 * self.v


TILES = {"P1": Tile(((4, 0), (0, 5)), 20, 27), "P2": Tile(((6, 2), (2, 4)), 20, 19)}
COLUMNS = {
    "i": Column((16, 16, 16384), 4, 444, 7104, "0.233923", "0.627", 53, "0.24", "2.5", "0.376637", "38"),
    "ii": Column((16, 16, 32768), 4, 538, 8608, "0.467929", "0.745", 76, "0.507", "7", "0.694516", "33"),
    "iii": Column((32, 32, 4096), 8, 164, 10996, "0.219059", "0.37", 41, "0.25", "12", "0.324069", "32"),
}


def rows(tiles: Mapping[str, Tile] = TILES, columns: Mapping[str, Column] = COLUMNS) -> Iterator[Row]:
    """Yield a row for each figure. Everything is counted; nothing is timed."""
    yield from _tiles(tiles)
    for name, column in columns.items():
        yield from _column(name, column, columns)


def _tiles(tiles: Mapping[str, Tile]) -> Iterator[Row]:
    """Yield what is computed in the two tiles, and what leaves them."""
    deps = as_matrix(DEPENDENCES, "deps")
    least = best_tile(deps, 20)
    for name, theirs in tiles.items():
        tiling = Tiling(deps, as_matrix(theirs.sides, name))
        formula, counted = tiling.formula(), traffic(tiling).pairs
        yield exact(COSTS, f"V_comp of {name}", theirs.v_comp, tiling.volume, "|det P|", basis="counted")
        why = f"the exact count of (point, dependence) pairs; the formula printed above it gives {formula}"
        verdict = REPRODUCED
        if theirs.v_comm != counted:
            why = f"no count gives it: formula and exact count are {formula} and {counted}; no tile has less than 20"
            why += "; with the 27 of P1, counted, P2 would have 20, and with 20 by the formula P1 would have 32"
            verdict = CONFLICT
        item = f"V_comm of {name}"
        yield Row(COSTS, item, theirs.v_comm, counted, verdict, why, best=int(least.cost), basis="counted")
    proved = least.is_proved and least.tiling.sides == as_matrix(tiles["P2"].sides, "P2")
    why = "by the formula, proved over all tiles of 20 points"
    ours = str(least.tiling.sides)
    yield Row(COSTS, "best tile", "P2", ours, REPRODUCED if proved else MISSED, why, basis="counted")


def _column(name: str, theirs: Column, columns: Mapping[str, Column]) -> Iterator[Row]:
    """Yield one column of the table of results."""
    tiling = Tiling(diagonal([1, 1, 1]), diagonal([theirs.side, theirs.side, theirs.v]))
    space = Space.box([(0, extent) for extent in theirs.space])
    mapped = best_mapping(tiling, space)
    processors = num_processors(tiling, space, mapped)
    yield exact(TABLE, f"{name}: processors", 16, processors, "4 x 4 chains of tiles", basis="counted")
    yield exact(GRIDS, f"{name}: mapped dimension", 2, mapped, "the largest dimension needs fewest steps")
    yield cannot(TABLE, f"{name}: V", theirs.v, f"the best on their cluster; {_growth(columns)}", unit="points")
    yield _grain(name, theirs, tiling.volume)
    yield cannot(TABLE, f"{name}: t overlapping", float(theirs.t_overlapping_s), CLUSTER, unit="s")
    why = f"{CLUSTER}; {_fills(columns)}"
    yield cannot(TABLE, f"{name}: t fill MPI buffer", float(theirs.t_fill_ms), why, unit="ms")
    yield _steps(name, theirs, tiling, space, mapped)
    item = f"{name}: t theoretical"
    yield Row(TABLE, item, float(theirs.t_theoretical_s), None, NOT, no_point_time(columns), unit="s")
    model, real, slow = (
        float(each) for each in (theirs.t_theoretical_s, theirs.t_overlapping_s, theirs.t_non_overlapping_s)
    )
    yield _share(f"{name}: difference", theirs.difference_percent, (model - real) / model)
    yield cannot(TABLE, f"{name}: t non-overlapping", slow, CLUSTER, unit="s")
    yield _share(f"{name}: improvement", theirs.improvement_percent, 1 - real / slow)
    yield _simulated(name, theirs, sum(point_times(columns, FILLS)[list(columns).index(name)]) / 2)


def _simulated(name: str, theirs: Column, point_us: float) -> Row:
    """Return the improvement that the recurrence of the two printed programs gives."""
    waits, eager = (100 * improvement(theirs, point_us * 1e-6, waits=each) for each in (True, False))
    why = (
        f"both printed programs on {SIDE} x {SIDE} ranks, sends that wait for their receive; {point_us:.2f} µs a point"
    )
    why += f" from the theoretical time, {VALUE}-byte values; neither these nor the protocol are printed. "
    why += f"With eager sends the blocking program overlaps without further calls: {eager:.0f} %"
    item, percent = f"{name}: improvement, simulated", float(theirs.improvement_percent)
    return factor(TABLE, item, percent, round(waits, 2), why, otherwise=NOT, unit="%")


def improvement(column: Column, point_s: float, *, waits: bool) -> float:
    """Return the share of the blocking program's time that the non-blocking one saves.

    `point_s`: seconds of one point; `waits`: whether a send waits for its receive. The calls themselves take no time.
    """
    wire_s = column.side * column.v * VALUE / WIRE
    ends = [(i, j, i + di, j + dj) for i in range(SIDE) for j in range(SIDE) for di, dj in ((1, 0), (0, 1))]
    links = [
        Link(SIDE * i + j, SIDE * a + b, wire_s, wire_s, 0.0, 0.0, waits=waits, leaves=True, enters=True)
        for i, j, a, b in ends
        if max(a, b) < SIDE
    ]
    steps = -(-column.space[2] // column.v)
    compute_s = [column.grain * point_s] * SIDE**2
    blocking, overlapped = (pipeline_s(steps, compute_s, links, overlapped=each) for each in (False, True))
    return 1 - overlapped / blocking


def _grain(name: str, theirs: Column, volume: int) -> Row:
    why = "the points of a tile"
    if theirs.g != volume:
        why = f"{theirs.side} x {theirs.side} x {theirs.v} is {volume}: a digit is misprinted"
    verdict = REPRODUCED if theirs.g == volume else CONFLICT
    return Row(TABLE, f"{name}: g", theirs.g, volume, verdict, why, unit="points", basis="counted")


def _steps(name: str, theirs: Column, tiling: Tiling, space: Space, mapped: int) -> Row:
    """Return the number of time hyperplanes. The source counts tiles from 1; in (i) and (iii) it rounds up."""
    found, plain = overlapping(tiling, space, mapped), non_overlapping(tiling, space).steps
    why = f"tiles counted from 1; {found.steps} steps are taken, {plain} without overlap"
    same = theirs.p == found.steps_from_1
    why += "" if same else "; here alone the cut tile is left out"
    verdict = REPRODUCED if same else CONFLICT
    ours, best = found.steps_from_1, found.steps
    return Row(TABLE, f"{name}: P(g)", theirs.p, ours, verdict, why, best=best, basis="counted")


def _share(item: str, theirs: str, ours: float) -> Row:
    return printed(TABLE, item, theirs, round(100 * ours, 4), "from the two times", otherwise=CONFLICT, unit="%")


def _growth(columns: Mapping[str, Column]) -> str:
    """Return how V would grow with the length if a step were affine in V."""
    ratio = columns["ii"].v / columns["i"].v
    return f"twice the length should make it {sqrt(2):.3f} times as large were a step affine in V, and does {ratio:.3f}"


def _fills(columns: Mapping[str, Column]) -> str:
    """Return the microseconds of a point between the fills of two message sizes."""
    known = sorted((each.side * each.v, float(each.t_fill_ms)) for each in columns.values())
    slopes = [1e3 * (b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(known)]
    return "no affine law of the message's size: " + " and ".join(f"{slope:.2f} µs a point" for slope in slopes)


def point_times(columns: Mapping[str, Column], fills: int) -> list[tuple[float, float]]:
    """Return for each column the microseconds of a point, from and to, that T = P·(g·t_c + fills·t_fill) allows.

    T is printed rounded, so there is an interval.
    """
    found = []
    for each in columns.values():
        printed_s = Decimal(each.t_theoretical_s)
        half = float(Decimal(1).scaleb(int(printed_s.as_tuple().exponent)) / 2)
        ends = [(float(printed_s) + sign * half) / each.p - fills * float(each.t_fill_ms) * 1e-3 for sign in (-1, 1)]
        found.append((1e6 * ends[0] / each.grain, 1e6 * ends[1] / each.grain))
    return found


def no_point_time(columns: Mapping[str, Column]) -> str:
    """Return a sentence: no time of one point fits all columns, however often a buffer is filled in a step."""
    for fills in range(1, 5):
        times = point_times(columns, fills)
        if max(low for low, _ in times) <= min(high for _, high in times):
            return f"the time of one point is not printed; {times} would fit with {fills} fills"
    shown = ", ".join(f"{(low + high) / 2:.2f}" for low, high in point_times(columns, 2))
    return f"the time of one point is not printed, and none fits all three columns ({shown} µs with 2 fills a step)"
