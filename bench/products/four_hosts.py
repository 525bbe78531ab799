"""Four hosts whose products are emulated (they sleep), as a mesh and as a star: who wins is predicted, then measured.

    bench/products/four_hosts.py [--topologies mesh,star] [--rate 100mbit] [--operators A,B] [--ratio 0.7] [--out FILE]

Testbed hosts (root and iproute2), one rank each, with a link per pair (mesh) or one link each to a switch (star). A
product takes `--start-us` and then its FLOP at a speed at which what a host takes in, by all its links at once, lasts
`--ratio` times as long as all that it multiplies: communication is real, and so are schedules, messages and waiting.
Every family's best prediction is printed and stored before any of them is measured; all then run in turn in one job,
in which disturbed rounds are repeated. What a call has measured, the next one does not measure again.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what benches share

from emulated import emulating
from tuned import HERE, Results, begin, hosts, options, table

from dovetail.ir import Schedule
from dovetail.machine import Link, Machine
from dovetail.matmul import MatmulAllReduce
from dovetail.planner import operator_class
from dovetail.planner.costs import Costs
from dovetail.planner.search import ranked_schedules
from dovetail.prober import probe_links, probe_operator
from dovetail.run.job import Job
from dovetail.run.mpi.executor import MpiExecutor
from dovetail.tuner.measure import Entry

RANKS = 4
SIZE = 2048, 1024, 1024  # m, k, n over all ranks
USUAL = "all_gather_matmul,all_to_all_matmul"
NEAR = 0.03  # of the fastest: as good as first
COLUMNS = ("schedule", "predicted_s", "measured_s", "speedup", "predicted_speedup", "spread")
HEADS = ("topology", "operator", "winner", "won_by", "predicted", "regret", "ring_speedup", "straight_speedup")


def main() -> None:
    parser = options(__doc__, has_shapes=False, rate="100mbit", operators=USUAL, budget=150.0)
    parser.add_argument("--topologies", default="mesh,star")
    parser.add_argument("--ratio", type=float, default=0.7, help="communication over computation")
    parser.add_argument("--start-us", type=float, default=200.0, help="of a product, before its FLOP")
    parser.add_argument("--scale", type=float, default=1.0, help="of the rows")
    parser.add_argument("--rounds", type=int, default=7)
    args = begin(parser)
    os.environ["PYTHONPATH"] = str(HERE)  # ranks import the kernel
    head = {"bench": "four_hosts", "rate": args.rate, "ranks": RANKS, "with": args.mpi}
    head |= {"label": "measured, with emulated computation", "ratio": args.ratio, "start_s": args.start_us * 1e-6}
    out = args.out or HERE / "results" / f"four-hosts-{args.rate}-{args.mpi}.json"
    found = Results(out, head, again=args.again)
    for topology in args.topologies.split(","):
        missing = [name for name in args.operators if found.lacks(name, shape_of(topology, args))]
        if missing:
            with hosts(f"four-{topology}", args.rate, RANKS, "--topology", topology, "--tcp", "cubic") as about:
                found.kept |= about
                bare = probed(MpiExecutor(), topology)
                for operator in missing:
                    one(operator, topology, bare, args, found)
    verdicts = [verdict(row) for row in found.rows]
    found.save(verdicts)
    print("", table(verdicts, HEADS), "Computation is emulated; times of the runs are measured.", sep="\n")
    sys.exit(not all(each["as_told"] for each in verdicts))


def shape_of(topology: str, args: Any) -> list[Any]:
    m, k, n = SIZE
    return [topology, int(m * args.scale), k, n]


def probed(executor: MpiExecutor, topology: str) -> Machine:
    """The machine as its messages are measured, with the links that the topology has."""
    found = probe_links(executor, RANKS, f"four hosts, {topology}")
    pairs = [(a, b) for a in range(RANKS) for b in range(RANKS) if a != b]
    mesh = tuple(Link(a, b, "net") for a, b in pairs)
    return replace(found, links=mesh) if topology == "mesh" else found


def one(operator: str, topology: str, bare: Machine, args: Any, found: Results) -> None:
    """Predict every family, say so, and measure them."""
    _, m, k, n = shape = shape_of(topology, args)
    speed = flop_per_s(operator_class(operator)(m, k, n), topology, args.rate, args.ratio)
    operator = emulating(operator_class(operator), args.start_us * 1e-6, speed)(m, k, n)
    machine = probe_operator(MpiExecutor(), bare, operator, RANKS)
    best = of_families(Costs.of(operator, machine, RANKS, extrapolate=True)[0])
    rows = with_speedups([{"schedule": name, "predicted_s": predicted_s} for name, (_, predicted_s) in best.items()])
    kept = {"topology": topology, "emulated_flop_per_s": speed, "operator": operator.title, "schedules": rows}
    found.kept.setdefault("predicted", {})[f"{topology} {operator}"] = kept
    found.save()
    print(f"\n{topology}, {operator.title}, products emulated at {speed / 1e9:.2f} GFLOP/s; predicted:")
    print(table(rows, COLUMNS[:2] + COLUMNS[4:5]), flush=True)
    facts = {key: str(machine.facts[key]) for key in ("cpu", "mpi")}
    held = found.add(operator, shape, kept | facts | measured(operator, best, args))
    print(f"measured, {held['rounds']} rounds, {held['disturbed']} disturbed:")
    print(table(held["schedules"], COLUMNS), flush=True)


def measured(operator: Any, best: dict[str, tuple[Schedule, float]], args: Any) -> dict[str, Any]:
    """What all of them take, in turn, the fastest first; and what disturbed them."""
    entry = Entry(operator.title, operator, RANKS, operator.serial(RANKS), dict(best.values()))
    variants = [replace(entry.variant(schedule), name=name) for name, (schedule, _) in best.items()]
    result = MpiExecutor().execute(Job(tuple(variants), rounds=args.rounds, budget_s=args.budget))
    rows = [
        {
            "schedule": name,
            "predicted_s": predicted_s,
            "measured_s": result[name].median_s,
            "spread": result[name].spread,
        }
        for name, (_, predicted_s) in best.items()
    ]
    rows = sorted(with_speedups(rows), key=lambda row: row["measured_s"])
    return {"schedules": rows, "rounds": result.rounds, "disturbed": result.disturbed, **result.load.to_json()}


def flop_per_s(operator: Any, topology: str, rate: str, ratio: float) -> float:
    """At which speed a rank multiplies for as long as its messages need, over `ratio`, by all links that it has."""
    bits = float(rate.removesuffix("mbit").removesuffix("gbit")) * (1e9 if rate.endswith("gbit") else 1e6)
    links = RANKS - 1 if topology == "mesh" else 1
    return float(operator.flops / RANKS * ratio / (moved_bytes(operator) * 8 / bits / links))


def moved_bytes(operator: Any) -> float:
    """What a rank receives; of an all-reduce parts to add up, then sums."""
    if isinstance(operator, MatmulAllReduce):
        return 2 * (RANKS - 1) / RANKS * operator.m * operator.row_bytes
    blocks = operator.blocks(RANKS)
    most = max(blocks.rows(rank) - blocks.counts[rank][rank] for rank in range(RANKS))
    return float(most * operator.row_bytes(RANKS))


def of_families(costs: Costs) -> dict[str, tuple[Schedule, float]]:
    """The best predicted schedule of each family and way to travel, with messages driven by a thread: who sleeps
    does not poll."""
    found: dict[str, tuple[Schedule, float]] = {}
    for each in ranked_schedules(costs):
        name = f"{each.family}, {each.schedule['by']}"
        driven = replace(each.schedule, progress="thread")
        if all(schedule != driven for schedule, _ in found.values()):
            found.setdefault(name, (driven, each.predicted_s))
    return found


def with_speedups(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with speed-ups over the fastest serial one, as predicted and, where it was, as measured."""
    serial = [row for row in rows if str(row["schedule"]).startswith("serial")]
    names = {"predicted_s": "predicted_speedup", "measured_s": "speedup"}
    for key, name in names.items():
        known = [row for row in rows if key in row]
        base_s = min((row[key] for row in serial if key in row), default=0.0)
        for row in known:
            row[name] = base_s / row[key]
    return rows


