"""How well `sim` reproduces public timings of 8 A100s and 8 H100s, after fitting a latency and a bandwidth a protocol.

    bench/simulator/calibrate_gpu.py [--machine a100-8] [--presets] [--out FILE]

Each row of the tables (bench/published) is held against what is known, or assumed, to have run at its size. The fit
minimises log(predicted / published), large errors counting less. Every second size is then left out of the fit and
predicted; so is a table of all_gather. Nothing is measured here. `--presets` writes the numbers into the presets.
"""

from __future__ import annotations

import argparse
import json
import statistics
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq, least_squares

from dovetail.cost import protocols
from dovetail.machine import Machine, load
from dovetail.reproduce.gpu_ways import seconds, ways

HERE = Path(__file__).resolve().parents[1]
PUBLISHED = HERE / "published" / "gpu_collectives.json"
PRESETS = HERE.parent / "src" / "dovetail" / "machine" / "presets"
COLUMNS = ("nccl", "msccl")
NOTHING_S = 1e-9  # a latency below this cannot be distinguished from none
FREE = ("latency_s", "lane_bytes_per_s")
FIXED = {("a100-8", "Simple", "latency_s")}  # one row cannot separate it from bandwidth: NCCL's own constant stays
RIVALS = ("ring LL", "ring LL128", "ring Simple", "NVLS")  # of NCCL
CROSSOVERS = {  # where the second overtakes the first
    "ring, LL to LL128": ("ring 4x8 LL", "ring 4x8 LL128"),
    "all pairs to ring, both LL": ("pairs x4 LL", "ring 4x8 LL"),
    "all pairs to NCCL's best": ("pairs x4 LL", None),
}


class Row(NamedTuple):
    """One published figure, and the way that made it."""

    column: str
    num_bytes: int
    published_s: float
    way: str


def rows_of(table: dict[str, Any]) -> list[Row]:
    """All figures of a published table, NCCL's and MSCCL's."""
    rows = []
    for place, column in enumerate(COLUMNS, 1):
        starts, names = zip(*table["ran"][column], strict=True)
        for row in table["rows"]:
            way = names[bisect_right(starts, row[0]) - 1]
            rows.append(Row(column, row[0], row[place] * 1e-6, way))
    return rows


def predicted(machine: Machine, way: str, num_bytes: int) -> float:
    """Seconds of a way in simulation."""
    known = ways(machine.name)[way]
    return seconds(known, num_bytes, machine, protocols(machine)[known.protocol])


def parameters(machine: Machine, rows: Sequence[Row]) -> list[tuple[str, str]]:
    """What is fitted: when the kernel starts, and a latency and a bandwidth of every protocol in the rows."""
    used = sorted({ways(machine.name)[row.way].protocol for row in rows})
    both = [(protocol, field) for protocol in used for field in FREE]
    return [("", "launch_s"), *(each for each in both if (machine.name, *each) not in FIXED)]


def value_of(machine: Machine, name: tuple[str, str]) -> float:
    return float(machine.facts["protocols"][name[0]][name[1]] if name[0] else machine.facts[name[1]])


def with_values(machine: Machine, names: Sequence[tuple[str, str]], values: Sequence[float]) -> Machine:
    """The machine with other numbers in its facts."""
    facts = json.loads(json.dumps(machine.facts))
    for (protocol, field), value in zip(names, values, strict=True):
        (facts["protocols"][protocol] if protocol else facts)[field] = float(value)
    return replace(machine, facts=facts)


def fit(machine: Machine, rows: Sequence[Row]) -> Machine:
    """The machine with the numbers that reproduce the rows best, starting from its own."""
    names = parameters(machine, rows)
    start = np.log([max(value_of(machine, name), 2 * NOTHING_S) for name in names])

    def logs(x: np.ndarray) -> np.ndarray:
        guess = with_values(machine, names, np.exp(x))
        return np.array([np.log(predicted(guess, row.way, row.num_bytes) / row.published_s) for row in rows])

    found = least_squares(logs, start, loss="soft_l1", f_scale=0.1, diff_step=0.02, max_nfev=30)
    return with_values(
        machine, names, [0.0 if value < NOTHING_S else float(f"{value:.3g}") for value in np.exp(found.x)]
    )


def errors(machine: Machine, rows: Sequence[Row]) -> list[float]:
    """(predicted - published) / published of each row."""
    return [predicted(machine, row.way, row.num_bytes) / row.published_s - 1 for row in rows]


def median_error(values: Sequence[float]) -> float:
    return statistics.median(map(abs, values))


def by_column(rows: Sequence[Row], found: Sequence[float]) -> dict[str, float]:
    """The median error of NCCL's figures and of MSCCL's."""
    errors_of = {column: [e for e, row in zip(found, rows, strict=True) if row.column == column] for column in COLUMNS}
    return {column: median_error(each) for column, each in errors_of.items()}


