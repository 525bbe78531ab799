"""Our ping-pong probe beside the Intel MPI Benchmarks' PingPong on the same link, in turn, from 64 KB up.

    bench/collectives/pingpong.py --imb PATH/IMB-MPI1 [--rate 1gbit] [--out FILE]

The IMB binary is the user's; it runs on this environment's MPI where that has the MPICH ABI. Both report half the
round trip; ours the median of trips, IMB's the mean of many. Results carry machine, commit and spread.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what benches share

from fabric import HERE, testbed
from tuned import provenance

from dovetail.prober.programs import ping_pong
from dovetail.prober.take import take
from dovetail.run.mpi.executor import MpiExecutor, default_launch

SIZES = [64 << 10, 256 << 10, 1 << 20, 4 << 20]
TURNS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--imb", required=True, type=Path)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    testbed("up", "2", args.rate, "--mtu", "9000")  # a frame is shaped as a whole: large ones hide latencies
    os.environ["DOVETAIL_LAUNCH"] = testbed("launcher", "--env-dir", sys.prefix).strip()
    try:
        turns = [(ours(), theirs(args.imb)) for _ in range(TURNS)]
    finally:
        testbed("down")
    rows = [row(size, [(a[size], b[size]) for a, b in turns]) for size in SIZES]
    document = {"bench": "pingpong", "rate": args.rate, **provenance([]), "rows": rows}
    out = args.out or HERE / "results" / f"pingpong-{args.rate}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(document, indent=1) + "\n")
    for each in rows:
        print(
            f"{each['bytes']:>8} B  ours {each['ours_s'] * 1e6:9.1f} us  IMB {each['imb_s'] * 1e6:9.1f} us  "
            f"ratio {each['ratio']:.3f} (turns {each['least_ratio']:.3f} to {each['most_ratio']:.3f})"
        )


def ours() -> dict[int, float]:
    """Median half round trip of each size, in seconds, by the probe's own Program."""
    asked = [ping_pong(2, (0, 1), size, max(6, (4 << 20) // size), "net") for size in SIZES]
    samples = take(MpiExecutor(), asked, 1)["p2p:net"]
    return {int(size): float(s) for size, s in zip(samples.sizes, samples.medians, strict=True)}


def theirs(imb: Path) -> dict[int, float]:
    """IMB's t[usec] of each size, in seconds."""
    launch = [part.replace("{ranks}", "2") for part in shlex.split(default_launch())]
    library = f"LD_LIBRARY_PATH={sys.prefix}/lib"
    command = [*launch, "env", library, str(imb), "PingPong", "-npmin", "2", "-msglog", "16:22", "-time", "2"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    fields = [line.split() for line in text.splitlines()]
    return {int(f[0]): float(f[2]) * 1e-6 for f in fields if len(f) == 4 and f[0].isdigit()}


def row(size: int, pairs: list[tuple[float, float]]) -> dict[str, float]:
    """Medians over the turns, and the ratio pair by pair."""
    ratios = [a / b for a, b in pairs]
    a, b = (statistics.median(column) for column in zip(*pairs, strict=True))
    ends = {"least_ratio": min(ratios), "most_ratio": max(ratios)}
    return {"bytes": size, "ours_s": a, "imb_s": b, "ratio": statistics.median(ratios), **ends}


if __name__ == "__main__":
    main()
