"""How much of the ideal gain `dovetail tune` wins on two testbed hosts, and how well it predicts.

    bench/overlap.py --rate 1gbit [--mpi mpich|openmpi] [--shapes FROM:TO] [--operator WISH] [--out FILE]

`--operator`: any wish of sizes m, k and n. Needs root and iproute2 (see bench/testbed). Every figure of a shape comes
from its final, in which all are interleaved; results carry machine, commit and spread.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dovetail.plan import wish_class
from dovetail.tune import TuneResult, tune

HERE = Path(__file__).parent
TESTBED = HERE / "testbed" / "testbed"
NAME = "overlap"
OPERATOR = "matmul_all_reduce"
# Compute and communication balance within a factor of 2 on one core of about 110 GFLOP/s (float32) a rank.
SHAPES = {
    "100mbit": [
        (8192, 32768, 64, "float32"),
        (8192, 40960, 64, "float32"),
        (8192, 24576, 96, "float32"),
        (6000, 36001, 100, "float32"),
        (4096, 28672, 128, "float32"),
        (4096, 32768, 64, "float64"),
        (4096, 32768, 128, "float32"),
        (3000, 30001, 130, "float32"),
        (2048, 24576, 256, "float32"),
        (6144, 49152, 64, "float32"),
        (2560, 57344, 160, "float32"),
        (3072, 40960, 96, "float32"),
        (2048, 32768, 128, "float64"),
    ],
    "1gbit": [
        (4096, 4096, 1024, "float32"),
        (3000, 5001, 1500, "float32"),
        (8192, 3072, 512, "float32"),
        (2048, 6144, 2048, "float32"),
        (6144, 2560, 1024, "float32"),
        (4096, 2304, 1536, "float32"),
        (2048, 4096, 1024, "float64"),
    ],
}
KEYS = (
    *("serial_s", "measured_s", "compute_s", "comm_s", "own_comm_s", "ideal_s", "adjusted_ideal_s", "shared_ideal_s"),
    *("ideal_gain", "adjusted_gain", "shared_gain", "speedup", "predicted_s", "predicted_serial_s", "losses"),
    *("max_rel_error", "tolerance", "serial_spread", "measured_spread", "rounds", "disturbed", "schedule", "tiles"),
    *("foreign_load", "steal"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", choices=SHAPES, default="1gbit")
    parser.add_argument("--mpi", default="mpich")
    parser.add_argument("--shapes", default=":")
    parser.add_argument("--operator", default=OPERATOR)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    kind = wish_class(args.operator)
    chosen = slice(*(int(word) if word else None for word in args.shapes.split(":")))
    traffic = traffic_cost(args.rate)
    testbed("up", "2", args.rate)
    try:
        launch = testbed("launcher", "--env-dir", sys.prefix)
        os.environ["DOVETAIL_LAUNCH"] = launch.strip()
        rows = [one(kind, shape) for shape in shapes(args.rate, args.mpi)[chosen]]
    finally:
        testbed("down")
    known = {**of(args.operator), "rate": args.rate, "traffic": traffic, **provenance(rows)}
    document = {"bench": "overlap", **known, "summary": summary(rows), "rows": rows}
    out = args.out or HERE / "results" / f"{named('overlap', args.operator)}-{args.rate}-{args.mpi}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document["summary"], indent=1))


def of(operator: str) -> dict[str, str]:
    """What a result says of its operator; of the usual one nothing."""
    return {} if operator == OPERATOR else {"operator": operator}


def named(bench: str, operator: str) -> str:
    """The beginning of a result's file name."""
    return "-".join([bench, *of(operator).values()])


def shapes(rate: str, mpi: str) -> list[tuple[int, int, int, str]]:
    """The shapes of a rate; twice the k for Open MPI, whose all_reduce sends one way after the other."""
    return [(m, k * 2 if mpi == "openmpi" else k, n, dtype) for m, k, n, dtype in SHAPES[rate]]


def one(kind: type, shape: tuple[int, int, int, str]) -> dict[str, object]:
    """Tune one shape; the figures of its final."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        result: TuneResult = tune(kind(*shape), 2, out=Path(folder))
    document = result.to_json()
    row = {"shape": list(shape), **{key: document[key] for key in KEYS}, "choices": document["choices"]}
    row["mpi"] = document["facts"]["mpi"]
    row["cpu"] = document["facts"]["cpu"]
    own_ideal_s = max(row["compute_s"], min(row["comm_s"], row["own_comm_s"] or row["comm_s"]))
    kept = row["ideal_gain"] is None  # serial
    row["own_ideal_gain"] = None if kept else (row["serial_s"] - row["measured_s"]) / (row["serial_s"] - own_ideal_s)
    row["balance"] = row["compute_s"] / row["comm_s"]
    row["prediction_error"] = abs(row["predicted_s"] - row["measured_s"]) / row["measured_s"]
    row["serial_prediction_error"] = abs(row["predicted_serial_s"] - row["serial_s"]) / row["serial_s"]
    row["tune_s"] = time.monotonic() - begin
    names = (
        "balance",
        "ideal_gain",
        "own_ideal_gain",
        "adjusted_gain",
        "shared_gain",
        "speedup",
        "prediction_error",
        "measured_spread",
    )
    told = (f"{name} {'none' if row[name] is None else format(row[name], '.3f')}" for name in names)
    print(shape, *told, row["schedule"], row["tiles"], flush=True)
    return row


def summary(rows: list[dict[str, object]]) -> dict[str, float]:
    """Medians over the shapes; where serial was kept nothing was won."""
    errors = [row[key] for row in rows for key in ("prediction_error", "serial_prediction_error")]
    names = ("ideal_gain", "own_ideal_gain", "adjusted_gain", "shared_gain", "speedup")
    medians = {f"median_{name}": statistics.median(row[name] or 0.0 for row in rows) for name in names}
    balances = {"least_balance": min(r["balance"] for r in rows), "most_balance": max(r["balance"] for r in rows)}
    return {"shapes": len(rows), **medians, "median_prediction_error": statistics.median(errors), **balances}


def provenance(rows: list[dict[str, object]]) -> dict[str, object]:
    """Machine, library, commit and date."""
    described = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=HERE, capture_output=True, text=True)
    known = {"machine": f"{rows[0]['cpu']}, {os.cpu_count()} cores, 2 ranks", "mpi": rows[0]["mpi"]} if rows else {}
    return {"label": "measured", **known, "commit": described.stdout.strip(), "date": time.strftime("%Y-%m-%d")}


def traffic_cost(rate: str) -> dict[str, object]:
    """What kind of machine this is for the testbed: how much traffic at the rate slows a product on the same core."""
    (found,) = json.loads(testbed("check", rate, "--json", "--env-dir", sys.prefix))["costs"]
    return found


def testbed(*words: str) -> str:
    """One testbed command; its output."""
    done = subprocess.run([TESTBED, "--name", NAME, *words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


if __name__ == "__main__":
    main()
