"""The published figures of loop tiling, cell by cell: reproduced, not reproducible, or in conflict with each other.

`python bench/tiling.py [--out FILE]` counts everything anew and prints the table; nothing is timed, so that any machine
gives the same.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from decimal import Decimal
from itertools import pairwise
from math import sqrt
from pathlib import Path
from typing import Any

from dovetail.loops.matrices import as_matrix, diagonal
from dovetail.tiling.hyperplanes import best_mapping, non_overlapping, num_processors, overlapping
from dovetail.tiling.search import best_tile
from dovetail.tiling.spaces import Space
from dovetail.tiling.tile_points import traffic
from dovetail.tiling.tiling import Tiling

HERE = Path(__file__).parent
PUBLISHED = HERE / "published" / "loop_tiling.json"
RESULT = HERE / "results" / "loop-tiling.json"
REPRODUCED, NOT, CONFLICT, MISSED = "reproduced", "not_reproducible", "source_inconsistent", "missed"
CLUSTER = "a time of their cluster: 16 PCs, 100 Mbit/s Ethernet, MPICH of 2001"

Row = dict[str, Any]


def rows(published: dict[str, Any]) -> list[Row]:
    """A row for each figure: what it is, theirs, ours, the verdict and why."""
    found = [*_tiles(published["tiles"])]
    for name, column in published["table"].items():
        found += _column(name, column, published["table"])
    return [{"source": "tiling 2001", **row} for row in found]


def _row(item: str, theirs: Any, ours: Any, verdict: str, why: str, best: Any = None) -> Row:
    return {"item": item, "theirs": theirs, "ours": ours, "best": best, "verdict": verdict, "why": why}


def _tiles(tiles: dict[str, Any]) -> Iterator[Row]:
    """The two tiles of one volume: what is computed in them and what leaves them."""
    deps = as_matrix(tiles["deps"], "deps")
    least = best_tile(deps, 20)
    for name in ("P1", "P2"):
        theirs = tiles[name]
        tiling = Tiling(deps, as_matrix(theirs["sides"], name))
        formula, counted = tiling.formula(), traffic(tiling).pairs
        yield _row(f"V_comp of {name}", theirs["v_comp"], tiling.volume, REPRODUCED, "|det P|")
        ours = {"formula": formula, "exact": counted}
        if theirs["v_comm"] == counted:
            why = f"the exact count of (point, dependence) pairs; the formula printed above it gives {formula}"
            yield _row(f"V_comm of {name}", theirs["v_comm"], ours, REPRODUCED, why, least.cost)
        else:
            why = f"no count gives it: formula and exact count are both {counted}, the least of any tile of this volume"
            why += "; with the 27 of P1, counted, this would be 20, and with 20 by the formula P1 has 32"
            yield _row(f"V_comm of {name}", theirs["v_comm"], ours, CONFLICT, why, least.cost)
    verdict = REPRODUCED if least.is_proved and least.tiling.sides == as_matrix(tiles["P2"]["sides"], "P2") else MISSED
    yield _row("best tile of 20 points", "P2", "P2", verdict, "by the formula, over all tiles of 20 points", "P2")


def _column(name: str, theirs: dict[str, Any], table: dict[str, Any]) -> Iterator[Row]:
    """One column of the table of results."""
    extents, side, v = theirs["space"], theirs["side"], theirs["v"]
    tiling = Tiling(diagonal([1, 1, 1]), diagonal([side, side, v]))
    space = Space.box([(0, extent) for extent in extents])
    mapped = best_mapping(tiling, space)
    size = "x".join(map(str, extents))
    processors = num_processors(tiling, space, mapped)
    yield _row(
        f"{name}: index set", size, f"{processors} processors", _if(processors == 16), "given; 4 x 4 chains of tiles"
    )
    yield _row(f"{name}: V", v, None, NOT, f"the best on their cluster; {_growth(table)}")
    yield _grain(name, theirs, tiling.volume)
    yield _row(f"{name}: t overlapping", theirs["t_overlapping_s"], None, NOT, CLUSTER)
    yield _row(f"{name}: t fill MPI buffer", theirs["t_fill_ms"], None, NOT, f"{CLUSTER}; {_fills(table)}")
    yield _steps(name, theirs, tiling, space, mapped)
    yield _row(f"{name}: t theoretical", theirs["t_theoretical_s"], None, NOT, _no_point_time(table))
    model, real = float(theirs["t_theoretical_s"]), float(theirs["t_overlapping_s"])
    yield _share(f"{name}: difference", theirs["difference_percent"], (model - real) / model)
    slow = float(theirs["t_non_overlapping_s"])
    yield _row(f"{name}: t non-overlapping", theirs["t_non_overlapping_s"], None, NOT, CLUSTER)
    yield _share(f"{name}: improvement", theirs["improvement_percent"], 1 - real / slow)


def _if(holds: bool) -> str:
    return REPRODUCED if holds else MISSED


def _grain(name: str, theirs: dict[str, Any], volume: int) -> Row:
    if theirs["g"] == volume:
        return _row(f"{name}: g", theirs["g"], volume, REPRODUCED, "the points of a tile")
    why = f"{theirs['side']} x {theirs['side']} x {theirs['v']} is {volume}: a digit is misprinted"
    return _row(f"{name}: g", theirs["g"], volume, CONFLICT, why)


def _steps(name: str, theirs: dict[str, Any], tiling: Tiling, space: Space, mapped: int) -> Row:
    """The time hyperplanes: theirs count tiles from 1, with the last tile rounded up in (i) and (iii)."""
    found = overlapping(tiling, space, mapped)
    ours = {"from_1": found.steps_from_1, "from_0": found.steps}
    plain = non_overlapping(tiling, space).steps
    why = f"tiles counted from 1; {found.steps} steps are taken, {plain} without overlap"
    if theirs["p"] == found.steps_from_1:
        return _row(f"{name}: P(g)", theirs["p"], ours, REPRODUCED, why, found.steps)
    return _row(
        f"{name}: P(g)", theirs["p"], ours, CONFLICT, f"{why}; here alone the cut tile is left out", found.steps
    )


def _share(item: str, theirs: str, ours: float) -> Row:
    """A percentage that follows from two other cells, rounded or cut off to the digits printed."""
    step = Decimal(1).scaleb(int(Decimal(theirs).as_tuple().exponent))
    percent = Decimal(repr(100 * ours))
    rounded, cut = percent.quantize(step), percent.quantize(step, "ROUND_DOWN")
    verdict = REPRODUCED if Decimal(theirs) in (rounded, cut) else CONFLICT
    why = "from the two times" + (", cut off" if Decimal(theirs) != rounded else "")
    return _row(item, f"{theirs} %", f"{100 * ours:.1f} %", verdict, why)


def _growth(table: dict[str, Any]) -> str:
    """What a step time affine in V would force."""
    ratio = table["ii"]["v"] / table["i"]["v"]
    return f"twice the length should make it {sqrt(2):.3f} times as large were a step affine in V, and does {ratio:.3f}"


def _fills(table: dict[str, Any]) -> str:
    """Microseconds a point between the fills of two message sizes."""
    known = sorted((each["side"] * each["v"], float(each["t_fill_ms"])) for each in table.values())
    slopes = [1e3 * (b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(known)]
    return "no affine law of the message's size: " + " and ".join(f"{slope:.2f} µs a point" for slope in slopes)


def point_times(table: dict[str, Any], fills: int) -> list[tuple[float, float]]:
    """For each column the microseconds a point, from and to, that T = P·(g·t_c + fills·t_fill) allows; T is rounded."""
    found = []
    for each in table.values():
        printed = Decimal(each["t_theoretical_s"])
        half = float(Decimal(1).scaleb(int(printed.as_tuple().exponent)) / 2)
        grain = each["side"] ** 2 * each["v"]
        ends = [
            (float(printed) + sign * half) / each["p"] - fills * float(each["t_fill_ms"]) * 1e-3 for sign in (-1, 1)
        ]
        found.append((1e6 * ends[0] / grain, 1e6 * ends[1] / grain))
    return found


def _no_point_time(table: dict[str, Any]) -> str:
    """That no time of one point fits all columns, however often a buffer is filled in a step."""
    for fills in range(1, 5):
        times = point_times(table, fills)
        if max(low for low, _ in times) <= min(high for _, high in times):
            return f"the time of one point is not printed; {times} would fit with {fills} fills"
    shown = ", ".join(f"{(low + high) / 2:.2f}" for low, high in point_times(table, 2))
    return f"the time of one point is not printed, and none fits all three columns ({shown} µs with 2 fills a step)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    published = json.loads(PUBLISHED.read_text())
    found = rows(published)
    for row in found:
        print(f"{row['item']:<28}{row['theirs']!s:<16}{row['ours']!s:<30}{row['verdict']:<21}{row['why']}")
    document = {"bench": "tiling", "label": "counted", "source": published["source"], "rows": found}
    args.out.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
