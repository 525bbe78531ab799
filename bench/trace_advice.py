"""Programs with a planted fault and their repaired twins: what `trace advise` predicts, and what repairing gains.

    bench/trace_advice.py [--rounds 5] [--only merge,block] [--out FILE]

A round runs each program and its twin in turn, untraced; the gain is the median difference of the slowest rank's time
between two barriers. The program is then traced once, and advised. Ranks are on this machine and talk through shared
memory. Left out are `progress` and `slow_link`, which need a network, and `eager`: no variable of MPICH was found that
lets messages through shared memory go without their receive. More ranks than cores yield between polls.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tuned import provenance

from dovetail.plan.advise import advise
from dovetail.trace import open_trace

SOURCE = Path(__file__).with_name("trace_faults.c")
BIN = Path(sys.prefix) / "bin"
CASES = {  # ranks, rounds within the program
    "merge": (2, 40), "block": (2, 300), "temporal_block": (2, 400), "post_earlier": (3, 60), "overlap": (2, 100),
    "nonblocking": (2, 100), "rendezvous": (2, 60), "imbalance": (2, 60), "slow_rank": (4, 60),
}  # fmt: skip
YIELD = ("-genv", "MPIR_CVAR_POLLS_BEFORE_YIELD", "1")
SERIOUS = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        program = Path(place) / "faults"
        subprocess.run([BIN / "mpicc", "-g", "-O1", SOURCE, "-o", program], check=True)
        rows = [row(program, name, args.rounds, Path(place)) for name in args.only.split(",")]
    first = sum(r["first"] == r["fault"] for r in rows)
    near = sum(
        abs(r["predicted_s"] / r["gained_s"] - 1) <= 0.25 for r in rows if r["gained_s"] > 0 and r["predicted_s"]
    )
    quiet = sum(not r["serious_in_twin"] for r in rows)
    n = len(rows)
    print(f"first finding right {first}/{n}, saving within 25 % {near}/{n}, twins clean {quiet}/{n}")
    if args.out:
        document = {
            "bench": "trace_advice",
            **provenance([]),
            "first": first,
            "near": near,
            "clean": quiet,
            "rows": rows,
        }
        args.out.write_text(json.dumps(document, indent=1) + "\n")


def row(program: Path, name: str, rounds: int, place: Path) -> dict:
    """One program and its twin: measured in turn, then traced and advised."""
    ranks, inner = CASES[name]
    seconds: list[list[float]] = [[], []]
    for _ in range(rounds):
        for repaired in (0, 1):
            done = launched(program, name, repaired, ranks, inner, [])
            seconds[repaired].append(float(re.search(r": ([0-9.]+) s", done)[1]))
    gained = statistics.median(a - b for a, b in zip(*seconds, strict=True))
    advice = [traced(program, name, repaired, ranks, inner, place) for repaired in (0, 1)]
    findings = advice[0].findings
    predicted = next((f.saves_s for f in findings if f.kind == name), 0.0)
    serious = [f.kind for f in advice[1].findings if f.saves_s > SERIOUS * advice[1].replayed_s]
    found = {
        "fault": name, "seconds": statistics.median(seconds[0]), "twin_s": statistics.median(seconds[1]),
        "spread": [max(s) / min(s) - 1 for s in seconds], "gained_s": gained, "predicted_s": predicted,
        "traced_s": advice[0].traced_s, "replay": advice[0].replayed_s / advice[0].traced_s,
        "first": findings[0].kind if findings else None, "serious_in_twin": serious,
    }  # fmt: skip
    print(
        f"{name:15} {found['seconds'] * 1e3:8.1f} ms, twin {found['twin_s'] * 1e3:8.1f}, gained {gained * 1e3:7.2f},"
        f" predicted {predicted * 1e3:7.2f}, first {found['first']}, replay {found['replay']:.4f}, in twin {serious}",
        flush=True,
    )
    return found


def launched(program: Path, name: str, repaired: int, ranks: int, inner: int, prefix: list) -> str:
    few = YIELD if ranks > (os.cpu_count() or 1) else ()
    command = [*prefix, BIN / "mpiexec", *few, "-n", ranks, program, name, repaired, inner]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=True)
    return done.stdout


def traced(program: Path, name: str, repaired: int, ranks: int, inner: int, place: Path):
    folder = place / f"{name}-{repaired}"
    launched(program, name, repaired, ranks, inner, [BIN / "dovetail", "trace", "run", "-o", folder, "--"])
    return advise(open_trace(folder / "trace.dovetail").read())


if __name__ == "__main__":
    main()
