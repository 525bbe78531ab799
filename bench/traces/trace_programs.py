"""Programs of others, traced as they stand: as many calls as a library counts that knows nothing of the tracer, and
the results that they have untraced?

    bench/traces/trace_programs.py NAME [--about TEXT] [--budget 420] [--out FILE] -- mpiexec -n 2 PROGRAM …
        [--result FILE] [--times REGEX]

Runs the command twice untraced, then traced behind a library that only counts calls: in one run, since many programs go
on as long as time lets them. What two untraced runs print alike, word by word, is taken for results, the rest for
times: the traced run is to print the same results. `--result`: a file that the program writes, compared too; `--times`:
words that are times even if two runs print the same. With `--out` the row takes the place of the one of its name.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what benches share

from tuned import HERE, keep, options_of_time

from dovetail.trace import merge
from dovetail.trace.analysis.stats import stats
from dovetail.trace.recorder.launch import build_wrappers, compiler_for, environment, forwarded, library_of
from dovetail.trace.recorder.mpi_calls import calls

sys.path.insert(0, str(HERE.parent / "tests" / "support"))
from counting_shim import build_shim
from needs import Mpi


def main() -> None:
    parser = options_of_time(__doc__)
    parser.add_argument("name")
    parser.add_argument("--about", default="", help="versions")
    parser.add_argument("--result", type=Path)
    parser.add_argument("--times", default="$^")
    own = sys.argv[1 : sys.argv.index("--")] if "--" in sys.argv else sys.argv[1:]
    args = parser.parse_args(own)
    command = sys.argv[len(own) + 2 :]
    if not command:
        parser.error("which command? -- mpiexec -n 2 PROGRAM")
    with tempfile.TemporaryDirectory() as place:
        row = {"program": args.name, "about": args.about, **compared(command, Path(place), args)}
    print(json.dumps(row, indent=1))
    if args.out:
        before = json.loads(args.out.read_text())["rows"] if args.out.exists() else []
        rows = [*(old for old in before if old["program"] != args.name), row]
        keep(args.out, "trace_programs", rows=rows)


def compared(command: list[str], place: Path, args: Any) -> dict[str, Any]:
    """Of three runs: seconds, counted and traced calls and how they differ, and whether the results are the same."""
    limit_s = args.budget / 3
    library, near = library_of(command), Path(command[0]).parent
    wrapped = build_wrappers(library, near)
    mpicc = Path(compiler_for(library, near))
    names = {f"{call.name}{large}" for call in calls() for large in ("", "_c")}
    shim = build_shim(Mpi(library.kind, mpicc.parent), mpicc, place, names, before_others=True)
    counts, traces = place / "counts", place / "traces"
    counts.mkdir(), traces.mkdir()
    plain = [run(command, dict(os.environ), limit_s, args.result) for _ in range(2)]
    env = environment(wrapped, traces)
    env |= {"LD_PRELOAD": f"{shim}:{env['LD_PRELOAD']}", "COUNT_DIR": str(counts)}
    traced = run(with_variables(command, "COUNT_DIR"), env, limit_s, args.result)
    output = merge(traces)
    found = {call.name: call.count for call in stats(output).calls}
    counted: Counter[str] = Counter()
    for file in counts.glob("*.json"):
        counted.update(json.loads(file.read_text()))
    names = sorted(set(found) | set(counted) - {"MPI_Abort"})
    differ = {n: [counted.get(n, 0), found.get(n, 0)] for n in names if counted.get(n, 0) != found.get(n, 0)}
    check = output.meta["clocks"]
    return {
        "library": library.kind, "plain_s": plain[0].seconds, "traced_s": traced.seconds, "ranks": output.num_ranks,
        "calls": sum(found.values()), "kinds": len(found), "lost": output.meta["lost"], "faults": output.meta["faults"],
        "messages": check["messages"], "without_partner": check["without_partner"],
        "received_before_sent": check["received_before_sent"],
        **same_results(*(words_of(each.output, args.times) for each in (*plain, traced))),
        "differ": differ, "traced": found,
    }  # fmt: skip


def with_variables(command: list[str], *names: str) -> list[str]:
    """The command; if its launcher is Open MPI's, with options that pass these and the tracer's variables on."""
    output = forwarded(command)
    return output if output == command else [output[0], *(word for name in names for word in ("-x", name)), *output[1:]]


class Ran(NamedTuple):
    """A run: its seconds, and what it printed and wrote."""

    seconds: float
    output: str


def run(command: list[str], env: dict[str, str], limit_s: float, result: Path | None) -> Ran:
    if result is not None:
        result.unlink(missing_ok=True)
    begun = time.perf_counter()
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=limit_s)
    seconds = time.perf_counter() - begun
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return Ran(seconds, done.stdout + (result.read_text() if result is not None else ""))


def words_of(output: str, times: str) -> list[list[str]]:
    """The words of each line but those that are times."""
    return [["" if re.fullmatch(times, word) else word for word in line.split()] for line in output.splitlines()]


def same_results(first: list[list[str]], second: list[list[str]], traced: list[list[str]]) -> dict[str, Any]:
    """How many words with digits two runs have alike, and which lines of theirs the traced one has otherwise; lines of
    several ranks may come in another order."""
    if len(first) != len(second) or len(first) != len(traced):
        return {"results": 0, "changed": [f"{len(traced)} lines, not {len(first)} or {len(second)}"]}
    alike = [
        [x if x == y else None for x, y in zip(a, b, strict=True)] if len(a) == len(b) else [*a]
        for a, b in zip(first, second, strict=True)
    ]
    count = sum(any(letter.isdigit() for letter in word) for line in alike for word in line if word)
    here = [i for i, (line, output) in enumerate(zip(alike, traced, strict=True)) if not fits(line, output)]
    wanted = [alike[i] for i in here]
    changed = []
    for output in (traced[i] for i in here):
        at = next((k for k, line in enumerate(wanted) if fits(line, output)), None)
        changed += [" ".join(output)] if at is None else []
        wanted.pop(at) if at is not None else None
    return {"results": count, "changed": changed}


def fits(line: list[str | None], output: list[str]) -> bool:
    """Whether a line has the words of another, where that has no time (None)."""
    return len(line) == len(output) and all(x is None or x == y for x, y in zip(line, output, strict=True))


if __name__ == "__main__":
    main()
