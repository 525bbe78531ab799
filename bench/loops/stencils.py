"""Jacobi's step on two ranks: ours beside a C program written by hand, and Devito where one is given.

    bench/loops/stencils.py [--devito PATH/ENVIRONMENT] [--grids 2x4096,3x256,3x64] [--rounds 3] [--out FILE]
    bench/loops/stencils.py --rate 100mbit [--grids 2x512,2x1024] …        # two hosts of the testbed: root and iproute2

Every round runs all of them one after the other in a random order, each alone, and each tells the best of five runs of
so many steps (ours with arrays in and out); figures are medians over the rounds. `--devito` is a virtual environment
with devito, mpi4py and an MPI's wheel; of its MPI modes the fastest counts. All must give the same sum. `exact` is ours
with ghosts before every sweep, overlapped or not, the faster of them, as of the two C programs; `exact_alone` its steps
without arrays in and out, as those of the others are timed; `tuned` what `dovetail tune` finds, which it does first.
`bandwidth`: 12 bytes a point, over what STREAM's triad moves (16 bytes an element) in the same rounds, on one host.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what benches share

from tuned import HERE, SHARED_MEMORY, commit, hosts, table, testbed

from dovetail.planner import operator_class
from dovetail.tuner import tune

BIN = Path(sys.prefix) / "bin"
HERE_TOO = HERE / "loops" / "stencils"
STEPS = {"2x4096": 100, "3x256": 40, "3x64": 1000, "2x512": 400, "2x1024": 400}
USUAL = {SHARED_MEMORY: "2x4096,3x256,3x64"}  # else the two small ones
NAME = "stencils"  # of the testbed
SECONDS = ("c_s", "exact_s", "exact_alone_s", "tuned_s", "devito_s")
RATIOS = (
    "over_c",
    "alone_over_c",
    "over_devito",
    "tuned_over_c",
    "bandwidth",
    "ready_s",
    "tuned_ready_s",
    "devito_ready_s",
)
COLUMNS = ("grid", "link", *SECONDS, *RATIOS)
MODES = ("basic", "diag2", "overlap", "full")
RANKS = 2
TRIAD_BYTES = 3 << 27
NEAR = 1e-5  # of the sums: ours and C agree to the bit of each point, Devito rounds otherwise


class Way(NamedTuple):
    """One program, and how it is called."""

    name: str
    command: list[str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devito", type=Path)
    parser.add_argument("--rate", default=SHARED_MEMORY)
    parser.add_argument("--grids")
    parser.add_argument("--kept", action="store_true", help="what an earlier call has tuned is not tuned again")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "stencils.json")
    args = parser.parse_args()
    grids = (args.grids or USUAL.get(args.rate, "2x512,2x1024")).split(",")
    with tempfile.TemporaryDirectory() as folder, hosts(NAME, args.rate) as about:
        program = compiled(Path(folder))
        for grid in [] if args.kept else grids:
            tuned_for(grid)
        rows = [row(grid, ways(grid, program, args), args.rounds, triad(program, args)) for grid in grids]
    about |= {"label": "measured", "machine": cpu(), "ranks": RANKS, "dtype": "float32", **commit()}
    about |= {"rounds": args.rounds, "link": "shared-memory" if args.rate == SHARED_MEMORY else args.rate}
    rows = [each | about for each in rows]
    rows += earlier(args.out, {(each["grid"], each["link"]) for each in rows})
    args.out.write_text(json.dumps({"bench": "stencils", "rows": rows}, indent=1) + "\n")
    print(table(rows, COLUMNS))
    sys.exit(any(not each["same"] for each in rows))


def earlier(place: Path, fresh: set[tuple[str, str]]) -> list[dict[str, Any]]:
    """The rows of other grids and links that the file has."""
    known = json.loads(place.read_text())["rows"] if place.exists() else []
    return [row for row in known if (row["grid"], row.get("link", "shared-memory")) not in fresh]


def launch(environment: Path, rate: str) -> list[str]:
    """What starts the ranks with the MPI of a virtual environment."""
    if rate == SHARED_MEMORY:
        return [str(environment / "bin/mpiexec"), "-n", str(RANKS)]
    return shlex.split(testbed(NAME, "launcher", "--env-dir", str(environment)).replace("{ranks}", str(RANKS)))


def triad(program: str, args: argparse.Namespace) -> Way | None:
    if args.rate != SHARED_MEMORY:
        return None
    return Way("triad", [*launch(BIN.parent, args.rate), program, "triad", str(TRIAD_BYTES)])


def compiled(folder: Path) -> str:
    """The C program."""
    target = folder / "jacobi"
    flags = ["-O3", "-march=native", "-o", str(target)]
    subprocess.run([BIN / "mpicc", *flags, str(HERE_TOO / "jacobi.c")], check=True)
    return str(target)


def ways(grid: str, program: str, args: argparse.Namespace) -> list[Way]:
    """All that is run in a round."""
    devito, start = args.devito, launch(BIN.parent, args.rate)
    axes, n = grid.split("x")
    about, found = [axes, n, str(STEPS[grid])], list[Way]()
    for name in ("blocking", "nonblocking"):
        found.append(Way(f"c {name}", [*start, program, *about, name]))
    ours = [*start, sys.executable, str(HERE_TOO / "ours.py"), *about]
    exact = {"exact": '{"depth": 0}', "exact overlapped": '{"depth": 0, "overlapped": true}'}
    found += [Way(name, [*ours, asked]) for name, asked in exact.items()] + [Way("tuned", [*ours, "{}"])]
    for mode in MODES if devito else ():
        settings = [f"DEVITO_MPI={mode}", "DEVITO_LANGUAGE=C", f"PATH={devito}/bin:{os.environ['PATH']}"]
        theirs = [*launch(devito, args.rate), "env", *settings, str(devito / "bin/python")]  # hosts get few variables
        found.append(Way(f"devito {mode}", [*theirs, str(HERE_TOO / "with_devito.py"), *about]))
    return found


def tuned_for(grid: str) -> None:
    """Tune, which keeps what it finds."""
    axes, n = map(int, grid.split("x"))
    operator = operator_class(f"jacobi{axes}d")("x".join([str(n)] * axes), STEPS[grid])
    with tempfile.TemporaryDirectory() as folder:
        print(tune(operator, RANKS, out=folder, budget_s=60).plan.schedule, file=sys.stderr)


def row(grid: str, found: list[Way], rounds: int, triad: Way | None) -> dict[str, Any]:
    """What each way took, and how ours compare."""
    every = [*found, triad] if triad else found
    reported: dict[str, list[list[float]]] = {way.name: [] for way in every}
    for _ in range(rounds):
        for way in random.sample(every, len(every)):
            reported[way.name].append(run(way))
            print(grid, way.name, *reported[way.name][-1], file=sys.stderr)
    seconds = {name: statistics.median(each[0] for each in all_of) for name, all_of in reported.items()}
    spread = {name: max(e[0] for e in all_of) / min(e[0] for e in all_of) - 1 for name, all_of in reported.items()}
    sums = [each[1] for name, all_of in reported.items() if name != "triad" for each in all_of]
    c_s = min(seconds["c blocking"], seconds["c nonblocking"])
    exact = min(("exact", "exact overlapped"), key=seconds.__getitem__)
    theirs = {name: s for name, s in seconds.items() if name.startswith("devito")}
    axes, n = map(int, grid.split("x"))
    fastest = min(theirs, key=theirs.__getitem__, default=exact)
    ready = [statistics.median(e[2] for e in reported[name]) for name in (exact, "tuned", fastest)]
    about: dict[str, Any] = {"grid": " x ".join([str(n)] * axes), "steps": STEPS[grid], "c_s": c_s}
    about |= {"seconds": seconds, "spread": spread}
    alone_s = statistics.median(each[3] for each in reported[exact])
    about |= {"exact_alone_s": alone_s, "alone_over_c": c_s / alone_s}
    about |= {"exact_s": seconds[exact], "tuned_s": seconds["tuned"], "devito_s": min(theirs.values(), default=None)}
    about |= {"over_c": c_s / seconds[exact], "tuned_over_c": c_s / seconds["tuned"]}
    about |= {"over_devito": about["devito_s"] and about["devito_s"] / seconds["tuned"]}
    if triad:
        share = 12 * n**axes / seconds[exact] / seconds["triad"]
        about |= {"bandwidth": share, "triad_bytes_per_s": seconds["triad"]}
    about |= {"ready_s": ready[0], "tuned_ready_s": ready[1], "devito_ready_s": ready[2] if theirs else None}
    return about | {"same": max(sums) - min(sums) <= NEAR * abs(max(sums))}


def run(way: Way) -> list[float]:
    """The numbers that a way prints first."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    environment.pop(
        "PYTHONDONTWRITEBYTECODE", None
    )  # else Python compiles our modules at each start, as no user's does
    done = subprocess.run(way.command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{way.name} failed: {done.stderr.strip()[-2000:]}")
    words = done.stdout.split(" {")[0].split()
    return [float(word) for word in words]


def cpu() -> str:
    """The machine's CPU and its cores."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return (
        f"{next(line.split(':')[1].strip() for line in lines if line.startswith('model name'))}, {os.cpu_count()} cores"
    )


if __name__ == "__main__":
    main()
