"""What `dovetail accelerate --replace` gains: calls of one process both ways, and whole programs with and without.

    bench/accelerate/accelerate.py calls [--mpi mpich|openmpi] [--ranks 2] [--multiple] [--rows all|Allreduce|…]
                          [--out FILE]
    bench/accelerate/accelerate.py program NAME [--pairs 7] [--mpi M] [--out FILE] -- mpiexec -n 2 ./a.out …

`calls`: accelerate.c under the command: of each kind and size the library's calls and those that may be replaced,
in one process, in alternating blocks, after a while in which the guard learns; and what the guard decided. `program`:
pairs of whole runs, alternating; the ratio with its interval, and what the runs replaced. Rows are added to the file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what benches share

from tuned import HERE, keep

from dovetail.accelerate.counts import Counts
from dovetail.accelerate.learn import check
from dovetail.accelerate.running import prepared

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
    program.add_argument("--plain", action="store_true", help="replace nothing: counters alone")
    program.add_argument("words", nargs="+")
    program.set_defaults(run=run_program)
    for each in (calls, program):
        each.add_argument("--mpi", choices=BINS, default="mpich")
        each.add_argument("--out", type=Path)
    args = parser.parse_args()
    os.environ.update(ROOT_MAY, PATH=f"{BINS[args.mpi]}:{os.environ['PATH']}")
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
    command = prepared(args.words, args.mpi, "" if args.plain else "exact")
    if command.why_not:
        sys.exit(command.why_not)
    ratio, ran = check(command, {}, args.pairs)
    counts = ran.counts[0]
    shares = {"seconds": ran.seconds, "in_mpi": counts.in_mpi_s / counts.rank_s}
    shares |= {"in_collectives": counts.in_collectives_s / counts.rank_s, "hosts": len(counts.hosts)}
    about = {"what": "program", "name": args.name, "library": counts.library, "ranks": counts.ranks}
    return about | {"replaces": not args.plain, **ratio.to_json(), **shares, **replaced(counts)}


def replaced(counts: Counts) -> dict[str, Any]:
    """What the guard decided, by bucket."""
    if counts.replacing is None:
        return {}
    rows = [row._asdict() for row in counts.replacing.rows]
    saved, spent = counts.replacing.saved_s / counts.rank_s, counts.replacing.spent_s / counts.rank_s
    return {"guard": rows, "left": dict(counts.replacing.left), "saved_share": saved, "spent_share": spent}


if __name__ == "__main__":
    main()
