"""tiles: tilings of the rows of a matrix product: the rows of each tile, and how they were chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dovetail.core import PlanError, parse_count

Seconds = Callable[[NDArray[np.int64]], NDArray[np.float64]]
Reading = Literal["max", "min"]
READINGS: tuple[Reading, ...] = ("max", "min")
ALIGN = 128  # rows; the seed's alignment
MOST_BLOCKS = 15  # most long blocks: MC²'s queue holds 16 blocks
PRIOR = 1.15  # the seed's factor on the short block's times, which no measurement supports


@dataclass(frozen=True)
class Tiling:
    """Rows of each tile, in the order in which tiles run, and the named intermediate values that led to them."""

    family: str
    tiles: tuple[int, ...]
    steps: dict[str, float | int | str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def renamed(self, family: str) -> Tiling:
        """Return the same tiling, labelled with another family."""
        return replace(self, family=family)


def serial(m: int) -> Tiling:
    """Return one tile of all `m` rows: compute everything, then communicate everything.

    >>> serial(4096).tiles, serial(0).tiles
    ((4096,), ())
    """
    rows = parse_count(m, "m")
    return Tiling("serial", (rows,) if rows else ())


def uniform(m: int, count: int, align: int = 1) -> Tiling:
    """Return `count` tiles as even as possible, all but the last multiples of `align`; fewer if m has fewer multiples.

    >>> uniform(10, 3).tiles, uniform(1000, 3, align=128).tiles, uniform(2, 5).tiles
    ((4, 3, 3), (384, 384, 232), (1, 1))
    """
    rows, unit = parse_count(m, "m"), parse_count(align, "align", least=1)
    blocks = -(-rows // unit)
    pieces = min(parse_count(count, "count", least=1), blocks)
    notes = () if pieces == count else (f"{rows} rows in blocks of {unit} make only {pieces} tiles",)
    if not pieces:
        return Tiling("uniform", (), {"count": 0}, notes)
    size, extra = divmod(blocks, pieces)
    tiles = [(size + (index < extra)) * unit for index in range(pieces)]
    tiles[-1] -= blocks * unit - rows
    return Tiling("uniform", tuple(tiles), {"count": pieces}, notes)


def check_tiles(rows: int, tiles: Sequence[int], whole: str = "m = {rows} rows") -> tuple[int, ...]:
    """Return the tiles as a tuple of positive numbers that add up to `rows` (none for 0). Raises PlanError otherwise;
    `whole` describes the rows in it.

    >>> check_tiles(10, [4, 4])
    Traceback (most recent call last):
    ...
    dovetail.core.errors.PlanError: the tiles do not add up to m = 10 rows
      found       [4, 4], 8 rows
      try         make the last tile 2 rows longer
    """
    lengths = tuple(parse_count(tile, "a tile", least=1) for tile in tiles)
    missing = rows - sum(lengths)
    if missing:
        hint = f"make the last tile {abs(missing)} rows {'longer' if missing > 0 else 'shorter'}" if lengths else None
        found = f"{list(lengths)}, {sum(lengths)} rows"
        raise PlanError(f"the tiles do not add up to {whole.format(rows=rows)}", found=found, hint=hint)
    return lengths


def pipeline_s(
    tiles: Sequence[int], compute_s: Seconds, comm_s: Seconds, compute_factor: float = 1.0, comm_factor: float = 1.0
) -> float:
    """Return the seconds of the two-lane pipeline in which tile i is communicated while tile i + 1 is computed.

    While both lanes are busy, compute takes `compute_factor` and communication `comm_factor` times as long. `sim`
    predicts the same for one compute lane and one library lane on equal ranks; this function is faster.

    >>> rows = lambda r: 1.0 * r
    >>> pipeline_s([4], rows, rows), pipeline_s([2, 2], rows, rows), pipeline_s([1, 1, 1, 1], rows, rows)
    (8.0, 6.0, 5.0)
    """
    if not len(tiles):
        return 0.0
    rows = np.asarray(tiles, dtype=np.int64)
    now, backlog = 0.0, 0.0
    for work, message in zip(compute_s(rows), comm_s(rows), strict=True):
        both = min(work * compute_factor, backlog * comm_factor)
        now += both + work - both / compute_factor
        backlog += message - both / comm_factor
    return float(now + backlog)


def mc2_short(k: int, n: int, reading: Reading = "max") -> dict[str, int]:
    """Return the seed's three candidates for the short block, in rows, and its choice m0 (seed 000, tiling step 1).

    The seed's text takes the least of a, b, c; its worked example takes the greatest. `k`: of one rank's product.

    >>> mc2_short(3072, 8192), mc2_short(3072, 8192, "min")["m0"]
    ({'a': 171, 'b': 192, 'c': 384, 'm0': 384}, 171)
    """
    if reading not in READINGS:
        raise PlanError(f"unknown reading '{reading}' of the short block", hint="'max' or 'min'")
    if k < 1 or n < 1:
        raise PlanError("the short block needs k and n of at least 1", found=f"k {k}, n {n}")
    a = -(-(4 << 30) // (k * n))
    b = -(-(6 << 30) // (k * n + 1024 * n))
    c = 3 * ALIGN
    return {"a": a, "b": b, "c": c, "m0": max(a, b, c) if reading == "max" else min(a, b, c)}


def mc2_short_shard(k: int, n: int, ranks: int, row_bytes: int) -> dict[str, int]:
    """Return the short block of MC²'s all-gather and reduce-scatter, in rows of a rank's shard (seed 000's library).

    It has messages of at least 64 KiB, at least 10 Gi multiplications over all ranks, and at least 128 rows. `k`, `n`:
    of one rank's product; `row_bytes`: bytes of a row that travels.

    >>> mc2_short_shard(4096, 1024, 8, 8192)
    {'a': 8, 'b': 320, 'c': 128, 'm0': 320}
    """
    a, b, c = -(-(64 << 10) // max(row_bytes, 1)), -(-(10 << 30) // max(k * n * ranks, 1)), ALIGN
    return {"a": a, "b": b, "c": c, "m0": max(a, b, c)}


def mc2_shard(
    rows: int, short: Mapping[str, int], own_s: float, compute_s: Seconds, comm_s: Seconds, *, gathers: bool
) -> Tiling:
    """Return MC²'s tiles of a rank's shard.

    The product of the rank's own shard hides the first transfer (in a reduce-scatter, the last one). The shard is not
    cut if it is shorter than two short blocks, or if the own product hides all communication. Otherwise:

    - all-gather, computation-bound: long blocks take as long to arrive as the own product takes;
    - all-gather, communication-bound: all blocks are as short as the short one. In both cases the short block is last;
    - reduce-scatter: by the rule of all-reduce with this short block, which is first if communication-bound, else last.

    There are at most 16 blocks.

    >>> compute, comm = lambda r: 1e-6 * r, lambda r: 20e-6 + 0.25e-6 * r
    >>> mc2_shard(2048, {"m0": 256}, 150e-6, compute, comm, gathers=True).tiles
    (512, 512, 512, 512)
    """
    steps: dict[str, float | int | str] = dict(short)
    m0, whole_compute_s, whole_comm_s = short["m0"], _at(compute_s, rows), _at(comm_s, rows)
    bound = "communication" if whole_comm_s >= whole_compute_s else "computation"
    steps.update({"compute_s": whole_compute_s, "comm_s": whole_comm_s, "own_s": own_s, "bound": bound})
    if rows < 2 * m0:
        return Tiling("mc2", (rows,) if rows else (), steps, (f"not cut: {rows} rows are less than two short blocks",))
    if gathers and whole_comm_s < own_s:
        return Tiling("mc2", (rows,), steps, ("not cut: the own product hides all communication",))
    if not gathers:
        t0_s, t1_s = (_at(curve, m0) for curve in (compute_s, comm_s))
        raw = _longest(compute_s, t1_s, rows) if bound == "communication" else _longest(comm_s, t0_s, rows)
    else:
        raw = _longest(comm_s, own_s, rows) if bound == "computation" else m0
    raw = max(raw, -(-(rows - m0) // MOST_BLOCKS))
    made = _mc2_lengths(rows, m0, raw, "communication" if gathers else bound, steps)
    return replace(made, tiles=made.tiles[::-1]) if gathers else made


def mc2(
    m: int, k: int, n: int, compute_s: Seconds, comm_s: Seconds, *, reading: Reading = "max", prior: float = PRIOR
) -> Tiling:
    """Return MC²'s tiling with a short block B and long blocks A (seed 000, tiling steps 1 to 4).

    The order is BAAA if communication-bound, AAAB if computation-bound. `compute_s` and `comm_s` give the seconds of a
    tile by its rows. The seed does not define three cases; here, M < m0 + m1 is not cut, a long block below 128 rows
    becomes 128, and rows beyond a multiple of 128 go to the short block.

    >>> compute, comm = lambda r: 0.196e-6 * r, lambda r: 60e-6 + 0.21e-6 * r
    >>> mc2(4096, 3072, 8192, compute, comm).tiles
    (512, 896, 896, 896, 896)
    """
    rows = parse_count(m, "m")
    if not rows or k < 1 or n < 1:
        return Tiling("mc2", (rows,) if rows else (), {}, ("an empty product is not cut",))
    whole_compute_s, whole_comm_s = (_at(curve, rows) for curve in (compute_s, comm_s))
    bound = "communication" if whole_comm_s >= whole_compute_s else "computation"
    steps: dict[str, float | int | str] = {"compute_s": whole_compute_s, "comm_s": whole_comm_s, "bound": bound}
    short = mc2_short(k, n, reading)
    steps.update({"reading": reading, "a": short["a"], "b": short["b"], "c": short["c"], "m0": short["m0"]})
    m0 = short["m0"]
    if m0 >= rows:
        return Tiling("mc2", (rows,), steps, (f"not cut: M = {rows} is no longer than the short block, {m0} rows",))
    steps["prior"] = prior
    steps["t0_s"], steps["t1_s"] = t0_s, t1_s = [_at(curve, m0) * prior for curve in (compute_s, comm_s)]
    raw = _longest(compute_s, t1_s, rows) if bound == "communication" else _longest(comm_s, t0_s, rows)
    return _mc2_lengths(rows, m0, raw, bound, steps)


def _mc2_lengths(m: int, m0: int, raw: int, bound: str, steps: dict[str, float | int | str]) -> Tiling:
    """Steps 3 and 4 of the seed: align the long block, count long blocks, and distribute the remaining rows."""
    notes: list[str] = []
    m1 = raw // ALIGN * ALIGN
    if not m1:
        m1 = ALIGN
        notes.append(f"no block of {ALIGN} rows balances the short block; the long block is set to {ALIGN}")
    count = (m - m0) // m1
    steps.update({"m1_raw": raw, "m1": m1, "count": count})
    if not count:
        notes.append(f"not cut: M = {m} is shorter than a short and a long block, {m0} + {m1} rows")
        return Tiling("mc2", (m,), steps, tuple(notes))
    long = (m - m0) // count // ALIGN * ALIGN
    short = m - long * count
    steps.update({"m1_final": long, "m0_final": short})
    if short % ALIGN:
        notes.append(f"the short block, {short} rows, is not a multiple of {ALIGN}, because M is not")
    if short > long:
        notes.append(f"the short block, {short} rows, took the remainder and is longer than the long ones, {long}")
    blocks = [long] * count
    return Tiling("mc2", (short, *blocks) if bound == "communication" else (*blocks, short), steps, tuple(notes))


def _at(curve: Seconds, rows: int) -> float:
    return float(curve(np.array([rows], dtype=np.int64))[0])


def _longest(curve: Seconds, limit_s: float, most: int) -> int:
    """Return the most rows, up to `most`, whose time on the non-decreasing `curve` is at most `limit_s`; 0 if none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if _at(curve, middle) <= limit_s:
            low = middle
        else:
            high = middle - 1
    return low
