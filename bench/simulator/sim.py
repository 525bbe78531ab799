"""Simulator speed: ops per second of one core on a 64-rank ring all_reduce of 10^4, 10^5 and 10^6 ops.

`python bench/simulator/sim.py [--json]`. `plain` has nothing to slow; `contention` has a second lane that
computes, and lets compute and traffic slow each other (the fluid model); `jitter` gives every op a duration of its
own, so that no two events meet. Times are CPU seconds of the whole call, checks and Timeline included.
"""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from dovetail.cost import Prices
from dovetail.ir import Lane, Program
from dovetail.ir.shapes import ring_all_reduce
from dovetail.sim import simulate

RANKS, REPEATS = 64, 7


def ring(num_ops: int, lanes: int = 1) -> Program:
    """The ring all_reduce whose number of ops is nearest to `num_ops`, on `lanes` lanes of each rank.

    The second lane is a compute lane.
    """
    chunks = max(1, round(num_ops / (4 * (RANKS - 1) * RANKS * lanes)))
    program = ring_all_reduce(RANKS, chunks, lanes)
    return replace(program, lanes=(*program.lanes[:1], *(Lane(lane.name, "compute") for lane in program.lanes[1:])))


def cases(num_ops: int) -> Iterator[tuple[str, Program, Prices]]:
    """Yield (name, program, prices) of each case."""
    program, both = ring(num_ops), ring(num_ops, lanes=2)
    plain, beside = costs(program), costs(both)
    slow = np.full(both.num_ops, 1.5)
    rng = np.random.default_rng(0)
    jitter = {name: getattr(plain, name) * (0.5 + rng.random(program.num_ops)) for name in ("work_s", "wire_s")}
    yield "plain", program, plain
    yield "contention", both, beside.with_columns(slow_by_net=slow, slow_by_compute=slow)
    yield "jitter", program, plain.with_columns(**jitter)


def costs(program: Program) -> Prices:
    """A message of 5 us behind 2 us of latency, a reduction of 1 us; out and in ports of each rank are links."""
    channels = np.arange(len(program.channels))
    routes = {"route_start": 2 * np.arange(len(channels) + 1), "num_links": 2 * RANKS}
    ends = np.array([channel[:2] for channel in program.channels])
    routes["route"] = (ends + np.array([0, RANKS])).ravel()
    return Prices.plain(program, 1e-6, 5e-6, latency_s=2e-6, **routes)


def measure(program: Program, prices: Prices) -> list[float]:
    """CPU seconds of each repeat, after one that is not counted."""
    seconds = []
    for _ in range(REPEATS + 1):
        start = time.process_time()
        simulate(program, prices)
        seconds.append(time.process_time() - start)
    return seconds[1:]


def main() -> None:
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    rows = []
    for power in (4, 5, 6):
        for case, program, prices in cases(10**power):
            rates = [program.num_ops / seconds for seconds in measure(program, prices)]
            row = {"case": case, "ops": program.num_ops, "ops_per_s": statistics.median(rates)}
            rows.append(row | {"min_ops_per_s": min(rates), "max_ops_per_s": max(rates)})
    head = {"bench": "sim", "machine": platform.processor() or platform.machine(), "commit": git.stdout.strip()}
    if "--json" in sys.argv[1:]:
        print(json.dumps({**head, "rows": rows}))
        return
    print(f"simulate, {RANKS}-rank ring all_reduce, {head['machine']}, commit {head['commit']}")
    print(f"{'case':<12}{'ops':>9}{'Mops/s':>10}{'least':>9}{'most of ' + str(REPEATS):>12}")
    for row in rows:
        rates = (row[key] / 1e6 for key in ("ops_per_s", "min_ops_per_s", "max_ops_per_s"))
        print(f"{row['case']:<12}{row['ops']:>9}{'{:>10.2f}{:>9.2f}{:>12.2f}'.format(*rates)}")


if __name__ == "__main__":
    main()
