"""How far replays of untouched traces are from what was traced: by the trace's own times, and by a probed machine's.

    bench/trace_replay.py [--rounds 5] [--budget 420] [--only merge,block] [--machine FILE] [--runs FOLDER] [--out FILE]

The programs of trace_faults.c on two ranks that talk through shared memory, each with its fault and repaired. The
machine is probed first, unless it is given. Of each program the median round by either way is told. `--runs` keeps the
machine and the traces, and what it holds already is not run again, only replayed; FILE is written after each program.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

from trace_advice import CASES, compiled, launched
from tuned import keep, options_of_time, table, until

from dovetail.core import save_json
from dovetail.machine import Machine, load
from dovetail.plan.replay import replay
from dovetail.run.mpi import MpiExecutor
from dovetail.trace import merge, open_trace
from dovetail.trace.launch import environment
from dovetail.tune.machines import machine_of

RANKS = 2
NAMES = [name for name, case in CASES.items() if case.ranks == RANKS and not (case.fault or case.rates)]
COLUMNS = ("program", "traced_s", "by_trace", "by_machine", "least", "most")


def main() -> None:
    parser = options_of_time(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(NAMES))
    parser.add_argument("--machine")
    parser.add_argument("--runs", type=Path)
    args = parser.parse_args()
    is_over, rows = until(args.budget), []
    with tempfile.TemporaryDirectory() as place:
        folder = args.runs or Path(place)
        machine = probed(folder, args.machine)
        for name, repaired in product(args.only.split(","), (0, 1)):
            places = [folder / name / str(repaired) / str(i) for i in range(args.rounds)]
            traces = [found for place in places if (found := traced(folder, name, repaired, place, is_over))]
            if not traces:
                print(f"{name} {repaired}: no time left", flush=True)
                continue
            rows.append(row(f"{name} {repaired}", traces, machine))
            keep(args.out, "trace_replay", median_off=medians(rows), rows=rows)
            print(table(rows[-1:], COLUMNS).splitlines()[-1], flush=True)
    print(table(rows, COLUMNS))
    print("median off: ", ", ".join(f"{way} {off:.1%}" for way, off in medians(rows).items()))


def medians(rows: list[dict[str, Any]]) -> dict[str, float]:
    ways = ("by_trace", "by_machine") if rows else ()
    return {way: statistics.median(abs(each[way]) for each in rows) for way in ways}


def probed(folder: Path, given: str | None) -> Machine:
    """The machine given, or that of the folder, or a fresh one."""
    kept = folder / "machine.json"
    if given or kept.exists():
        return load(given or str(kept))
    folder.mkdir(parents=True, exist_ok=True)
    machine = machine_of(MpiExecutor(), RANKS, fresh=True)
    save_json(kept, machine.to_json())
    return machine


def traced(folder: Path, name: str, repaired: int, place: Path, is_over: Callable[[], bool]) -> Path | None:
    """One round of one program, run unless it was, while there is time; its trace."""
    if not (place / "trace.dovetail").exists():
        if is_over():
            return None
        shutil.rmtree(place, ignore_errors=True)  # what a round left that was cut
        place.mkdir(parents=True)
        program, wrapped = compiled(folder)
        launched(program, name, repaired, environment(wrapped, place, {}))
        merge(place)
    return place / "trace.dovetail"


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
