"""Predicted against measured collectives on hosts of 4 ranks: how far predictions are off, by the curves of two hosts.

    bench/collectives/predicted.py [--out FILE]

Measured: `results/hierarchical-100mbit*.json` (hierarchical.py; 2 to 4 hosts of the testbed). Predicted: the same
algorithms, sizes and hosts, with the presets `two-hosts-100mbit` and `shared-memory-2`, whose curves two ranks on two
hosts, and two on one, gave. Nothing is measured here.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what benches share

from fabric import HERE, machine_of
from hierarchical import PER_HOST

from dovetail.core import save_text
from dovetail.planner import operator_class
from dovetail.planner.costs import Costs


def rows(path: Path) -> list[dict[str, Any]]:
    """Return a row for each algorithm and size of a file of results: predicted and measured seconds."""
    read = json.loads(path.read_text())
    found = []
    for row in read["rows"]:
        hosts, kind = row["hosts"], row["collective"]
        operator = operator_class(kind)(row["bytes"], nodes=hosts)
        costs, _ = Costs.of(operator, machine_of(hosts, PER_HOST, read["rate"]), hosts * PER_HOST, extrapolate=True)
        for name, measured_s in row["seconds"].items():
            if name in operator.families:
                predicted_s = costs.predicted_s(costs.operator.by(name))
                about = {"collective": kind, "algorithm": name, "hosts": hosts, "bytes": row["bytes"]}
                found.append({**about, "predicted_s": predicted_s, "measured_s": measured_s})
    return found


def error(row: dict[str, Any]) -> float:
    return row["predicted_s"] / row["measured_s"] - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "results" / "predicted-collectives.json")
    args = parser.parse_args()
    files = sorted((HERE / "results").glob("hierarchical-100mbit*.json"))
    found = [row for path in files for row in rows(path)]
    for key in sorted({(row["hosts"], row["algorithm"]) for row in found}):
        mine = [error(row) for row in found if (row["hosts"], row["algorithm"]) == key]
        sizes = "".join(f"{each:>+8.0%}" for each in mine)
        print(f"{key[0]} hosts  {key[1]:<26}{statistics.median(map(abs, mine)):>6.0%} at the median  {sizes}")
    median = statistics.median(abs(error(row)) for row in found)
    print(f"all {len(found)}: {median:.1%} at the median")
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    head = {"bench": "predicted", "commit": git.stdout.strip(), "measured": [path.name for path in files]}
    save_text(args.out, json.dumps({**head, "median_error": median, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
