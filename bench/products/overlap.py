"""How much of the ideal gain `dovetail tune` wins on two testbed hosts, and how well it predicts: every operator.

    bench/products/overlap.py --rate 1gbit [--mpi mpich|openmpi] [--operators A,B] [--shapes FROM:TO] [--budget S]
                          [--out FILE]

The shapes of one operator are fixed; those of the others are found, once for a file, around one that balances compute
and communication here. Needs root and iproute2 (see tools/testbed). Every figure of a shape comes from its final, in
which all are interleaved; what a call has measured, the next one does not measure again.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what benches share

from tuned import HERE, RANKS, Results, Shape, begin, by_operator, hosts, median, options, seen, table

from dovetail.planner import operator_class
from dovetail.prober.balance import balanced
from dovetail.run.executor import executor_on

# Compute and communication balance within a factor of 2 on one core of about 110 GFLOP/s (float32) a rank.
FIXED = "matmul_all_reduce"
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
LOOKS = 3  # for the balance, each of which takes a second or two
VARIED = (  # rows, width and depth over those of the balanced shape
    (2.0, 1.0, 1.0, "float32"),
    (4.03, 1.0, 0.8, "float32"),
    (1.51, 2.03, 1.3, "float32"),
    (2.0, 1.0, 1.0, "float64"),
)
GAINS = ("ideal_gain", "own_ideal_gain", "adjusted_gain", "shared_gain", "speedup")
COLUMNS = (
    "operator",
    "size",
    "balance",
    *GAINS,
    "prediction_error",
    "measured_spread",
    "disturbed",
    "choice",
    "tune_s",
)
MEDIANS = ("operator", "shapes", *GAINS, "prediction", "worst_ratio", "least_balance", "most_balance", "all_right")
WANTED = {"100mbit": 0.85, "1gbit": 0.70}  # median share of the ideal gain
SHARED = 0.90  # of the ideal under contention


def main() -> None:
    args = begin(options(__doc__))
    head = {"bench": "overlap", "rate": args.rate, "ranks": RANKS, "with": args.mpi}
    out = args.out or HERE / "results" / f"overlap-{args.rate}-{args.mpi}.json"
    found = Results(out, head, again=args.again)
    with hosts(f"overlap-{args.rate}", args.rate) as about:
        found.kept |= about
        for operator in args.operators:
            for shape in shapes(operator, args.rate, args.mpi, found)[args.shapes]:
                found.measure(operator, shape, args.budget, COLUMNS)
    found.save(summary(found.rows))
    print("", table([seen(row) for row in found.rows], COLUMNS), "", table(summary(found.rows), MEDIANS), sep="\n")
    wanted = f"wanted {WANTED.get(args.rate, 0.0):.2f} of the ideal gain, {SHARED:.2f} of the shared one"
    print(f"\n{wanted}; failed: {len(found.failed)}")
    sys.exit(bool(found.failed))


def shapes(operator: str, rate: str, mpi: str, found: Results) -> list[Shape]:
    """The shapes of an operator: twice the k for Open MPI's all_reduce, which sends one way after the other; for other
    operators those around a balanced one, which is looked for where the file has none."""
    if operator == FIXED and rate in SHAPES:
        return [(m, k * 2 if mpi == "openmpi" else k, n, dtype) for m, k, n, dtype in SHAPES[rate]]
    kind = operator_class(operator)
    middle = found.kept.setdefault("balanced", {})
    if operator not in middle:
        several = (balanced(executor_on(), kind, RANKS).operator for _ in range(LOOKS))
        operator = sorted(several, key=lambda operator: operator.flops / operator.m)[
            LOOKS // 2
        ]  # of their depths, the median
        middle[operator] = [operator.m, operator.k, operator.n]
        found.save()
    return around(middle[operator], gathers=getattr(kind, "gathers", False))


def around(middle: list[int], *, gathers: bool) -> list[Shape]:
    """Shapes of about the same balance: what travels has rows and width, what only computation knows is the depth.

    >>> around([2048, 896, 1864], gathers=True)[0], around([2048, 1864, 896], gathers=False)[2]
    ((4096, 896, 1864, 'float32'), (3092, 2423, 1818, 'float32'))
    """
    found = []
    for rows, width, depth, dtype in VARIED:
        factors = rows, *((width, depth) if gathers else (depth, width))
        m, k, n = (int(size * factor) for size, factor in zip(middle, factors, strict=True))
        found.append((m, k, n, dtype))
    return found


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians of each operator and of all; where serial was kept nothing was won."""
    found = []
    for name, own in [*by_operator(rows).items(), *([("all", rows)] if rows else [])]:
        both = [{"error": row[key]} for row in own for key in ("prediction_error", "serial_prediction_error")]
        gains = {key: median(own, key) for key in GAINS} | {"prediction": median(both, "error")}
        most = {
            f"{what}_balance": pick(row["balance"] for row in own) for what, pick in (("least", min), ("most", max))
        }
        right = {"all_right": all(row["right"] for row in own), "worst_ratio": max(row["ratio"] for row in own)}
        found.append({"operator": name, "shapes": len(own), **gains, **most, **right})
    return found


if __name__ == "__main__":
    main()
