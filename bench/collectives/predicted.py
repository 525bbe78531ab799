"""Predicted against measured collectives on 2 to 16 hosts: how far predictions are off, by the curves of two hosts.

    bench/collectives/predicted.py --probe              # two hosts: what messages cost; --rate 10mbit
    bench/collectives/predicted.py --hosts 8            # measure on 8 hosts; --per-host 4: of 4 ranks each
    bench/collectives/predicted.py                      # predict all that was measured, and compare

Hosts are those of the testbed (root and iproute2), with links so slow that two cores carry the traffic of all. Nothing
is fitted on more than two hosts. Each step adds to the file of results (--out); a repeated step replaces its rows.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what benches share

from fabric import HERE, fabric, write

from dovetail.collective.operators import CollectiveOperator
from dovetail.core import parse_bytes
from dovetail.ir import Schedule
from dovetail.machine import SWITCH, Link, Machine, load
from dovetail.planner import operator_class
from dovetail.planner.costs import Costs
from dovetail.prober.links import probe_links
from dovetail.prober.take import Budget
from dovetail.run.job import Job
from dovetail.tuner.measure import Entry

FRAME_BYTES, TCP = 4500, "reno"
SIZES = {False: "32K,128K,512K", True: "64K,256K"}  # of a rank's whole buffer, by whether hosts have several ranks
ALGORITHMS = {
    "all_reduce": ("ring_all_reduce", "recursive_doubling_all_reduce", "recursive_halving_doubling_all_reduce"),
    "all_gather": ("ring_all_gather", "direct_all_gather"),
    "reduce_scatter": ("ring_reduce_scatter", "direct_reduce_scatter"),
    "all_to_all": ("direct_all_to_all", "bruck_all_to_all"),
}
TWO_LEVELS = {  # of hosts with several ranks
    "all_reduce": ("ring_all_reduce", "hierarchical_all_reduce"),
    "all_to_all": ("direct_all_to_all", "two_step_all_to_all", "three_step_all_to_all"),
}


def main() -> None:
    args = arguments()
    found: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {"rows": []}
    if args.probe:
        machine, facts = probed(args.rate), {}
        found = {"rate": args.rate, "curves": machine.to_json(), "rows": []}
    elif args.hosts:
        rows, facts = measured(args.hosts, args.per_host, found["rate"], args.rounds, args.sizes)
        same = (args.hosts, args.per_host)
        found["rows"] = [row for row in found["rows"] if (row["hosts"], row["per_host"]) != same] + rows
    else:
        facts = {"cpu": found["machine"].split(",")[0], "mpi": found["mpi"]}
    if found.get("rows"):
        compare(found["rows"], Machine.from_json(found["curves"]))
    facts = facts or {key: Machine.from_json(found["curves"]).facts.get(key) for key in ("cpu", "mpi")}
    about = {
        "rate": found["rate"],
        "frame_bytes": FRAME_BYTES,
        "tcp": TCP,
        "curves": found["curves"],
        "rows": found["rows"],
    }
    write(args.out, "predicted", facts, about)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--probe", action="store_true", help="measure the curves of two hosts; forgets all rows")
    parser.add_argument("--rate", default="20mbit", help="with --probe; later steps use that rate")
    parser.add_argument("--hosts", type=int)
    parser.add_argument("--per-host", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", help="of a rank's whole buffer")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "predicted-collectives.json")
    return parser.parse_args()


def probed(rate: str) -> Machine:
    """Measure what messages cost between two hosts of one rank each."""
    with fabric(2, 1, rate, mtu=FRAME_BYTES, tcp=TCP) as (executor, _):
        return probe_links(executor, 2, f"two-hosts-{rate}", Budget(each_s=0.3))


def machine_of(hosts: int, per_host: int, curves: Machine) -> Machine:
    """Return the machine of more such hosts, joined by a switch, with the costs of two."""
    ranks = hosts * per_host
    links = tuple(Link(*ends, "net") for host in range(hosts) for ends in ((host, SWITCH), (SWITCH, host)))
    costs = {key: cost for key, cost in curves.costs.items() if not key.startswith("all_reduce")}
    costs |= {"p2p:shm": load("shared-memory-2").costs["p2p:shm"]} if per_host > 1 else {}
    nodes = tuple(rank // per_host for rank in range(ranks))
    facts = {**curves.facts, "stores_messages": ["net"]}
    name = f"{hosts} hosts of {per_host}"
    return replace(curves, name=name, ranks=ranks, nodes=nodes, links=links, costs=costs, facts=facts)


def cases(hosts: int, per_host: int, sizes: str | None) -> list[tuple[CollectiveOperator, Schedule]]:
    """Return each operator (kind and size) with each of its schedules."""
    several = per_host > 1
    found = []
    for kind, names in (TWO_LEVELS if several else ALGORITHMS).items():
        for size in map(parse_bytes, (sizes or SIZES[several]).split(",")):
            operator = operator_class(kind)(size, nodes=hosts)
            found += [(operator, operator.by(name)) for name in names if name in operator.families]
    return found


def measured(
    hosts: int, per_host: int, rate: str, rounds: int, sizes: str | None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Run all algorithms and sizes interleaved in one job; return a row for each, and facts of the hosts."""
    ranks, asked = hosts * per_host, cases(hosts, per_host, sizes)
    variants = []
    for place, (operator, schedule) in enumerate(asked):
        entry = Entry(operator.title, operator, ranks, operator.serial(ranks), {})
        variant = entry.variant(schedule, 1, check=True)
        variants.append(replace(variant, name=f"{place} {variant.name}"))
    with fabric(hosts, per_host, rate, mtu=FRAME_BYTES, tcp=TCP) as (executor, _):
        result = executor.execute(Job(tuple(variants), rounds=rounds))
    wrong = [outcome.name for outcome in result.outcomes if outcome.num_wrong]
    if wrong:
        sys.exit(f"wrong elements: {', '.join(wrong)}")
    rows = []
    for (operator, schedule), outcome in zip(asked, result.outcomes, strict=True):
        about = {"hosts": hosts, "per_host": per_host, "collective": operator.name, "algorithm": schedule.family}
        rows.append({**about, "bytes": operator.num_bytes, "measured_s": outcome.median_s, "spread": outcome.spread})
    return rows, result.facts


