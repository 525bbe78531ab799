"""The programs of docs/causes.md, before and after repair: what advice predicts that it saves, and what it saves,
untraced, in turn; and a picture of some steps of each, by rank.

    bench/traces/causes.py [--rounds 7] [--pictures FOLDER] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what benches share

from tuned import keep

from dovetail.advise.advise import Finding, advise
from dovetail.advise.causes import causes
from dovetail.report.picture import write_svg
from dovetail.trace import Trace, open_trace
from dovetail.trace.to_timeline import to_timeline
from dovetail.trace.trace import COLUMNS

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.prefix) / "bin"
PROGRAMS = {"late": "imbalance", "moving": "imbalance", "writes": "io", "pauses": "poll", "messages": "block"}
PROGRAMS |= {"turns": "barrier", "lockstep": "lockstep"}
STEPS, SHOWN = 60, 3  # as in examples/causes/steps.h; steps in a picture
WIDTH = 720  # of a picture, in pixels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as place:
        for name, kind in PROGRAMS.items():
            found[name] = measured(Path(place), name, kind, args.rounds)
            if args.pictures:
                picture(args.pictures / f"{name}.svg", open_trace(Path(place) / f"{name}.trace/trace.dovetail").read())
    keep(args.out, "causes", **found)
    print(json.dumps(found, indent=1))


def measured(place: Path, name: str, kind: str, rounds: int) -> dict[str, object]:
    ways = [place / name, place / f"{name}-repaired"]
    for way, flags in zip(ways, ([], ["-DREPAIRED"]), strict=True):
        subprocess.run([BIN / "mpicc", "-O2", "-g", *flags, ROOT / f"examples/causes/{name}.c", "-o", way], check=True)
    times = [[seconds(way) for way in ways] for _ in range(rounds)]
    before, after = (statistics.median(column) for column in zip(*times, strict=True))
    shares = [1 - b / a for a, b in times]
    folder = place / f"{name}.trace"
    command = [BIN / "dovetail", "trace", "run", "-o", folder, "--", BIN / "mpiexec", "-n", "2", ways[0]]
    subprocess.run([*map(str, command)], check=True, capture_output=True)
    trace = open_trace(folder / "trace.dovetail")
    advice = advise(trace)
    finding = next((it for it in advice.findings if it.kind == kind), None)
    cause = causes(trace).causes
    return {
        "before_s": before,
        "after_s": after,
        "saved_share": statistics.median(shares),
        "saved_spread": max(shares) - min(shares),
        "predicted_share": share(finding, advice.replayed_s),
        "first": advice.findings[0].kind if advice.findings else None,
        "kind": kind,
        "cause": cause[0].activity.kind if cause else None,
        "pattern": cause[0].pattern.words if cause else None,
        "foreign_load": advice.load.foreign,
    }


def share(finding: Finding | None, whole_s: float) -> float | None:
    return None if finding is None else finding.saves_s / whole_s


def seconds(program: Path) -> float:
    done = subprocess.run([BIN / "mpiexec", "-n", "2", program], check=True, capture_output=True, text=True)
    return float(done.stdout)


def picture(path: Path, trace: Trace) -> None:
    """Draw a few steps from the middle of the run: calls, and between them work, or pauses between two tests."""
    col = trace.columns
    setup = np.isin(col["name"], [trace.names.index(name) for name in ("MPI_Init", "MPI_Finalize")])
    begin_s, end_s = float(col["end_s"][setup].min()), float(col["start_s"][setup].max())
    step_s = (end_s - begin_s) / STEPS
    from_s, to_s = begin_s + STEPS // 2 * step_s, begin_s + (STEPS // 2 + SHOWN) * step_s
    names = (*trace.names, "compute", "idle")
    rows: list[tuple[int, int, float, float]] = []
    for rank in range(trace.num_ranks):
        at = np.flatnonzero((col["rank"] == rank) & (col["part"] == 0) & ~setup)
        at = at[np.argsort(col["start_s"][at])]
        calls = zip(*(col[name][at].tolist() for name in ("name", "start_s", "end_s")), strict=True)
        before, last_s = -1, begin_s
        for name, start_s, until_s in calls:
            is_pause = before == name and trace.names[name] == "MPI_Test"
            if start_s - last_s > (to_s - from_s) / WIDTH:
                rows.append((rank, len(names) - 1 - (not is_pause), last_s, start_s))
            rows.append((rank, name, start_s, until_s))
            before, last_s = name, until_s
    shown = [row for row in rows if row[3] > from_s and row[2] < to_s]
    shifted = [(rank, name, max(a - from_s, 0.0), min(b, to_s) - from_s) for rank, name, a, b in shown]
    rank, name, start_s, until_s = (np.array(column) for column in zip(*shifted, strict=True))
    columns = {key: np.zeros(len(rank), kind) for key, kind in COLUMNS.items()}
    columns |= {"rank": rank.astype("i4"), "name": name.astype("i4"), "start_s": start_s, "end_s": until_s}
    columns |= {"comm": np.full(len(rank), -1, "i4")}
    drawn = to_timeline(Trace(trace.num_ranks, names, (), columns))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_svg(path, [drawn], width=WIDTH)


if __name__ == "__main__":
    main()