def crossover(machine: Machine, first: str, second: str | None) -> float | None:
    """Bytes from which `second` (None: the best of NCCL's) is faster for good; None where it never is."""
    rivals = (
        [second] if second else [name for name in RIVALS if ways(machine.name)[name].protocol in protocols(machine)]
    )
    sizes = np.geomspace(1 << 17, 1 << 23, 13).astype(int)
    gains = [
        predicted(machine, first, n) - min(predicted(machine, name, n) for name in rivals) for n in map(int, sizes)
    ]
    turns = [i for i, (a, b) in enumerate(pairwise(gains)) if a <= 0 < b]
    if not turns or gains[-1] <= 0:
        return None
    a, b = np.log(sizes[turns[-1] : turns[-1] + 2])

    def gain(x: float) -> float:
        n = round(np.exp(x))
        return predicted(machine, first, n) - min(predicted(machine, name, n) for name in rivals)

    return float(np.exp(brentq(gain, a, b, xtol=0.01)))


def free_choice(machine: Machine, column: str, num_bytes: int) -> tuple[str, float]:
    """The fastest way in simulation, of NCCL's alone or of all."""
    of_all = [name for name, way in ways(machine.name).items() if way.protocol in protocols(machine)]
    known = [name for name in of_all if "gather" not in name and (column == "msccl" or name in RIVALS)]
    if num_bytes > 4 << 20:  # LL would go round many times: nobody's choice, and long to simulate
        known = [name for name in known if not name.endswith(" LL")]
    return min(((name, predicted(machine, name, num_bytes)) for name in known), key=lambda each: each[1])


def judge(name: str, tables: dict[str, Any]) -> tuple[Machine, dict[str, Any]]:
    """Fit one machine to its all_reduce table; the machine, and all that is to be said of the fit."""
    machine, rows = load(name), rows_of(tables[name])
    fitted = fit(machine, rows)
    found = errors(fitted, rows)
    kept, left_out = rows_split(rows)
    held_out = errors(fit(machine, kept), left_out)
    table = []
    for row, error in zip(rows, found, strict=True):
        chosen, chosen_s = free_choice(fitted, row.column, row.num_bytes)
        free = {"free_choice": chosen, "free_error": chosen_s / row.published_s - 1}
        table.append({**row._asdict(), "predicted_s": row.published_s * (1 + error), "error": error, **free})
    document = {
        "machine": name,
        "what": tables[name]["what"],
        "points": len(rows),
        "fitted": {" ".join(p).strip(): value_of(fitted, p) for p in parameters(machine, rows)},
        "median_error": median_error(found),
        "median_error_by_column": by_column(rows, found),
        "worst_error": max(map(abs, found)),
        "held_out": {"points": len(left_out), "median_error": median_error(held_out)},
        "free_choice_median_error": median_error([row["free_error"] for row in table]),
        "crossover_bytes": {what: crossover(fitted, *two) for what, two in CROSSOVERS.items()},
        "rows": table,
    }
    for other, each in tables.items():
        if each.get("machine") == name:
            unseen = rows_of(each)
            off = errors(fitted, unseen)
            reported = [{**row._asdict(), "error": error} for row, error in zip(unseen, off, strict=True)]
            medians = {"median_error": median_error(off), "median_error_by_column": by_column(unseen, off)}
            document["never_fitted"] = {"table": other, **medians, "rows": reported}
    return fitted, document


def rows_split(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Every second size for the fit, the others to be predicted."""
    sizes = sorted({row.num_bytes for row in rows})
    return tuple([row for row in rows if sizes.index(row.num_bytes) % 2 == turn] for turn in (0, 1))


def write_preset(machine: Machine) -> None:
    """Put the fitted facts into the preset, its own lines otherwise."""
    path = PRESETS / f"{machine.name}.json"
    path.write_text(json.dumps(machine.to_json(), indent=1) + "\n")


def print_summary(document: dict[str, Any]) -> None:
    """The rows and what they come to, to be read."""
    fitted = ", ".join(f"{name} {value:g}" for name, value in document["fitted"].items())
    print(f"{document['what']}: {len(document['fitted'])} numbers fitted to {document['points']} points: {fitted}")
    print(f"{'bytes':>11}       {'published':>10}{'predicted':>10}{'error':>8}  {'ran':<18}fastest in simulation")
    for row in document["rows"]:
        times = f"{row['published_s'] * 1e6:>10.1f}{row['predicted_s'] * 1e6:>10.1f}{row['error']:>+8.1%}"
        free = f"{row['free_choice']} ({row['free_error']:+.0%})"
        print(f"{row['num_bytes']:>11} {row['column']:6}{times}  {row['way']:<18}{free}")
    for key in ("median_error", "worst_error", "held_out", "free_choice_median_error", "crossover_bytes"):
        print(f"{key}: {document[key]}")
    if "never_fitted" in document:
        never = document["never_fitted"]
        print(f"never fitted, {never['table']}: {never['median_error']:.1%}, {never['median_error_by_column']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--machine", choices=("a100-8", "h100-8"))
    parser.add_argument("--presets", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "calibrate-gpu.json")
    args = parser.parse_args()
    published = json.loads(PUBLISHED.read_text())
    documents = []
    for name in [args.machine] if args.machine else ["a100-8", "h100-8"]:
        fitted, document = judge(name, published["tables"])
        documents.append(document)
        print_summary(document)
        if args.presets:
            write_preset(fitted)
    sources = {
        name: {key: table[key] for key in ("source", "ran_source")} for name, table in published["tables"].items()
    }
    out = {"bench": "calibrate_gpu", "label": "predicted, against published figures", "sources": sources}
    args.out.write_text(json.dumps({**out, "machines": documents}, indent=1) + "\n")


if __name__ == "__main__":
    main()
