"""Speed of verify: ops per second of one core on Programs of 10^4, 10^5 and 10^6 ops.

`python bench/simulator/verify.py [--json]`. `ring` is a 64-rank ring all_reduce on one lane of each rank, `lanes`
the same on many lanes, `puts` 64 ranks that put into each other's memory, ordered by signals, `wrong` the ring with
one wrong offset, its counterexample included. Times are CPU seconds of the whole call.
"""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from dovetail.ir import Builder, Kind, Program, Region, verify
from dovetail.ir.shapes import ring_all_reduce

RANKS, REPEATS = 64, 7


def ring(num_ops: int) -> Program:
    return ring_all_reduce(RANKS, max(1, round(num_ops / (4 * (RANKS - 1) * RANKS))))


def lanes(num_ops: int) -> Program:
    return ring_all_reduce(RANKS, 1, max(1, round(num_ops / (4 * (RANKS - 1) * RANKS))))


def wrong(num_ops: int) -> Program:
    program = ring(num_ops)
    offsets = program.columns["read_offset"].copy()
    offsets[len(offsets) // 2] ^= 1
    return program.with_columns({**program.columns, "read_offset": offsets})


def puts(num_ops: int) -> Program:
    """Each rank puts into two scratch slots of the next, in turn; a signal says full, one back says free."""
    rounds = max(3, num_ops // (6 * RANKS))
    builder = Builder("puts", RANKS)
    x, t = builder.buffer("x", "input", rounds), builder.buffer("t", "scratch", 2)
    net = builder.lane("net", "net")
    for rank in range(RANKS):
        after, before = (rank + 1) % RANKS, (rank - 1) % RANKS
        ahead, back = builder.channel(rank, after), builder.channel(rank, before, 1)
        full, free = builder.channel(before, rank), builder.channel(after, rank, 1)
        for i in range(rounds):
            own, slot = Region(x, i, 1), Region(t, i % 2, 1)
            if i >= 2:
                builder.add(Kind.wait, rank, net, chan_in=free)
            builder.add(Kind.put, rank, net, reads=[own], writes=[slot], chan_out=ahead)
            builder.add(Kind.signal, rank, net, chan_out=ahead)
            builder.add(Kind.wait, rank, net, chan_in=full)
            builder.add(Kind.reduce, rank, net, reads=[slot], writes=[own])
            if i < rounds - 2:
                builder.add(Kind.signal, rank, net, chan_out=back)
    return builder.build()


def measure(program: Program, is_ok: bool) -> list[float]:
    """CPU seconds of each repeat, after one that is not counted."""
    seconds = []
    for _ in range(REPEATS + 1):
        start = time.process_time()
        certificate = verify(program)
        seconds.append(time.process_time() - start)
        assert certificate.ok == is_ok
    return seconds[1:]


def main() -> None:
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    cases: tuple[Callable[[int], Program], ...] = (ring, lanes, puts, wrong)
    rows = []
    for make in cases:
        for power in (4, 5, 6):
            program = make(10**power)
            rates = [program.num_ops / seconds for seconds in measure(program, make is not wrong)]
            row = {"case": make.__name__, "ops": program.num_ops, "ops_per_s": statistics.median(rates)}
            rows.append(row | {"min_ops_per_s": min(rates), "max_ops_per_s": max(rates)})
    head = {"bench": "verify", "machine": platform.processor() or platform.machine(), "commit": git.stdout.strip()}
    if "--json" in sys.argv[1:]:
        print(json.dumps({**head, "rows": rows}))
        return
    print(f"verify, {RANKS} ranks, {head['machine']}, commit {head['commit']}")
    print(f"{'case':<8}{'ops':>9}{'Mops/s':>10}{'least':>9}{'most of ' + str(REPEATS):>12}")
    for row in rows:
        rates = (row[key] / 1e6 for key in ("ops_per_s", "min_ops_per_s", "max_ops_per_s"))
        print(f"{row['case']:<8}{row['ops']:>9}{'{:>10.2f}{:>9.2f}{:>12.2f}'.format(*rates)}")


if __name__ == "__main__":
    main()
