"""What knobs for a whole run (L1), or for each call (L2), of the MPI library's own algorithms win over its defaults.

    bench/accelerate/accelerate_library.py [--mpi mpich|openmpi] [--ranks 2] [--kinds all_reduce,…] [--sizes 8,2048,…]
        [--launch 'testbed launcher …'] [--name '2 hosts, 1 Gbit/s'] [--passes 3] [--out FILE]

Each collective alone, of float32, in the C program of `dovetail tune` (`native/prober/baseline.c`): all sizes as
installed, and with each setting that `accelerate` knows. Settings alternate, the passes in both orders; a time is the
least of the passes' medians. L1: the one setting with the least geometric mean of its ratios to the default. L2: the
best setting of each size, if its quartiles lie below the default's; else the default.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from math import prod
from pathlib import Path
from statistics import quantiles
from typing import Any

from accelerate import BINS, ROOT_MAY
from tuned import keep

from dovetail.prober.baselines import Baselines, Timing, baselines, knobs_of, said

NAMES = {"mpich": "MPICH", "openmpi": "Open MPI"}
KINDS = "all_reduce,all_gather,reduce_scatter,all_to_all,broadcast"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mpi", choices=BINS, default="mpich")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--kinds", default=KINDS)
    parser.add_argument("--sizes", default="16,512,4096,65536,1048576")
    parser.add_argument("--launch", default="")
    parser.add_argument("--name", default="one host")
    parser.add_argument("--level", default="single")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--batch", type=float, default=5e-3, help="seconds of calls between two readings of the clock")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    os.environ.update(ROOT_MAY, PATH=f"{BINS[args.mpi]}:{os.environ['PATH']}")
    launch = args.launch or f"mpiexec {'--oversubscribe ' if args.mpi == 'openmpi' else ''}-n {{ranks}}"
    sizes = [int(size) for size in args.sizes.split(",")]
    with baselines(launch) as program:
        for kind in args.kinds.split(","):
            row = contest(program, kind, sizes, args)
            print(json.dumps(row), flush=True)
            if args.out:
                rows = json.loads(args.out.read_text())["rows"] if args.out.exists() else []
                keep(args.out, "accelerate_library", rows=[*rows, row])


def contest(program: Baselines, kind: str, sizes: list[int], args: argparse.Namespace) -> dict[str, Any]:
    """Return the times of one kind, and what L1 and L2 win."""
    settings: list[dict[str, str]] = [{}, *map(dict, knobs_of(NAMES[args.mpi], kind))]
    best: list[dict[int, Timing]] = [{} for _ in settings]
    for number in range(args.passes):
        order = range(len(settings)) if number % 2 == 0 else reversed(range(len(settings)))
        for i in order:
            timed = program.time(
                kind, sizes, args.ranks, level=args.level, knobs=settings[i], rounds=7, batch_s=args.batch, most_s=4.0
            )
            for size, each in timed.items():
                if size not in best[i] or each.median_s < best[i][size].median_s:
                    best[i][size] = each
    if not best[0]:
        sys.exit(f"{kind}: the library as installed gave no times")
    about = {"kind": kind, "library": NAMES[args.mpi], "ranks": args.ranks, "where": args.name, "level": args.level}
    times = [
        {"knobs": said(knobs), "us": {size: round(each.median_s * 1e6, 3) for size, each in found.items()}}
        for knobs, found in zip(settings, best, strict=True)
    ]
    return about | {"times": times, **won(settings, best)}


def won(settings: list[dict[str, str]], best: list[dict[int, Timing]]) -> dict[str, Any]:
    """Return the ratios to the default by size: of the best setting for all sizes, and of the best for each."""
    default = best[0]
    ratios = [
        {size: found[size].median_s / default[size].median_s for size in found if size in default} for found in best
    ]
    whole = [i for i, found in enumerate(ratios) if len(found) == len(default)]
    l1 = min(whole, key=lambda i: mean(list(ratios[i].values())))
    l2 = {}
    for size in default:
        i = min((i for i in range(len(best)) if size in best[i]), key=lambda i: best[i][size].median_s)
        clear = i and quartiles(best[i][size])[1] < quartiles(default[size])[0]
        l2[size] = {"ratio": round(ratios[i][size], 3) if clear else 1.0, "knobs": said(settings[i]) if clear else ""}
    return {
        "l1": {"knobs": said(settings[l1]), "ratios": {size: round(r, 3) for size, r in ratios[l1].items()}},
        "l1_mean": round(mean(list(ratios[l1].values())), 3),
        "l2": l2,
        "l2_mean": round(mean([each["ratio"] for each in l2.values()]), 3),
    }


def mean(values: list[float]) -> float:
    return prod(values) ** (1 / len(values))


def quartiles(timing: Timing) -> tuple[float, float]:
    if len(timing.seconds) < 2:
        return timing.median_s, timing.median_s
    low, _, high = quantiles(timing.seconds, n=4, method="inclusive")
    return low, high


if __name__ == "__main__":
    main()
