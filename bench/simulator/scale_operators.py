"""Strong and weak scaling of a tensor-parallel layer and a 3-D stencil on generated topologies, predicted.

    bench/simulator/scale_operators.py [--most RANKS] [--out FILE] [--plot FILE]

The layer: `matmul_all_reduce` of 4096 tokens, 28,672 by 8192, bfloat16 (the second product of a 70-billion-parameter
model's MLP), on nodes of 8 H100, whose sums take the whole memory's rate. Strong: that layer, whatever the ranks; weak:
3584 rows of its weights for each rank.
The stencil: `heat3d`, float64, 8 steps, on a torus of two axes, a rank a place. Strong: 512 points along each axis;
weak: 64 x 64 x 512 points for each rank. Each point is what `plan` chooses, beside serial (no overlap) and the ideal
(all compute or all communication, whichever takes longer).
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import dovetail as dt
from dovetail.core import CostError, save_text
from dovetail.machine import Machine, load
from dovetail.planner import operator_class, plan
from dovetail.planner.costs import Costs
from dovetail.report.picture import document

HERE = Path(__file__).resolve().parents[1]
TOKENS, INNER, OUTER, INNER_A_RANK = 4096, 28672, 8192, 3584
SIDE, STEPS, BLOCK = 512, 8, 64
FLOPS, MEMORY = 1e12, 200e9  # of a host of the torus, assumed: a roofline with these peaks
HBM = 3350e9  # bytes a second of an H100's memory: sums and copies by all its multiprocessors
LAYER_RANKS, TORUS = (1, 2, 4, 8, 16, 32), ((1, 1), (2, 2), (4, 4), (8, 8), (16, 16))
PANEL, MARGIN = (320, 220), (60, 50)  # of the plot, in pixels
LINES = {"serial_s": "#c9774a", "planned_s": "#5b8fc9", "ideal_s": "#5f9e6e"}


def line(per_unit_s: float, unit: str) -> dict[str, Any]:
    head = {"schema": "dovetail.curve/1", "x_unit": unit, "segments": [[0, 0.0, per_unit_s, 0.0]]}
    return {**head, "low": 0.0, "high": None, "label": "preset", "provenance": {"source": "assumed"}}


@cache
def kernels() -> tuple[str, ...]:
    """Return the cost keys of the stencil's kernels, each of which a schedule's CostError names when it is missing."""
    operator, known = operator_class("heat3d")((16, 16, 16), STEPS, "float64"), dict[str, dict[str, Any]]()
    machine = load("torus-2x2").with_costs({"memory": line(1 / MEMORY, "bytes")})
    for schedule in (operator.serial(4), *operator.schedules(Costs.of(operator, machine, 4)[0])):
        missing = "flops"
        while missing:
            try:
                Costs.of(operator, machine.with_costs(known), 4, extrapolate=True)[0].scored(schedule)
                missing = ""
            except CostError as error:
                missing = re.findall(r"no '(flops:[^']+)'", error.what)[0]
                known[missing] = line(1 / FLOPS, "flops")
    return tuple(known)


def torus(sides: tuple[int, int]) -> Machine:
    """Return a torus whose hosts compute at assumed rates; the links' are those of the family."""
    rates = {key: line(1 / FLOPS, "flops") for key in kernels()}
    return load(f"torus-{sides[0]}x{sides[1]}").with_costs({**rates, "memory": line(1 / MEMORY, "bytes")})


def h100(ranks: int) -> Machine:
    """Return nodes of 8 H100 whose sums and copies use the whole memory's rate; the preset's use one multiprocessor."""
    rates = {"reduce": line(3 / HBM, "bytes"), "copy": line(2 / HBM, "bytes")}
    return load("h100-8" if ranks <= 8 else f"h100-8x{ranks // 8}").with_costs(rates)


def layers(most: int) -> Iterator[tuple[str, int, Any, Machine]]:
    """Yield (scaling, ranks, operator, machine) of the layer."""
    for ranks in (each for each in LAYER_RANKS if each <= most):
        machine = h100(ranks)
        for scaling, inner in (("strong", INNER), ("weak", INNER_A_RANK * ranks)):
            yield scaling, ranks, dt.MatmulAllReduce(TOKENS, inner, OUTER, "bfloat16"), machine


