"""64 ranks of the `mpi` executor, on 16 hosts of 4, whose products sleep: serial beside the schedules predicted to win.

    bench/products/many_ranks.py [--hosts 16] [--per-host 4] [--rounds 3] [--out FILE]

Testbed hosts (root and iproute2), one link each to a switch. Computation is emulated: a product sleeps for as long as
its rank's share of the messages takes. Messages are real; costs are those of two hosts that predicted.py measured.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what benches share
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "collectives"))

import predicted
from emulated import emulating
from fabric import HERE, fabric, write

from dovetail.machine import Machine
from dovetail.planner import operator_class
from dovetail.planner.costs import Costs
from dovetail.planner.search import ranked_schedules
from dovetail.run.job import Job
from dovetail.tuner.measure import Entry

SIZE, START_S, FLOP_PER_S, BEST = (1024, 256, 256), 1e-3, 5e7, 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=16)
    parser.add_argument("--per-host", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "many-ranks.json")
    args = parser.parse_args()
    os.environ["PYTHONPATH"] = str(HERE)  # ranks import the kernel
    known = json.loads((HERE / "results" / "predicted-collectives.json").read_text())
    machine = predicted.machine_of(args.hosts, args.per_host, Machine.from_json(known["curves"]))
    segments = [[0.0, START_S, 1 / FLOP_PER_S, 0.0]]
    curve = {"schema": "dovetail.curve/1", "x_unit": "flop", "segments": segments, "low": 0.0, "high": None}
    machine = machine.with_costs({"flops:matmul:float32": {**curve, "label": "emulated"}})
    ranks = args.hosts * args.per_host
    operator = emulating(operator_class("all_gather_matmul"), START_S, FLOP_PER_S)(*SIZE)
    costs, _ = Costs.of(operator, machine, ranks, extrapolate=True)
    chosen = {str(found.schedule): found for found in ranked_schedules(costs)[:BEST]}
    serial = costs.operator.serial(ranks)  # calls the library, whose cost on these ranks nobody measured
    ways = {"serial": serial} | {name: replace(found.schedule, progress="thread") for name, found in chosen.items()}
    told = {name: found.predicted_s for name, found in chosen.items()}
    print(told, flush=True)
    entry = Entry(operator.title, costs.operator, ranks, serial, {})
    variants = [replace(entry.variant(schedule), name=name) for name, schedule in ways.items()]
    with fabric(args.hosts, args.per_host, known["rate"], mtu=known["frame_bytes"], tcp=known["tcp"]) as (executor, _):
        result = executor.execute(Job(tuple(variants), rounds=args.rounds))
    rows = []
    for name in ways:
        about = {"schedule": name, "predicted_s": told.get(name), "measured_s": result[name].median_s}
        rows.append({**about, "spread": result[name].spread})
        print(rows[-1], flush=True)
    about = {"hosts": args.hosts, "per_host": args.per_host, "rate": known["rate"], "operator": operator.title}
    write(args.out, "many_ranks", result.facts, {**about, "rounds": result.rounds, "rows": rows})


if __name__ == "__main__":
    main()
