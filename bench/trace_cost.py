"""What tracing costs: nanoseconds an event, and how much it slows a ping-pong of one byte, with and without in turn.

    bench/trace_cost.py [--rounds 7] [--budget 420] [--out FILE]

Rings keep the newest events, as a program would that traces without end; `--keep all` writes them all.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tuned import keep, options_of_time, until

from dovetail.trace.launch import build_wrappers, environment, library_of

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.prefix) / "bin"
PING = """
#include <mpi.h>
#include <stdio.h>
int main(int argc, char** argv) {
    char x = 0;
    int rank, rounds = 200000;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Barrier(MPI_COMM_WORLD);
    double begun = MPI_Wtime();
    for (int i = 0; i < rounds; ++i) {
        if (rank == 0) MPI_Send(&x, 1, MPI_CHAR, 1, 0, MPI_COMM_WORLD);
        MPI_Recv(&x, 1, MPI_CHAR, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (rank == 1) MPI_Send(&x, 1, MPI_CHAR, 0, 0, MPI_COMM_WORLD);
    }
    if (rank == 0) printf("%.4f\\n", (MPI_Wtime() - begun) / rounds / 2 * 1e6);
    MPI_Finalize();
    return 0;
}
"""


def main() -> None:
    parser = options_of_time(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--keep", default="newest", choices=("newest", "all"))
    args = parser.parse_args()
    os.environ["DOVETAIL_TRACE_KEEP"] = args.keep
    is_over = until(args.budget)
    with tempfile.TemporaryDirectory() as place:
        found: dict[str, object] = dict(events(Path(place)))
        keep(args.out, "trace_cost", **found)
        for rounds in pings(Path(place), args.rounds):
            found |= rounds
            keep(args.out, "trace_cost", **found)
            if is_over():
                break
    print(json.dumps(found, indent=1))


def events(place: Path) -> dict[str, float]:
    """Nanoseconds an event: the median of nine rounds of two million."""
    sources = [*ROOT.glob("native/trace/*.c"), ROOT / "bench" / "trace_cost.c"]
    command = ["cc", "-O2", "-pthread", f"-I{ROOT / 'native/trace'}", *sources, "-o", place / "cost"]
    subprocess.run([*map(str, command)], check=True)
    done = subprocess.run([place / "cost", place / "events"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def pings(place: Path, rounds: int) -> Iterator[dict[str, object]]:
    """Microseconds one way, of one byte through shared memory, plain and traced in turn; after each round."""
    (place / "ping.c").write_text(PING)
    subprocess.run([BIN / "mpicc", "-O2", place / "ping.c", "-o", place / "ping"], check=True)
    command = [str(BIN / "mpiexec"), "-n", "2", str(place / "ping")]
    wrapped = build_wrappers(library_of(command), BIN)
    times: dict[str, list[float]] = {"plain": [], "traced": []}
    for turn in range(rounds):
        folder = place / f"out{turn}"
        folder.mkdir()
        for name, env in (("plain", dict(os.environ)), ("traced", environment(wrapped, folder))):
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
            times[name].append(float(done.stdout))
        ratios = [b / a for a, b in zip(*times.values(), strict=True)]
        about = {f"ping_{name}_us": statistics.median(values) for name, values in times.items()}
        spread = {"ping_slowed": statistics.median(ratios) - 1, "ping_spread": max(ratios) - min(ratios)}
        yield {"rounds": turn + 1, **about, **spread}


if __name__ == "__main__":
    main()
