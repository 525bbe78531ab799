"""Is a tuned plan ever slower than serial? Many shapes, those included where nothing can be gained.

    bench/guard.py [--rate 1gbit | --rate none] [--shapes N] [--operator WISH] [--out FILE]

`--operator`: any wish of sizes m, k and n. `none`: two ranks on shared memory. Otherwise two testbed hosts (root and
iproute2). The ratio tuned / serial of each shape is of medians of one final, 1 where serial is kept; results carry
machine, commit and spread.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from overlap import HERE, OPERATOR, named, of, provenance, testbed, traffic_cost

from dovetail.plan import wish_class
from dovetail.tune import tune

LIMIT = 1.03
# Rows and columns from one to thousands; compute and communication bound; uneven; every dtype.
SHAPES = [
    (1, 64, 64, "float32"),
    (1, 4096, 4096, "float32"),
    (7, 301, 33, "float32"),
    (64, 64, 64, "float32"),
    (64, 8192, 64, "float32"),
    (128, 128, 4096, "float32"),
    (256, 512, 512, "float32"),
    (512, 512, 512, "float32"),
    (500, 3001, 77, "float32"),
    (1024, 64, 1024, "float32"),
    (1024, 1024, 1024, "float32"),
    (1024, 4096, 512, "float32"),
    (2048, 512, 2048, "float32"),
    (2048, 2048, 256, "float32"),
    (2000, 1999, 501, "float32"),
    (4096, 256, 256, "float32"),
    (4096, 1024, 64, "float32"),
    (333, 2222, 1111, "float32"),
    (256, 256, 256, "float64"),
    (1024, 2048, 512, "float64"),
    (1500, 700, 300, "float64"),
    (512, 1024, 512, "float16"),
    (1024, 2048, 256, "float16"),
    (512, 1024, 512, "bfloat16"),
    (2048, 1024, 128, "bfloat16"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", default="none")
    parser.add_argument("--shapes", type=int, default=len(SHAPES))
    parser.add_argument("--operator", default=OPERATOR)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    kind = wish_class(args.operator)
    hosts, traffic = args.rate != "none", {}
    if hosts:
        traffic = {"traffic": traffic_cost(args.rate)}
        testbed("up", "2", args.rate)
        os.environ["DOVETAIL_LAUNCH"] = testbed("launcher", "--env-dir", sys.prefix).strip()
    try:
        rows = [one(kind, shape) for shape in SHAPES[: args.shapes]]
    finally:
        if hosts:
            testbed("down")
    document = {
        "bench": "guard",
        **of(args.operator),
        "link": args.rate,
        **traffic,
        **provenance(rows),
        "summary": summary(rows),
        "rows": rows,
    }
    name = f"{named('guard', args.operator)}-{args.rate if hosts else 'shared-memory'}.json"
    out = args.out or HERE / "results" / name
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document["summary"], indent=1))
    sys.exit(document["summary"]["worst_ratio"] > LIMIT)


def one(kind: type, shape: tuple[int, int, int, str]) -> dict[str, object]:
    """Tune one shape; tuned over serial."""
    with tempfile.TemporaryDirectory() as folder:
        document = tune(kind(*shape), 2, out=Path(folder)).to_json()
    keys = ("schedule", "tiles", "choices", "measured_s", "serial_s", "predicted_s", "predicted_serial_s", "rounds")
    keys += ("disturbed", "foreign_load", "steal", "serial_spread", "measured_spread", "max_rel_error", "tolerance")
    row = {"shape": list(shape), **{key: document[key] for key in keys}}
    row |= {
        "ratio": row["measured_s"] / row["serial_s"],
        "mpi": document["facts"]["mpi"],
        "cpu": document["facts"]["cpu"],
    }
    row["prediction_error"] = abs(row["predicted_s"] - row["measured_s"]) / row["measured_s"]
    row["right"] = document["max_rel_error"] <= document["tolerance"]
    names = f"{row['schedule']} {row['choices']['parameters'].get('by', '')}"
    print(shape, f"ratio {row['ratio']:.3f} predicted {row['prediction_error']:.1%} off", names, flush=True)
    return row


def summary(rows: list[dict[str, object]]) -> dict[str, object]:
    """The worst and the median ratio, how many were left serial, and the median error of the predictions."""
    ratios = [row["ratio"] for row in rows]
    return {
        "shapes": len(rows),
        "worst_ratio": max(ratios),
        "median_ratio": statistics.median(ratios),
        "left_serial": sum(row["schedule"] == "serial" for row in rows),
        "median_prediction_error": statistics.median(row["prediction_error"] for row in rows),
        "all_right": all(row["right"] for row in rows),
    }


if __name__ == "__main__":
    main()
