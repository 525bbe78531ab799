"""Programs with a planted fault and their repaired twins: what `trace advise` predicts, and what repairing gains.

    bench/traces/trace_advice.py [--rounds 5] [--budget 420] [--only merge,block] [--realtime] [--runs FOLDER
                          [--run-only]]
                          [--out FILE]

A round runs each program and its twin in turn, untraced and traced; the gain is the median difference of the slowest
rank's time between two barriers, the prediction that of the median of the traced rounds. `--runs` keeps times and
traces, round by round, and what it holds already is not run again, only advised; FILE is written after each program.

Ranks are on this machine and talk through shared memory; through TCP where there are more of them than cores, which
then yield, and in `eager`, whose limit can be set there; in `slow_link` between three hosts of the testbed (needs root
and iproute2). `--realtime` runs ranks ahead of whatever else the machine does (needs root), with a pause of a second
before each run: Linux stops those for 50 ms that ran so for 950 ms of a second.

Advice is of all rounds' traces together (`trace advise TRACE --again TRACE`); `_alone` in the file: of each by itself.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what benches share

from fabric import testbed
from tuned import keep, options_of_time, table, until

from dovetail.advise.advise import Advice, advise_run, together
from dovetail.core import save_text
from dovetail.trace import merge, open_trace
from dovetail.trace.recorder.launch import build_wrappers, environment, library_of

SOURCE = Path(__file__).with_name("trace_faults.c")
BIN = Path(sys.prefix) / "bin"
TCP = {"MPIR_CVAR_NOLOCAL": "1", "MPIR_CVAR_CH4_NETMOD": "ucx", "UCX_TLS": "tcp,self"}
YIELD = {"MPIR_CVAR_POLLS_BEFORE_YIELD": "1"}
SERIOUS = 0.05  # of the makespan, that a finding in a repaired program saves
NEAR = 0.25


class Case(NamedTuple):
    """Ranks, rounds within the program, and where fault and twin run in different surroundings, these."""

    ranks: int
    inner: int
    fault: Mapping[str, str] = {}
    twin: Mapping[str, str] = {}
    rates: tuple[str, str] | None = None  # of the link between the last two hosts of a mesh


CASES = {
    "merge": Case(2, 40), "block": Case(2, 300), "temporal_block": Case(2, 400), "post_earlier": Case(3, 60),
    "overlap": Case(2, 100), "nonblocking": Case(2, 100), "rendezvous": Case(2, 60),
    "eager": Case(2, 60, TCP | {"UCX_RNDV_THRESH": "1k"}, TCP | {"UCX_RNDV_THRESH": "64k"}),
    "progress": Case(2, 40), "imbalance": Case(2, 60), "slow_rank": Case(4, 60),
    "slow_link": Case(3, 60, rates=("100mbit", "1gbit")),
}  # fmt: skip
LATER = {  # written when the advice was done, and seen since: the finding that each should have first
    "tell_one_by_one": "merge", "small_parts": "block", "stencil": "overlap", "triangle": "imbalance",
    "two_fields": "temporal_block", "residual": "nonblocking", "hand_over": "rendezvous", "laggard": "slow_rank",
}  # fmt: skip
UNSEEN = {  # written after those
    "three_sums": "merge", "uneven_pipeline": "rendezvous", "quiet_sum": "progress", "root_prepares": "imbalance",
}  # fmt: skip
CASES |= {
    "tell_one_by_one": Case(2, 200), "small_parts": Case(2, 400), "stencil": Case(2, 100), "triangle": Case(2, 200),
    "two_fields": Case(2, 60), "residual": Case(2, 150), "hand_over": Case(2, 60), "laggard": Case(3, 60),
    "three_sums": Case(2, 200), "uneven_pipeline": Case(2, 40), "quiet_sum": Case(2, 60), "root_prepares": Case(2, 100),
}  # fmt: skip
BY_CAUSE = {  # one cause each, whatever the calls look like
    "moving": "imbalance", "idle_barrier": "barrier", "tagged": "block", "naps": "poll", "serial_part": "imbalance",
    "in_order": "any_order", "passed_on": "standard", "often": "seldom",
}  # fmt: skip
CASES |= {
    "moving": Case(4, 60), "idle_barrier": Case(2, 200), "tagged": Case(2, 100), "naps": Case(2, 100),
    "serial_part": Case(4, 60), "in_order": Case(4, 60), "passed_on": Case(4, 60), "often": Case(2, 240),
}  # fmt: skip
COLUMNS = ("fault", "seconds_s", "twin_s", "spread", "gained_s", "predicted_s", "ratio", "first", "in_twin", "replay")


def main() -> None:
    parser = options_of_time(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--realtime", action="store_true")
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--run-only", action="store_true", help="advise later, when others may work meanwhile")
    args = parser.parse_args()
    is_over, rows = until(args.budget), []
    if args.realtime:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    with tempfile.TemporaryDirectory() as place:
        folder = args.runs or Path(place)
        for name in args.only.split(","):
            if run_rounds(name, args.rounds, folder, is_over) and args.run_only:
                continue
            if (folder / name / "times.json").exists():
                rows.append(row(name, folder / name))
                keep(args.out, "trace_advice", **summary(rows), rows=rows)
            else:
                print(f"{name}: no time left", flush=True)
    print(table(rows, COLUMNS))
    for which, reported in summary(rows).items():
        print(which, ", ".join(f"{name} {count}" for name, count in reported.items()))


def summary(rows: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    sets = {"later": LATER, "unseen": UNSEEN, "by_cause": BY_CAUSE}
    of = {name: which for which, names in sets.items() for name in names}
    parts = {which: [r for r in rows if of.get(r["fault"], "seen") == which] for which in ("seen", *sets)}
    return {which: counts(part) for which, part in parts.items() if part}


def counts(rows: list[dict[str, Any]]) -> dict[str, int]:
    return {
        "programs": len(rows), "first_finding_right": sum(r["first"] == kind_of(r["fault"]) for r in rows),
        "saving_within_a_quarter": sum(abs(r["ratio"] - 1) <= NEAR for r in rows),
        "twins_clean": sum(r["in_twin"] == "" for r in rows),
    }  # fmt: skip


def kind_of(name: str) -> str:
    """The finding that a program should have first."""
    return {**LATER, **UNSEEN, **BY_CAUSE}.get(name, name)


@cache
def compiled(folder: Path) -> tuple[Path, Path]:
    """The program, and the wrappers that trace it."""
    program = folder / "faults"
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([BIN / "mpicc", "-g", "-O1", SOURCE, "-o", program], check=True)
    return program, build_wrappers(library_of([str(program)]), BIN)


def run_rounds(name: str, rounds: int, folder: Path, is_over: Callable[[], bool]) -> int:
    """Run what the folder lacks of a case's rounds, while there is time, and keep each; how many it then has."""
    kept = folder / name / "times.json"
    times: dict[str, list[float]] = json.loads(kept.read_text()) if kept.exists() else {}
    done = len(next(iter(times.values()), ()))
    if done >= rounds or is_over():
        return done
    with hosts(CASES[name]):
        while done < rounds and not is_over():
            place = folder / name / str(done)
            shutil.rmtree(place, ignore_errors=True)  # what a round left that was cut
            found = run(*compiled(folder), name, place)
            times = {key: [*times.get(key, ()), value] for key, value in found.items()}
            save_text(kept, json.dumps(times) + "\n")
            done += 1
    print(name, {key: [round(value * 1e3, 1) for value in values] for key, values in times.items()}, flush=True)
    return done


