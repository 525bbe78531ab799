"""How far replays of untouched traces are from what was traced: by the trace's own times, and by a probed machine's.

    bench/trace_replay.py [--rounds 5] [--only merge,block] [--machine FILE] [--runs FOLDER] [--out FILE]

The programs of trace_faults.c on two ranks that talk through shared memory, each with its fault and repaired. The
machine is probed first, unless it is given. Of each program the median round by either way is told. `--runs` keeps the
machine and the traces, and what it holds already is not run again, only replayed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from trace_advice import BIN, CASES, SOURCE, launched
from tuned import provenance, table

from dovetail.core import save_json
from dovetail.machine import Machine, load
from dovetail.plan.replay import replay
from dovetail.run.mpi import MpiExecutor
from dovetail.trace import merge, open_trace
from dovetail.trace.launch import build_wrappers, environment, library_of
from dovetail.tune.machines import machine_of

RANKS = 2
NAMES = [name for name, case in CASES.items() if case.ranks == RANKS and not (case.fault or case.rates)]
COLUMNS = ("program", "traced_s", "by_trace", "by_machine", "least", "most")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(NAMES))
    parser.add_argument("--machine")
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = args.runs or Path(place)
        machine = probed(folder, args.machine)
        program, wrapped = compiled(folder)
        rows = []
        for name in args.only.split(","):
            for repaired in (0, 1):
                traces = [
                    traced(program, wrapped, name, repaired, folder / name / str(repaired) / str(i))
                    for i in range(args.rounds)
                ]
                rows.append(row(f"{name} {repaired}", traces, machine))
                print(table(rows[-1:], COLUMNS).splitlines()[-1], flush=True)
    print(table(rows, COLUMNS))
    told = {way: statistics.median(abs(each[way]) for each in rows) for way in ("by_trace", "by_machine")}
    print("median off: ", ", ".join(f"{way} {off:.1%}" for way, off in told.items()))
    if args.out:
        document = {"bench": "trace_replay", **provenance([]), "median_off": told, "rows": rows}
        args.out.write_text(json.dumps(document, indent=1) + "\n")


def probed(folder: Path, given: str | None) -> Machine:
    """The machine given, or that of the folder, or a fresh one."""
    kept = folder / "machine.json"
    if given or kept.exists():
        return load(given or str(kept))
    folder.mkdir(parents=True, exist_ok=True)
    machine = machine_of(MpiExecutor(), RANKS, fresh=True)
    save_json(kept, machine.to_json())
    return machine


def compiled(folder: Path) -> tuple[Path, Path]:
    """The program, and the wrappers that trace it."""
    program = folder / "faults"
    subprocess.run([BIN / "mpicc", "-g", "-O1", SOURCE, "-o", program], check=True)
    return program, build_wrappers(library_of([str(program)]), BIN)


def traced(program: Path, wrapped: Path, name: str, repaired: int, folder: Path) -> Path:
    """One round of one program; its trace."""
    if not (folder / "trace.dovetail").exists():
        folder.mkdir(parents=True, exist_ok=True)
        launched(program, name, repaired, environment(wrapped, folder, {}))
        merge(folder)
    return folder / "trace.dovetail"


def row(name: str, traces: list[Path], machine: Machine) -> dict[str, Any]:
    """A program: how far off the median round's replays are, by either way."""
    opened = [open_trace(path).read() for path in traces]
    own, by = ([replay(trace, which) for trace in opened] for which in (None, machine))
    off = sorted(each.off for each in by)
    return {
        "program": name, "traced_s": statistics.median(each.traced_s for each in own),
        "by_trace": statistics.median(each.off for each in own), "by_machine": statistics.median(off),
        "least": off[0], "most": off[-1],
    }  # fmt: skip


if __name__ == "__main__":
    main()
