"""What tracing costs: nanoseconds an event and a call, with and without in turn, and how much it slows a ping-pong of
one byte, in turn within one run, since two runs differ by more than that.

    bench/traces/trace_cost.py [--rounds 7] [--budget 420] [--peers ROOT] [--out FILE]

Calls are alone: sends to nobody, receives from nobody, polls in vain, and sums of one rank: of the most bytes of which
no checksum is made, of the least of which one is (4096), and of 1 MiB. Rings keep the newest events, as a program would
that traces without end; `--keep all` writes them all. With `--peers` other tracers are measured beside, of which
Debian's are unpacked at ROOT.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what benches share

from trace_peers import peers
from tuned import keep, options_of_time, until

from dovetail.trace.recorder.gate import build_gate
from dovetail.trace.recorder.launch import build_wrappers, environment, library_of, trace_folder

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.prefix) / "bin"
PING = """
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
enum { BLOCKS = 600, TRIPS = 500 };
static char x;
static int rank;
#define PING(prefix)                                                                                        \\
    static double prefix##_us(void) {                                                                       \\
        MPI_Status status;                                                                                  \\
        PMPI_Barrier(MPI_COMM_WORLD);                                                                       \\
        const double begun = MPI_Wtime();                                                                   \\
        for (int i = 0; i < TRIPS; ++i) {                                                                   \\
            if (rank == 0) prefix##_Send(&x, 1, MPI_CHAR, 1, 0, MPI_COMM_WORLD);                            \\
            prefix##_Recv(&x, 1, MPI_CHAR, 1 - rank, MPI_ANY_TAG, MPI_COMM_WORLD, &status);                 \\
            if (rank == 1) prefix##_Send(&x, 1, MPI_CHAR, 0, 0, MPI_COMM_WORLD);                            \\
        }                                                                                                   \\
        return (MPI_Wtime() - begun) / TRIPS / 2 * 1e6;                                                     \\
    }