@contextmanager
def hosts(case: Case):
    """Three hosts, each joined to each, where a case is about their links."""
    if not case.rates:
        yield
        return
    testbed("up", case.ranks, case.rates[1], "--topology", "mesh", "--mtu", 9000)
    try:
        yield
    finally:
        testbed("down")


def run(program: Path, wrapped: Path, name: str, folder: Path) -> dict[str, float]:
    """One round: seconds of the program and its twin, plain and traced; the traces in `folder`."""
    seconds = {}
    for kind, repaired in (("fault", 0), ("twin", 1)):
        if CASES[name].rates:
            testbed("rate", CASES[name].rates[repaired], "--between", CASES[name].ranks - 1, CASES[name].ranks)
        for how in ("plain", "traced"):
            place = folder / kind
            place.mkdir(parents=True, exist_ok=True)
            env = environment(wrapped, place, {}) if how == "traced" else {}
            seconds[f"{kind}_{how}"] = launched(program, name, repaired, env)
        merge(place)
    return seconds


def launched(program: Path, name: str, repaired: int, env: Mapping[str, str]) -> float:
    case = CASES[name]
    many = case.ranks > (os.cpu_count() or 1)
    own = case.twin if repaired else case.fault
    env = {**(TCP if many and not case.rates else {}), **(YIELD if many else {}), **own, **env}
    if os.sched_getscheduler(0) == os.SCHED_RR:
        time.sleep(1)
    words = ["env", *(f"{key}={value}" for key, value in env.items()), program, name, repaired, case.inner]
    if case.rates:
        reported = testbed("run", "-n", case.ranks, "--timeout", 60, "--", *words)
    else:
        command = [BIN / "mpiexec", "-n", case.ranks, *words]
        reported = subprocess.run([*map(str, command)], capture_output=True, text=True, check=True, timeout=60).stdout
    return float(re.search(r": ([0-9.]+) s", reported)[1])


