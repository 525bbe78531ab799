"""all_to_next by all NICs of a host together against a plain send, which has one; does tuning switch by itself?

    bench/collectives/all_to_next.py [--rate 100mbit] [--nics 2,4] [--sizes 1K,4K,…] [--rounds N] [--budget S]
                          [--out FILE]

Two testbed hosts (root and iproute2) of k ranks, each rank with a link of its own. All ways of one size are
interleaved in one job, each run from a barrier to the last rank's end; tuning times runs back to back, as a pipeline
would. Wanted: at least 0.8 k times the speed of the plain send from 4 MB on; exit code 1 otherwise.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what benches share

from fabric import HERE, fabric, measured, write

from dovetail.collective.operators import AllToNext
from dovetail.core import parse_bytes
from dovetail.store.selection import Choice
from dovetail.tuner.collectives import entries_of, selection_of
from dovetail.tuner.contest import contest

SIZES = "64,1K,4K,16K,64K,256K,1M,4M,16M"
PLAIN, TOGETHER, SLICED = Choice(), Choice("all_to_next"), Choice("all_to_next", slice_bytes=256 << 10)
LONG_BYTES, SHARE = 4 << 20, 0.8
SHORT_BYTES, SHORT_ROUNDS = 64 << 10, 25


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--nics", default="2,4")
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--budget", type=float, default=180.0, help="seconds for tuning, of each number of NICs")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    sizes, cases = [parse_bytes(word) for word in args.sizes.split(",")], []
    out = args.out or HERE / "results" / f"all-to-next-{args.rate}.json"
    for nics in map(int, args.nics.split(",")):
        case, facts = one(nics, sizes, args.rate, args.rounds, args.budget)
        cases.append(case)
        write(out, "all_to_next", facts, {"rate": args.rate, "hosts": 2, "cases": cases})
    sys.exit(not all(case["fast_enough"] and case["switches"] for case in cases))


def one(nics: int, sizes: list[int], rate: str, rounds: int, budget_s: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """All sizes with so many NICs a host, then tuning's own choice; and the facts of the machine."""
    rows, facts, ranks = [], {}, 2 * nics
    with fabric(2, nics, rate, nics) as (executor, machine):
        for size in sizes:
            operator, choices = AllToNext(size, nodes=2), [PLAIN, TOGETHER, *([SLICED] if size >= 1 << 20 else [])]
            ways = [operator.by(*choice) for choice in choices]
            found = measured(executor, operator, ranks, ways, rounds if size > SHORT_BYTES else SHORT_ROUNDS)
            facts, row = found.facts, found.row(size)
            best = min(found.outcomes[choice].median_s for choice in choices[1:])
            rows.append(row | {"speedup": found.outcomes[PLAIN].median_s / best})
            print(f"{nics} NICs {size:>9} B  {rows[-1]['speedup']:5.2f} x the plain send", flush=True)
        entries, _ = entries_of([AllToNext(size, nodes=2) for size in sizes], machine, ranks)
        tuned = selection_of(contest(entries, executor, budget_s=budget_s))
    for row in tuned.rows:
        print(f"{nics} NICs from {row.min_bytes:>9} B  tuned: {row.choice}", flush=True)
    long = [row["speedup"] for row in rows if row["bytes"] >= LONG_BYTES]
    names = [row.algorithm for row in tuned.rows]
    verdict = {
        "fast_enough": min(long, default=0.0) >= SHARE * nics,
        "switches": names[0] != names[-1] == "all_to_next",
    }
    return {"nics": nics, **verdict, "rows": rows, "selection": [row.to_json() for row in tuned.rows]}, facts


if __name__ == "__main__":
    main()