def verdict(row: dict[str, Any]) -> dict[str, Any]:
    """Who won, whether the prediction said so, and how the shard ring and the best of straight messages did.

    `regret`: of the schedule that was predicted to win, over the fastest. `as_told`: it is as good as the fastest; and
    on a mesh the ring loses to serial, and straight messages win.
    """
    rows = row["schedules"]
    winner, reported = (min(rows, key=lambda each: each[key]) for key in ("measured_s", "predicted_s"))
    rings = [each["speedup"] for each in rows if each["schedule"] == "shard-ring, ring"]
    others = [each["speedup"] for each in rows if is_straight(each["schedule"])]
    ring, straight = (max(each, default=None) for each in (rings, others))
    regret = reported["measured_s"] / winner["measured_s"] - 1
    as_paper = (ring is None or ring < 1) and straight is not None and straight > 1
    return {
        "topology": row["topology"],
        "operator": row["operator"],
        "winner": winner["schedule"],
        "won_by": winner["speedup"],
        "predicted": reported["schedule"],
        "regret": regret,
        "ring_speedup": ring,
        "straight_speedup": straight,
        "as_told": regret <= NEAR and (as_paper or row["topology"] != "mesh"),
    }


def is_straight(name: str) -> bool:
    """Whether a schedule overlaps, by messages from each rank to each other."""
    return name.endswith(", messages") and not name.startswith("serial")


if __name__ == "__main__":
    main()