PING(PMPI)
PING(MPI)
static int by_size(const void* a, const void* b) { return *(const double*)a > *(const double*)b ? 1 : -1; }
int main(int argc, char** argv) {
    static double plain[BLOCKS], traced[BLOCKS];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int i = 0; i < BLOCKS; ++i) plain[i] = PMPI_us(), traced[i] = MPI_us() - plain[i];
    qsort(plain, BLOCKS, sizeof *plain, by_size), qsort(traced, BLOCKS, sizeof *traced, by_size);
    if (rank == 0) printf("%.4f %.4f\\n", plain[BLOCKS / 2], traced[BLOCKS / 2]);
    MPI_Finalize();
    return 0;
}
"""
CALLS = """
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
enum { COUNT = 400000, LARGE_COUNT = 1000, LEAST = 4096, LARGE = 1 << 20 };
static char x, own;
static double *from, *to;
static MPI_Request asked;
static void send(void) { MPI_Send(&x, 1, MPI_CHAR, MPI_PROC_NULL, 0, MPI_COMM_WORLD); }
static void recv(void) { MPI_Recv(&x, 1, MPI_CHAR, MPI_PROC_NULL, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE); }
static void poll(void) { int flag; MPI_Test(&asked, &flag, MPI_STATUS_IGNORE); }
static void sum(int bytes) { MPI_Allreduce(from, to, bytes / 8, MPI_DOUBLE, MPI_SUM, MPI_COMM_SELF); }
static void unsampled(void) { sum(LEAST - 8); }
static void sampled(void) { sum(LEAST); }
static void large(void) { sum(LARGE); }
static double each_ns(void (*call)(void), int count) {
    double begun;
    for (int i = -count / 10; i < count; ++i) {
        if (!i) begun = MPI_Wtime();
        call();
    }
    return (MPI_Wtime() - begun) / count * 1e9;
}
int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    from = malloc(LARGE), to = calloc(1, LARGE);
    for (int i = 0; i < LARGE / 8; ++i) from[i] = i;
    MPI_Irecv(&x, 1, MPI_CHAR, 0, 0, MPI_COMM_SELF, &asked);
    printf("{\\"send\\": %.2f, \\"recv\\": %.2f, \\"poll\\": %.2f, ", each_ns(send, COUNT), each_ns(recv, COUNT),
           each_ns(poll, COUNT));
    printf("\\"sum_unsampled\\": %.2f, \\"sum_sampled\\": %.2f, ", each_ns(unsampled, COUNT), each_ns(sampled, COUNT));
    printf("\\"sum_large\\": %.2f}\\n", each_ns(large, LARGE_COUNT));
    MPI_Send(&own, 1, MPI_CHAR, 0, 0, MPI_COMM_SELF);
    MPI_Wait(&asked, MPI_STATUS_IGNORE);
    MPI_Finalize();
    return 0;
}
"""

IO = """
#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>
enum { COUNT = 200000 };
static FILE* file;
static int fd;
static void put(void) { fwrite("12345678", 1, 8, file); }
static void put_now(void) { if (write(fd, "12345678", 8) != 8) _exit(1); }
static double each_ns(void (*call)(void)) {
    double begun;
    for (int i = -COUNT / 10; i < COUNT; ++i) {
        if (!i) begun = MPI_Wtime();
        call();
    }
    return (MPI_Wtime() - begun) / COUNT * 1e9;
}
int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    file = fopen("/dev/null", "w"), fd = open("/dev/null", O_WRONLY);
    printf("{\\"fwrite\\": %.2f, \\"write\\": %.2f}\\n", each_ns(put), each_ns(put_now));
    MPI_Finalize();
    return 0;
}
"""


def main() -> None:
    parser = options_of_time(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--keep", default="newest", choices=("newest", "all"))
    parser.add_argument("--peers", type=Path, metavar="ROOT")
    args = parser.parse_args()
    os.environ["DOVETAIL_TRACE_KEEP"] = args.keep
    is_over = until(args.budget)
    with tempfile.TemporaryDirectory() as place:
        found: dict[str, object] = dict(events(Path(place)))
        keep(args.out, "trace_cost", **found)
        others = peers(Path(place), args.peers, args.rounds) if args.peers else ()
        for rounds in chain(
            others, calls(Path(place), args.rounds), io(Path(place), args.rounds), pings(Path(place), args.rounds)
        ):
            found |= rounds
            keep(args.out, "trace_cost", **found)
            if is_over():
                break
    print(json.dumps(found, indent=1))


def events(place: Path) -> dict[str, float]:
    """Nanoseconds an event: the median of nine rounds of two million."""
    sources = [*ROOT.glob("native/trace/*.c"), ROOT / "bench" / "traces" / "trace_cost.c"]
    command = ["cc", "-O2", "-pthread", f"-I{ROOT / 'native/trace'}", *sources, "-o", place / "cost"]
    subprocess.run([*map(str, command)], check=True)
    done = subprocess.run([place / "cost", place / "events"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def calls(place: Path, rounds: int) -> Iterator[dict[str, object]]:
    """Nanoseconds that tracing adds to a call of each kind, and what it takes plain; after each round."""
    return added_to(in_turn(place, "calls", CALLS, 1, rounds), "call_rounds")


def io(place: Path, rounds: int) -> Iterator[dict[str, object]]:
    """The same for calls of the C library that write 8 bytes: into a buffer, and to a device that drops them."""
    return added_to(in_turn(place, "io", IO, 1, rounds, through_gate=True), "io_rounds")


def added_to(printed: Iterator[tuple[str, str]], title: str) -> Iterator[dict[str, object]]:
    added: dict[str, list[float]] = {}
    plain: dict[str, list[float]] = {}
    for turn, (before, after) in enumerate(printed, 1):
        for name, ns in json.loads(before).items():
            plain.setdefault(name, []).append(ns)
            added.setdefault(name, []).append(json.loads(after)[name] - ns)
        reported = {f"{name}_plain_ns": statistics.median(values) for name, values in plain.items()}
        yield {
            title: turn,
            **reported,
            **{f"{name}_added_ns": statistics.median(v) for name, v in added.items()},
        }


def pings(place: Path, rounds: int) -> Iterator[dict[str, object]]:
    """Microseconds one way, of one byte through shared memory, by the library's own calls, and what traced ones add, in
    turn every 500 round trips of one run; after each run. What the thread that makes room costs is in both."""
    found: list[tuple[float, float]] = []
    for _, traced in in_turn(place, "ping", PING, 2, rounds):
        plain_us, added_us = map(float, traced.split())
        found.append((plain_us, added_us))
        slowed = [added / plain for plain, added in found]
        plain_us, added_us = (statistics.median(side) for side in zip(*found, strict=True))
        spread = {"ping_slowed": statistics.median(slowed), "ping_spread": max(slowed) - min(slowed)}
        yield {"rounds": len(found), "ping_plain_us": plain_us, "ping_added_us": added_us, **spread}


def in_turn(
    place: Path, name: str, source: str, ranks: int, rounds: int, *, through_gate: bool = False
) -> Iterator[tuple[str, str]]:
    """What a program prints plain and traced, round by round."""
    (place / f"{name}.c").write_text(source)
    subprocess.run([BIN / "mpicc", "-O2", place / f"{name}.c", "-o", place / name], check=True)
    command = [str(BIN / "mpiexec"), "-n", str(ranks), str(place / name)]
    wrapped = build_wrappers(library_of(command), BIN)
    for turn in range(rounds):
        folder = place / f"{name}{turn}"
        folder.mkdir()
        loaded = build_gate(trace_folder()) if through_gate else wrapped
        ways = dict(os.environ), environment(loaded, folder) | {"DOVETAIL_TRACE_MPICH": str(wrapped)}
        before, after = (
            subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout for env in ways
        )
        yield before, after


if __name__ == "__main__":
    main()
