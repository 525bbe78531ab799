"""Programs of others, traced as they stand: as many calls as a library counts that knows nothing of the tracer?

    bench/trace_programs.py NAME [--about TEXT] [--budget 420] [--out FILE] -- mpiexec -n 2 PROGRAM …

Runs the command untraced, then traced behind a library that only counts calls: in one run, since many programs go on
as long as time lets them. With `--out` the row takes the place of the one of its name.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tuned import HERE, keep, options_of_time

from dovetail.trace import merge
from dovetail.trace.launch import build_wrappers, compiler_for, environment, forwarded, library_of
from dovetail.trace.mpi_calls import calls
from dovetail.trace.stats import stats

sys.path.insert(0, str(HERE.parent / "tests"))
from counting_shim import build_shim
from needs import Mpi


def main() -> None:
    parser = options_of_time(__doc__)
    parser.add_argument("name")
    parser.add_argument("--about", default="", help="versions")
    own = sys.argv[1 : sys.argv.index("--")] if "--" in sys.argv else sys.argv[1:]
    args = parser.parse_args(own)
    command = sys.argv[len(own) + 2 :]
    if not command:
        parser.error("which command? -- mpiexec -n 2 PROGRAM")
    with tempfile.TemporaryDirectory() as place:
        row = {"program": args.name, "about": args.about, **compared(command, Path(place), args.budget / 2)}
    print(json.dumps(row, indent=1))
    if args.out:
        before = json.loads(args.out.read_text())["rows"] if args.out.exists() else []
        rows = [*(old for old in before if old["program"] != args.name), row]
        keep(args.out, "trace_programs", rows=rows)


def compared(command: list[str], place: Path, limit_s: float) -> dict[str, Any]:
    """Of two runs of so many seconds at most: seconds, counted and traced calls, and how they differ."""
    library, near = library_of(command), Path(command[0]).parent
    wrapped = build_wrappers(library, near)
    mpicc = Path(compiler_for(library, near))
    names = {f"{call.name}{large}" for call in calls() for large in ("", "_c")}
    shim = build_shim(Mpi(library.kind, mpicc.parent), mpicc, place, names, before_others=True)
    counts, traces = place / "counts", place / "traces"
    counts.mkdir(), traces.mkdir()
    plain_s = run(command, dict(os.environ), limit_s)
    env = environment(wrapped, traces)
    env |= {"LD_PRELOAD": f"{shim}:{env['LD_PRELOAD']}", "COUNT_DIR": str(counts)}
    traced_s = run(with_variables(command, "COUNT_DIR"), env, limit_s)
    told = merge(traces)
    found = {call.name: call.count for call in stats(told).calls}
    counted: Counter[str] = Counter()
    for file in counts.glob("*.json"):
        counted.update(json.loads(file.read_text()))
    names = sorted(set(found) | set(counted) - {"MPI_Abort"})
    differ = {n: [counted.get(n, 0), found.get(n, 0)] for n in names if counted.get(n, 0) != found.get(n, 0)}
    check = told.meta["clocks"]
    return {
        "library": library.kind, "plain_s": plain_s, "traced_s": traced_s, "ranks": told.num_ranks,
        "calls": sum(found.values()), "kinds": len(found), "lost": told.meta["lost"], "faults": told.meta["faults"],
        "messages": check["messages"], "without_partner": check["without_partner"],
        "received_before_sent": check["received_before_sent"],
        "differ": differ, "traced": found,
    }  # fmt: skip


def with_variables(command: list[str], *names: str) -> list[str]:
    """The command, told to pass these and the tracer's variables on where its launcher must be: Open MPI's."""
    told = forwarded(command)
    return told if told == command else [told[0], *(word for name in names for word in ("-x", name)), *told[1:]]


def run(command: list[str], env: dict[str, str], limit_s: float) -> float:
    begun = time.perf_counter()
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=limit_s)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