def stencils(most: int) -> Iterator[tuple[str, int, Any, Machine]]:
    """Yield (scaling, ranks, operator, machine) of the stencil."""
    heat = operator_class("heat3d")
    for sides in (each for each in TORUS if each[0] * each[1] <= most):
        for scaling, grid in (("strong", (SIDE,) * 3), ("weak", (BLOCK * sides[0], BLOCK * sides[1], SIDE))):
            operator = heat(grid, STEPS, "float64")
            yield scaling, sides[0] * sides[1], operator, torus(sides)


def rows(most: int) -> Iterator[dict[str, Any]]:
    """Yield the prediction of each point."""
    for what, points in (("layer", layers(most)), ("stencil", stencils(most))):
        for scaling, ranks, operator, machine in points:
            began = time.process_time()
            made = plan(operator, machine, ranks=ranks, extrapolate=True)
            times = {"planned_s": made.predicted_s, "serial_s": made.serial_s, "ideal_s": made.ideal_s}
            about = {"operator": operator.title, "machine": machine.name, "schedule": str(made.schedule)}
            took = time.process_time() - began
            yield {"what": what, "scaling": scaling, "ranks": ranks, **times, **about, "plan_cpu_s": took}


def plot(found: list[dict[str, Any]]) -> str:
    """Return an SVG with a panel for each operator and scaling: predicted time against ranks, linear from 0 (weak) or
    over that of one rank (strong: the speed-up)."""
    parts: list[str] = []
    for across, what in enumerate(("layer", "stencil")):
        for down, scaling in enumerate(("strong", "weak")):
            mine = [row for row in found if (row["what"], row["scaling"]) == (what, scaling)]
            parts += panel(mine, f"{what}, {scaling}", MARGIN[0] + across * (PANEL[0] + MARGIN[0]), down)
    for place, (name, color) in enumerate(LINES.items()):
        parts.append(f'<text x="{MARGIN[0] + 110 * place}" y="18" style="fill: {color}">{name[:-2]}</text>')
    size = 2 * (PANEL[0] + MARGIN[0]) + 20, 2 * (PANEL[1] + MARGIN[1]) + 50
    return document(parts, *size, "Scaling of a tensor-parallel layer and a 3-D stencil, predicted")


def panel(mine: list[dict[str, Any]], title: str, left: int, down: int) -> Iterator[str]:
    """Yield the lines of one panel: speed-up over one rank (strong), or efficiency (weak), against doubling ranks."""
    strong = title.endswith("strong")
    bottom, width, height = (down + 1) * (PANEL[1] + MARGIN[1]), PANEL[0] - 30, PANEL[1] - 40
    values = {name: [mine[0]["serial_s"] / row[name] for row in mine] for name in LINES}
    top = max(max(each) for each in values.values()) if strong else 1.0
    yield f'<text x="{left}" y="{bottom - height - 14}" font-weight="bold">{title}</text>'
    for share in (0.0, 0.5, 1.0):
        y = bottom - height * share
        yield f'<line x1="{left}" x2="{left + width}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        text = f"{top * share:.1f} x" if strong else f"{top * share:.0%}"
        yield f'<text x="{left - 4}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
    places = [left + width * i / max(len(mine) - 1, 1) for i in range(len(mine))]
    for x, row in zip(places, mine, strict=True):
        yield f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{row["ranks"]}</text>'
    for name, color in LINES.items():
        points = " ".join(
            f"{x:.1f},{bottom - height * min(v / top, 1):.1f}" for x, v in zip(places, values[name], strict=True)
        )
        yield f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--most", type=int, default=256)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "scale-operators.json")
    parser.add_argument("--plot", type=Path, default=HERE / "results" / "scale-operators.svg")
    args = parser.parse_args()
    found = []
    for row in rows(args.most):
        found.append(row)
        times = "".join(f"{row[name] * 1e3:>12.3f}" for name in LINES)
        print(
            f"{row['what']:<9}{row['scaling']:<8}{row['ranks']:>5}{times}  {row['schedule']} {row['plan_cpu_s']:.0f} s",
            flush=True,
        )
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    head = {"bench": "scale_operators", "commit": git.stdout.strip(), "python": sys.version.split()[0]}
    save_text(args.out, json.dumps({**head, "rows": found}, indent=1) + "\n")
    save_text(args.plot, plot(found))


if __name__ == "__main__":
    main()
