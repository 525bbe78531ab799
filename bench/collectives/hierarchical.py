"""Two levels: hierarchical all_reduce against the flat ring, two-step all_to_all against the direct one.

    bench/collectives/hierarchical.py [--rate 100mbit] [--hosts 2,3,4] [--rounds N] [--out FILE]

Testbed hosts (root and iproute2) of 4 ranks each, which meet in shared memory and leave by the host's one link. All
algorithms of one size, and the library's call, are interleaved in one job.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what benches share

from fabric import HERE, fabric, measured, write

from dovetail.core import parse_bytes
from dovetail.planner import operator_class
from dovetail.planner.costs import Costs
from dovetail.tuner.measure import repeats_worth

PER_HOST = 4
CONTESTS = {  # the one-level algorithm, those with two levels, sizes of a rank's whole buffer
    "all_reduce": ("ring_all_reduce", ("hierarchical_all_reduce",), "1K,16K,64K,256K,1M,4M"),
    "all_to_all": ("direct_all_to_all", ("two_step_all_to_all", "three_step_all_to_all"), "256,1K,4K,16K,64K,512K"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--hosts", default="2,3,4")
    parser.add_argument("--sizes", help="for both collectives; each has its own otherwise")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows, out = [], args.out or HERE / "results" / f"hierarchical-{args.rate}.json"
    for hosts in map(int, args.hosts.split(",")):
        with fabric(hosts, PER_HOST, args.rate) as (executor, machine):
            for kind, (flat, levels, usual) in CONTESTS.items():
                for size in map(parse_bytes, (args.sizes or usual).split(",")):
                    operator = operator_class(kind)(size, nodes=hosts)
                    costs, _ = Costs.of(operator, machine, hosts * PER_HOST, extrapolate=True)
                    ours = [operator.by(name) for name in (flat, *levels)]
                    repeats = repeats_worth(min(map(costs.predicted_s, ours)))
                    ways = [*ours, operator.by("library")]
                    found = measured(executor, operator, hosts * PER_HOST, ways, args.rounds, repeats)
                    rows.append({"collective": kind, "hosts": hosts, **found.row(size)})
                    print_summary(rows[-1], flat)
                    known = {"rate": args.rate, "ranks_per_host": PER_HOST, "rows": rows}
                    write(out, "hierarchical", found.facts, known)


def print_summary(row: dict[str, Any], flat: str) -> None:
    """One line: times, and how many times faster than the flat algorithm each is."""
    seconds = row["seconds"]
    times = "  ".join(f"{name} {each * 1e3:.2f} ms ({seconds[flat] / each:.2f} x)" for name, each in seconds.items())
    print(f"{row['hosts']} hosts {row['collective']} {row['bytes']:>8} B  {times}", flush=True)


if __name__ == "__main__":
    main()
