"""Few rows: is a tuned plan ever slower than serial where m goes from 32 to 16384 and the weights stay the same?

    bench/products/small_m.py [--rate 1gbit|none] [--mpi mpich|openmpi] [--operators A,B] [--scale 4] [--m 32,64,…]
                          [--out FILE]

The weights are 7168 x 16384 over `--scale`, either way: the whole ones take 17 s a run and 0.5 GB on two ranks of 110
GFLOP/s. Two ranks, on testbed hosts (root and iproute2) or (`none`) on shared memory. `speedup`: serial over tuned, of
one final, in which both run in turn. What a call has measured, the next one does not measure again.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what benches share

from tuned import HERE, RANKS, SHARED_MEMORY, Results, begin, by_operator, hosts, median, options, seen, table

LEAST = 0.97
K, N = 7168, 16384
ROWS = ",".join(str(32 << i) for i in range(10))
USUAL = "all_gather_matmul,matmul_reduce_scatter"
COLUMNS = (
    "operator",
    "size",
    "speedup",
    "ideal_gain",
    "serial_s",
    "measured_s",
    "measured_spread",
    "disturbed",
    "choice",
)


def main() -> None:
    parser = options(__doc__, operators=USUAL, budget=45.0)
    parser.add_argument("--scale", type=int, default=4)
    parser.add_argument("--m", default=ROWS)
    parser.add_argument("--dtype", default="float32")
    args = begin(parser)
    link = "shared-memory" if args.rate == SHARED_MEMORY else args.rate
    head = {"bench": "small_m", "link": link, "ranks": RANKS, "with": args.mpi, "weights": f"{K} x {N} / {args.scale}"}
    out = args.out or HERE / "results" / f"small-m-{link}-{args.mpi}.json"
    found = Results(out, head, again=args.again)
    with hosts(f"small-m-{args.rate}", args.rate) as about:
        found.kept |= about
        for operator in args.operators:
            for m in [int(word) for word in args.m.split(",")][args.shapes]:
                shape = m, K // args.scale, N // args.scale, args.dtype
                found.measure(operator, shape, args.budget, COLUMNS)
    sums = summary(found.rows)
    found.save(sums)
    print(
        "", table([seen(row) for row in found.rows], COLUMNS), "", table(sums, list(sums[0]) if sums else ()), sep="\n"
    )
    print(f"\nwanted: no speed-up below {LEAST}; failed: {len(found.failed)}")
    sys.exit(bool(found.failed) or any(each["least_speedup"] < LEAST for each in sums))


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each operator the least, the median and the greatest speed-up, and how many were left serial."""
    return [
        {
            "operator": name,
            "shapes": len(own),
            "least_speedup": min(row["speedup"] for row in own),
            "median_speedup": median(own, "speedup"),
            "most_speedup": max(row["speedup"] for row in own),
            "left_serial": sum(row["schedule"] == "serial" for row in own),
            "all_right": all(row["right"] for row in own),
        }
        for name, own in by_operator(rows).items()
    ]


if __name__ == "__main__":
    main()