def row(name: str, folder: Path) -> dict[str, Any]:
    """One program and its twin: what was measured, and what is advised of the traces."""
    times = json.loads((folder / "times.json").read_text())
    plain, twin = times["fault_plain"], times["twin_plain"]
    runs = {
        kind: [open_trace(folder / str(i) / kind / "trace.dovetail").read() for i in range(len(plain))]
        for kind in ("fault", "twin")
    }
    alone = {kind: [advise_run(run) for run in those] for kind, those in runs.items()}
    fault, twins = (together(alone[kind]) for kind in ("fault", "twin"))
    alone = {kind: [together([advice]) for advice in those] for kind, those in alone.items()}
    gained = statistics.median(a - b for a, b in zip(plain, twin, strict=True))
    predicted = saving(fault, kind_of(name))
    return {
        "fault": name, "seconds_s": statistics.median(plain), "twin_s": statistics.median(twin),
        "spread": max(max(t) / min(t) - 1 for t in (plain, twin)), "gained_s": gained, "predicted_s": predicted,
        "ratio": predicted / gained, "first": first(fault), "in_twin": serious(twins),
        "twin_spread": twins.spread_s / twins.replayed_s, "findings": [f.to_json() for f in fault.findings],
        "twin_doubtful": [f.to_json() for f in twins.doubtful],
        "first_alone": [first(advice) for advice in alone["fault"]],
        "ratio_alone": [saving(advice, kind_of(name)) / gained for advice in alone["fault"]],
        "in_twin_alone": [serious(advice) for advice in alone["twin"]],
        "replay": fault.replayed_s / fault.traced_s, **times,
    }  # fmt: skip


def first(advice: Advice) -> str:
    return advice.findings[0].kind if advice.findings else ""


def serious(advice: Advice) -> str:
    """What is found that saves much, and more than runs differ by."""
    shares = ((f.kind, f.saves_s / advice.replayed_s) for f in advice.findings)
    return ", ".join(f"{kind} {share:.0%}" for kind, share in shares if share > SERIOUS)


def saving(advice: Advice, kind: str) -> float:
    return next((f.saves_s for f in advice.findings if f.kind == kind), 0.0)


if __name__ == "__main__":
    main()