def compare(rows: list[dict[str, Any]], curves: Machine) -> None:
    """Predict every row, and print the errors of each algorithm on each number of hosts."""
    for row in rows:
        ranks = row["hosts"] * row["per_host"]
        operator = operator_class(row["collective"])(row["bytes"], nodes=row["hosts"])
        costs, _ = Costs.of(operator, machine_of(row["hosts"], row["per_host"], curves), ranks, extrapolate=True)
        row["predicted_s"] = costs.predicted_s(costs.operator.by(row["algorithm"]))
    for key in dict.fromkeys(map(key_of, rows)):
        mine = [error(row) for row in rows if key_of(row) == key]
        sizes = "".join(f"{each:>+8.0%}" for each in mine)
        print(f"{key[0]:>2} x {key[1]}  {key[2]:<38}{statistics.median(map(abs, mine)):>6.1%} at the median  {sizes}")
    for shape in dict.fromkeys(key_of(row)[:2] for row in rows):
        off = statistics.median(abs(error(row)) for row in rows if key_of(row)[:2] == shape)
        print(f"{shape[0]:>2} x {shape[1]}: {off:.1%} at the median")
    print(f"all {len(rows)}: {statistics.median(abs(error(row)) for row in rows):.1%} at the median")


def key_of(row: dict[str, Any]) -> tuple[int, int, str]:
    return row["hosts"], row["per_host"], row["algorithm"]


def error(row: dict[str, Any]) -> float:
    return row["predicted_s"] / row["measured_s"] - 1


if __name__ == "__main__":
    main()
