"""Is a tuned plan ever slower than serial? Many shapes of every operator, those included where nothing can be gained.

    bench/products/guard.py [--rate 1gbit|none] [--mpi mpich|openmpi] [--operators A,B] [--shapes FROM:TO] [--out FILE]

`none`: two ranks on shared memory. Otherwise two testbed hosts (root and iproute2). The first operator has all shapes,
each of the others a part, so that together they have all again. The ratio tuned / serial of each shape is of medians
of one final, 1 where serial is kept. What a call has measured, the next one does not measure again.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what benches share

from tuned import (
    HERE,
    OPERATORS,
    RANKS,
    SHARED_MEMORY,
    Results,
    Shape,
    begin,
    by_operator,
    hosts,
    median,
    options,
    seen,
    table,
)

LIMIT = 1.03
WHOLE = "matmul_all_reduce"
OTHERS = [name for name in OPERATORS if name != WHOLE]
COLUMNS = (
    "operator",
    "size",
    "ratio",
    "prediction_error",
    "measured_spread",
    "rounds",
    "disturbed",
    "foreign_load",
    "choice",
)
SUMS = ("operator", "shapes", "worst_ratio", "median_ratio", "left_serial", "prediction", "all_right")
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
    args = begin(options(__doc__, rate=SHARED_MEMORY, budget=45.0))
    link = "shared-memory" if args.rate == SHARED_MEMORY else args.rate
    head = {"bench": "guard", "link": link, "ranks": RANKS, "with": args.mpi}
    out = args.out or HERE / "results" / f"guard-{link}-{args.mpi}.json"
    found = Results(out, head, again=args.again)
    with hosts(f"guard-{args.rate}", args.rate) as about:
        found.kept |= about
        for operator in args.operators:
            for shape in shapes(operator)[args.shapes]:
                found.measure(operator, shape, args.budget, COLUMNS)
    sums = summary(found.rows)
    found.save(sums)
    worst_first = sorted(found.rows, key=lambda row: -row["ratio"])
    print("", table([seen(row) for row in worst_first], COLUMNS), "", table(sums, SUMS), sep="\n")
    print(f"\nwanted: no ratio above {LIMIT}; failed: {len(found.failed)}")
    sys.exit(bool(found.failed) or any(each["worst_ratio"] > LIMIT for each in sums))


def shapes(operator: str) -> list[Shape]:
    """All of them, or a part that no other operator has.

    >>> len(shapes(WHOLE)), sum(len(shapes(name)) for name in OTHERS)
    (25, 25)
    """
    return SHAPES[OTHERS.index(operator) :: len(OTHERS)] if operator in OTHERS else SHAPES


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each operator and of all: the worst and the median ratio, how many were left serial, and the median error of
    the predictions."""
    return [
        {
            "operator": name,
            "shapes": len(own),
            "worst_ratio": max(row["ratio"] for row in own),
            "median_ratio": median(own, "ratio"),
            "left_serial": sum(row["schedule"] == "serial" for row in own),
            "prediction": median(own, "prediction_error"),
            "all_right": all(row["right"] for row in own),
        }
        for name, own in [*by_operator(rows).items(), *([("all", rows)] if rows else [])]
    ]


if __name__ == "__main__":
    main()
