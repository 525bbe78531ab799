"""Clocks of several hosts that are wrong by what is known: how wrong are they after correction?

    bench/traces/trace_clocks.py [--hosts 4] [--rate 1gbit] [--mpi mpich,openmpi] [--rounds 3] [--budget 420]
                          [--out FILE]

Each rank is alone on a host of the testbed (needs root, iproute2 and a C compiler) and its raw clock is made to be
`--offset` seconds times its rank ahead, and to gain `--ppm` times its rank. All stamp events with one processor's
counter, which is the reference. The error is the largest between a rank's first meeting and its last; it is held
against the half round trips that were measured up the tree, and counts are of messages around a ring.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what benches share

from fabric import HERE, testbed
from tuned import ENVIRONMENTS, keep, options_of_time, table, until

from dovetail.trace import merge
from dovetail.trace.clocks import RankClock, meetings_of, rank_clocks
from dovetail.trace.process_file import ProcessFile, read_process
from dovetail.trace.recorder.launch import build_wrappers, environment, library_of

PROGRAM = """
#include <mpi.h>
#include <unistd.h>
int main(int argc, char** argv) {
    int rank, size, x = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int i = 0; i < 2000; ++i) {
        MPI_Sendrecv_replace(&x, 1, MPI_INT, (rank + 1) % size, 1, (rank + size - 1) % size, 1, MPI_COMM_WORLD,
                             MPI_STATUS_IGNORE);
        usleep(2500);
    }
    MPI_Finalize();
    return 0;
}
"""
COLUMNS = ("mpi", "round", "rank", "offset_s", "drifted_s", "error_s", "half_trips_s", "received_before_sent")


def main() -> None:
    parser = options_of_time(__doc__)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--mpi", default="mpich,openmpi")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--offset", type=float, default=1.0)
    parser.add_argument("--ppm", type=float, default=50.0)
    args = parser.parse_args()
    is_over, rows = until(args.budget), []
    testbed("up", args.hosts, args.rate)
    try:
        with tempfile.TemporaryDirectory() as place:
            for mpi in args.mpi.split(","):
                for turn in range(args.rounds):
                    if not is_over():
                        rows += list(one_run(Path(place), mpi, turn, args))
                        keep(args.out, "trace_clocks", **summary(rows), rows=rows)
    finally:
        testbed("down")
    print(table(rows, COLUMNS))
    print(summary(rows))


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "clocks": len(rows), "within_half_trips": sum(row["error_s"] <= row["half_trips_s"] for row in rows),
        "median_error_s": statistics.median(row["error_s"] for row in rows),
        "largest_error_s": max(row["error_s"] for row in rows),
        "messages": sum(row["messages"] for row in rows if row["rank"] == 1),
        "received_before_sent": sum(row["received_before_sent"] for row in rows if row["rank"] == 1),
    }  # fmt: skip


def one_run(place: Path, mpi: str, turn: int, args: Any) -> Iterator[dict[str, Any]]:
    """A row for each clock but rank 0's."""
    env_dir, folder = ENVIRONMENTS[mpi], place / mpi / str(turn)
    folder.mkdir(parents=True)
    program, skewed = compiled(place, env_dir)
    wrapped = build_wrappers(library_of([str(program)]), env_dir / "bin")
    env = environment(wrapped, folder, {"LD_PRELOAD": str(skewed)})
    env |= {"SKEW_OFFSET_NS": str(round(args.offset * 1e9)), "SKEW_PPM": str(args.ppm)}
    env["SKEW_FROM_NS"] = str(time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW))
    words = ["env", *(f"{name}={value}" for name, value in env.items()), program]
    testbed("run", "--env-dir", env_dir, "-n", args.hosts, "--timeout", 100, "--", *words)
    processes = sorted((read_process(path) for path in folder.glob("*.dvt")), key=lambda process: process.rank)
    meta, clocks = merge(folder).meta, rank_clocks(processes)
    found = meta["clocks"]
    for process, clock in list(zip(processes, clocks, strict=True))[1:]:
        moved_s = meta["ranks"][process.rank]["moved_s"]
        error_s, span_s = error_of(process, clock, clocks[0], moved_s)
        yield {
            "mpi": mpi, "hosts": args.hosts, "rate": args.rate, "round": turn, "rank": process.rank,
            "offset_s": process.first.raw_ns * 1e-9 - processes[0].first.raw_ns * 1e-9,
            "drifted_s": span_s * args.ppm * 1e-6 * process.rank, "error_s": error_s,
            "moved_s": moved_s, "half_trips_s": (clock.error_ns or 0.0) * 1e-9, "messages": found["messages"],
            "received_before_sent": found["received_before_sent"], "without_partner": found["without_partner"],
        }  # fmt: skip


def error_of(process: ProcessFile, clock: RankClock, first: RankClock, moved_s: Sequence[float]) -> tuple[float, float]:
    """Seconds that a corrected clock is off at the worst between its meetings, and seconds between these; `moved_s`:
    how far it was set ahead at either end so that messages come after they were sent."""
    met = [meeting.mine_ns for meeting in meetings_of(process.notes)]
    ticks = (process.last.clock - process.first.clock) / (process.last.raw_ns - process.first.raw_ns)
    at = [process.first.clock + (moment - process.first.raw_ns) * ticks for moment in (min(met), max(met))]
    moments = np.linspace(*at, 200)
    off = np.abs(clock.line(moments) + np.linspace(*moved_s, 200) * 1e9 - first.line(moments))
    return float(off.max()) * 1e-9, (max(met) - min(met)) * 1e-9


def compiled(place: Path, env_dir: Path) -> tuple[Path, Path]:
    """The program of a library, and the clock that is wrong."""
    source, program, skewed = place / "ring.c", place / env_dir.name / "ring", place / "skewed.so"
    source.write_text(PROGRAM)
    program.parent.mkdir(exist_ok=True)
    env = os.environ | {"PATH": f"{env_dir / 'bin'}:{os.environ['PATH']}"}
    subprocess.run([env_dir / "bin" / "mpicc", "-O1", source, "-o", program], env=env, check=True)
    subprocess.run(
        ["cc", "-shared", "-fPIC", HERE.parent / "tests" / "ranks" / "skewed_clock.c", "-o", skewed], check=True
    )
    return program, skewed


if __name__ == "__main__":
    main()
