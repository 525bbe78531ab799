"""Collectives of 16 to 16,384 ranks on servers of eight H100, predicted: strong and weak scaling of folded programs.

    bench/simulator/scale.py [--most RANKS] [--out FILE] [--plot FILE]

Strong: a whole array of 256 MiB, whatever the ranks. Weak: 64 KiB of it for each rank. Every program is proved folded
(`verify_folded`) and simulated on one server's ranks, which stand for all. The first line is the time and memory of the
largest hierarchical all_reduce alone: built, proved and simulated.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dovetail.collective.folded import build_folded
from dovetail.core import save_text
from dovetail.ir import Slot, verify_folded
from dovetail.machine import Machine, Rails
from dovetail.planner.scale import folded_names
from dovetail.report.picture import document
from dovetail.sim.folded import simulate_folded

HERE = Path(__file__).resolve().parents[1]
DEVICES, STRONG_BYTES, WEAK_BYTES = 8, 256 << 20, 64 << 10
KINDS = ("all_reduce", "all_gather", "reduce_scatter")
COLORS = {"ring": "#c9774a", "hierarchical": "#5b8fc9", "recursive_doubling": "#9a6fb0", "recursive_halving": "#5f9e6e"}
PANEL, MARGIN = (300, 200), (56, 40)  # of the plot, in pixels


def h100(servers: int) -> Rails:
    """Servers of the preset h100-8 whose devices have a port of 400 Gbit/s each (ConnectX-7, the vendor's figure); a
    message between servers takes 14 us (NCCL's tuning.cc: network, ring, Simple)."""
    preset = Machine.load("h100-8").costs
    port = {**preset["p2p:nvlink"], "segments": [[0, 14e-6, 1 / 50e9, 0.0]], "provenance": {"source": "see above"}}
    costs = {key: preset[key] for key in ("p2p:nvlink", "reduce", "copy")} | {"p2p:ib": port}
    return Rails(f"h100-{DEVICES}x{servers}", servers, DEVICES, "nvlink", "ib", costs)


def rows_of(name: str, ranks: int, sizes: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Build and prove an algorithm once; yield its predicted time for each size, by the size's name."""
    machine, began = h100(ranks // DEVICES), time.process_time()
    folded = build_folded(name, ranks, nodes=machine.servers)
    verify_folded(folded).raise_if_bad()
    proved = time.process_time()
    slots = max(buffer.slots[0] for buffer in folded.one.buffers)
    for scaling, size in sizes.items():
        start = time.process_time()
        slot = Slot((max(1, -(-size // (4 * slots))),), "float32")
        timeline = simulate_folded(folded, machine, slot)
        yield {
            "algorithm": name,
            "ranks": ranks,
            "scaling": scaling,
            "bytes": slot.num_bytes * slots,
            "predicted_s": float(timeline.columns["end_s"].max()),
            "ops": folded.one.num_ops * ranks,
            "ops_held": folded.one.num_ops,
            "prove_cpu_s": proved - began,
            "simulate_cpu_s": time.process_time() - start,
        }


def largest(ranks: int) -> dict[str, Any]:
    """Return what the hierarchical all_reduce of `ranks` ranks takes; call it before any other work."""
    row = next(rows_of("hierarchical_all_reduce", ranks, {"strong": STRONG_BYTES}))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {**row, "cpu_s": row["prove_cpu_s"] + row["simulate_cpu_s"], "peak_bytes": peak}


def plot(rows: list[dict[str, Any]]) -> str:
    """Return an SVG with a panel for each collective and scaling: predicted seconds against ranks, both logarithmic."""
    parts = []
    for across, kind in enumerate(KINDS):
        for down, scaling in enumerate(("strong", "weak")):
            mine = [row for row in rows if row["scaling"] == scaling and row["algorithm"].endswith(f"_{kind}")]
            parts += panel(mine, f"{kind}, {scaling}", across * (PANEL[0] + MARGIN[0]) + MARGIN[0], down)
    for place, (name, color) in enumerate(COLORS.items()):
        x = MARGIN[0] + 160 * place
        parts.append(f'<text x="{x}" y="18" style="fill: {color}">{name.replace("_", " ")}</text>')
    size = 3 * (PANEL[0] + MARGIN[0]) + 20, 2 * (PANEL[1] + MARGIN[1]) + 50
    return document(parts, *size, "Predicted time of collectives against ranks, log-log")


def panel(rows: list[dict[str, Any]], title: str, left: int, down: int) -> Iterator[str]:
    """Yield the lines of one panel."""
    bottom = (down + 1) * (PANEL[1] + MARGIN[1]) + 10
    ranks = sorted({row["ranks"] for row in rows})
    decades = [math.floor(math.log10(min(r["predicted_s"] for r in rows)))]
    decades += range(decades[0] + 1, math.ceil(math.log10(max(r["predicted_s"] for r in rows))) + 1)
    step = PANEL[1] - 30, max(len(decades) - 1, 1)
    place = {n: left + (PANEL[0] - 30) * i / max(len(ranks) - 1, 1) for i, n in enumerate(ranks)}
    yield f'<text x="{left}" y="{bottom - PANEL[1] + 12}" font-weight="bold">{title}</text>'
    for number, decade in enumerate(decades):
        y = bottom - step[0] * number / step[1]
        yield f'<line x1="{left}" x2="{left + PANEL[0] - 30}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        yield f'<text x="{left - 4}" y="{y + 4:.1f}" text-anchor="end">{label(decade)}</text>'
    for n, x in place.items():
        yield f'<text x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{n}</text>'
    for name in dict.fromkeys(row["algorithm"] for row in rows):
        color = next(color for head, color in COLORS.items() if name.startswith(head))
        points = [
            (place[r["ranks"]], bottom - step[0] * (math.log10(r["predicted_s"]) - decades[0]) / step[1])
            for r in rows
            if r["algorithm"] == name
        ]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        yield f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>'


def label(decade: int) -> str:
    """Return 10**decade seconds as text.

    >>> label(-4), label(0)
    ('100 us', '1 s')
    """
    for unit, power in (("s", 0), ("ms", -3), ("us", -6)):
        if decade >= power:
            return f"{10 ** (decade - power)} {unit}"
    return f"1e{decade} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--most", type=int, default=16384)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "scale.json")
    parser.add_argument("--plot", type=Path, default=HERE / "results" / "scale.svg")
    args = parser.parse_args()
    head = largest(args.most)
    print(f"{args.most} ranks: {head['cpu_s']:.2f} CPU s, {head['peak_bytes'] / 1e6:.0f} MB, {head['ops']} ops")
    rows = []
    for ranks in (n for n in (16, 64, 256, 1024, 4096, 16384) if n <= args.most):
        for kind in KINDS:
            for name in folded_names(kind, h100(ranks // DEVICES)):
                rows += rows_of(name, ranks, {"strong": STRONG_BYTES, "weak": WEAK_BYTES * ranks})
                for row in rows[-2:]:
                    print(f"{row['scaling']:<7}{name:<40}{ranks:>6}{row['predicted_s'] * 1e3:>12.3f} ms", flush=True)
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    found = {"bench": "scale", "commit": git.stdout.strip(), "python": sys.version.split()[0], "largest": head}
    save_text(args.out, json.dumps({**found, "rows": rows}, indent=1) + "\n")
    save_text(args.plot, plot(rows))


if __name__ == "__main__":
    main()
