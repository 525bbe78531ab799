"""How far replays of untouched traces are from what was traced: by the trace's own times, and by a probed machine's.

    bench/traces/trace_replay.py [--rounds 5] [--budget 420] [--only merge,block] [--machine FILE] [--runs FOLDER]
                          [--out FILE]
    bench/traces/trace_replay.py --programs FILE [...]

The programs of trace_faults.c on two ranks that talk through shared memory, each with its fault and repaired. Or
others, as FILE tells: {"LAMMPS": {"command": ["mpiexec", "-n", "2", "lmp", ...], "about": "version, input"}, ...}. The
machine is probed with as many ranks before each round of all programs, unless it is given; it should be that of the
program's MPI library. Of each program the median round by either way is printed. `--runs` keeps machines and traces;
what it holds already is not run again, only replayed; `--out` is written after each program. `--run-only` replays
nothing: replays need no idle machine.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what benches share

from trace_advice import CASES, compiled, launched
from tuned import keep, options_of_time, table, until

from dovetail.advise.replay import replay
from dovetail.core import DovetailError, save_json
from dovetail.machine import Machine, load
from dovetail.prober import probe_calls
from dovetail.run.mpi.executor import MpiExecutor
from dovetail.trace import merge, open_trace
from dovetail.trace.recorder.launch import build_wrappers, environment, forwarded, library_of
from dovetail.tuner.machines import machine_of

RANKS = 2
NAMES = [name for name, case in CASES.items() if case.ranks == RANKS and not (case.fault or case.rates)]
COLUMNS = ("program", "traced_s", "by_trace_s", "by_machine_s", "by_trace", "by_machine", "least", "most")


class Followed(NamedTuple):
    """A program: its name, what is to be known of it, and what runs it so that its trace is in a folder."""

    name: str
    about: str
    run: Callable[[Path], None]


def main() -> None:
    parser = options_of_time(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help="names, with commas")
    parser.add_argument("--programs", type=Path)
    parser.add_argument("--machine")
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--run-only", action="store_true")
    args = parser.parse_args()
    is_over, rows = until(args.budget), []
    with tempfile.TemporaryDirectory() as place:
        folder = args.runs or Path(place)
        reported = list(others(args.programs) if args.programs else faults(folder))
        reported = [each for each in reported if not args.only or each.name.split()[0] in args.only.split(",")]
        traces = run_rounds(reported, args.rounds, folder, args.machine, is_over)
        for program in [] if args.run_only else reported:
            if not traces[program.name]:
                print(f"{program.name}: no time left", flush=True)
                continue
            rows.append(row(program, traces[program.name], folder, args.machine))
            keep(args.out, "trace_replay", median_off=medians(rows), rows=rows)
            print(table(rows[-1:], COLUMNS).splitlines()[-1], flush=True)
    print(table(rows, COLUMNS))
    print("median off: ", ", ".join(f"{way} {off:.1%}" for way, off in medians(rows).items()))


def run_rounds(
    reported: list[Followed], rounds: int, folder: Path, given: str | None, is_over: Callable[[], bool]
) -> dict[str, dict[int, Path]]:
    """Every program once in a round, and its machine probed before; their traces by round, while there is time."""
    traces: dict[str, dict[int, Path]] = {program.name: {} for program in reported}
    for turn in range(rounds):
        if not is_over():
            probed(folder, given, RANKS, turn)
        for program in reported:
            found = traced(program, folder / program.name.replace(" ", "/") / str(turn), is_over)
            if found:
                traces[program.name][turn] = found
    return traces


def medians(rows: list[dict[str, Any]]) -> dict[str, float]:
    ways = ("by_trace", "by_machine") if rows else ()
    return {way: statistics.median(abs(each[way]) for each in rows) for way in ways}


def faults(folder: Path) -> Iterator[Followed]:
    """The programs of trace_faults.c."""

    def run(name: str, repaired: int) -> Callable[[Path], None]:
        return lambda place: ran(name, repaired, place)

    def ran(name: str, repaired: int, place: Path) -> None:
        program, wrapped = compiled(folder)
        launched(program, name, repaired, environment(wrapped, place, {}))

    for name, repaired in product(NAMES, (0, 1)):
        yield Followed(f"{name} {repaired}", "", run(name, repaired))


def others(file: Path) -> Iterator[Followed]:
    """The programs in a file; those that are not on this machine are left out, with the cause."""
    for name, reported in json.loads(file.read_text()).items():
        try:
            run = follow(reported["command"])
        except DovetailError as fault:
            print(f"{name}: left out: {fault}", flush=True)
        else:
            yield Followed(name, reported.get("about", ""), run)


def follow(command: list[str]) -> Callable[[Path], None]:
    """What runs a command with its ranks traced; a DovetailError where it is not all there."""
    for word in command:
        if word.startswith("/") and not Path(word).exists():
            raise DovetailError(f"there is no {word}")
    wrapped = build_wrappers(library_of(command), Path(command[0]).parent)

    def run(place: Path) -> None:
        env = environment(wrapped, place, os.environ)
        done = subprocess.run(forwarded(command), env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")

    return run


def probed(folder: Path, given: str | None, ranks: int, turn: int = 0) -> Machine:
    """The machine given, or that of the folder's round, or a fresh one."""
    kept = folder / f"machine-{ranks}-{turn}.json"
    if given or kept.exists():
        return load(given or str(kept))
    folder.mkdir(parents=True, exist_ok=True)
    executor = MpiExecutor()
    machine = probe_calls(machine_of(executor, ranks, fresh=True), executor.launched_by)
    save_json(kept, machine.to_json())
    return machine


def traced(program: Followed, place: Path, is_over: Callable[[], bool]) -> Path | None:
    """One round of one program, run unless it was, while there is time; its trace."""
    if not (place / "trace.dovetail").exists():
        if is_over():
            return None
        shutil.rmtree(place, ignore_errors=True)  # what a round left that was cut
        place.mkdir(parents=True)
        program.run(place)
        merge(place)
    return place / "trace.dovetail"


def row(program: Followed, traces: dict[int, Path], folder: Path, given: str | None) -> dict[str, Any]:
    """A program: its makespans as traced and replayed by either way, and how far off the median round's replays are."""
    opened = {turn: open_trace(path).read() for turn, path in traces.items()}
    ranks = next(iter(opened.values())).num_ranks
    own = [replay(trace) for trace in opened.values()]
    by = [replay(trace, probed(folder, given, ranks, turn)) for turn, trace in opened.items()]
    off = sorted(each.off for each in by)
    return {
        "program": program.name, "about": program.about, "ranks": ranks,
        "traced_s": statistics.median(each.traced_s for each in own),
        "by_trace_s": statistics.median(each.replayed_s for each in own),
        "by_machine_s": statistics.median(each.replayed_s for each in by),
        "by_trace": statistics.median(each.off for each in own), "by_machine": statistics.median(off),
        "least": off[0], "most": off[-1],
    }  # fmt: skip


if __name__ == "__main__":
    main()
