"""Tuned collectives against those of Open MPI and MPICH, on the testbed's hosts or on shared memory.

    bench/collectives/collectives.py --hosts 4 --rate 100mbit [--ppn 1] [--nics 1] [--mtu 9000]
                          [--mpi mpich,openmpi] [--budget 900]
    bench/collectives/collectives.py --hosts 0 --ranks 2 --min 8 --max 64M      # shared memory, no testbed

Needs root and iproute2 for hosts (see tools/testbed). For each collective and each MPI: `dovetail tune`, then, in a job
of its own, the tuned choice and the library's blocking call in turn, at every size, each held against float64. What is
compared comes from those jobs alone, and `beside` from the tuning: the library in C programs of MPI_Init, as installed
and with its best knobs, and at MPI_THREAD_MULTIPLE, launched alternately with the choice. On shared memory, `limits`
are those of two processes without any library (limits.c). Results are saved after every collective; nothing is
begun once the budget is spent. Tables name the fastest library of all MPIs at a size, and the fastest tuned choice.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
TESTBED = HERE.parent / "tools" / "testbed" / "testbed"
ENVIRONMENTS = {"mpich": HERE.parent / ".venv", "openmpi": HERE.parent / ".venv-openmpi"}
FLAT = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
NAMED = {  # measured too where ranks share nodes
    "all_reduce": ("hierarchical_all_reduce", "ring_all_reduce"),
    "all_to_all": ("two_step_all_to_all", "direct_all_to_all"),
}
TRIES, PROBE = 2, "probe"
GRACE_S = 15.0  # to end ranks in
STANDARD, GAIN = 0.97, 1.2  # of the fastest library: at every size, and somewhere
TUNING = 0.6  # of a collective's time; the rest is for the comparison


def main() -> None:
    args = arguments()
    if args.worker:
        print(json.dumps(worker(args)))
        return
    mpis = args.mpi.split(",")
    begin, out = time.monotonic(), args.out or HERE / "results" / f"collectives-{label(args)}.json"
    found: dict[str, dict[str, dict]] = {}
    if args.hosts:
        frames = ["--mtu", str(args.mtu)] if args.mtu else []
        testbed(args.name, "up", str(args.hosts), args.rate, "--nics", str(args.nics), *frames)
    try:
        with tempfile.TemporaryDirectory() as folder:
            cache = str(args.cache.resolve() if args.cache else folder)
            limits = [] if args.hosts else limits_of(folder, args)
            for mpi in mpis:
                ask(args, PROBE, mpi, args.budget, cache)
            tasks = [(name, mpi) for name in args.collectives.split(",") for mpi in mpis]
            for place, (name, mpi) in enumerate(tasks):
                left_s = args.budget - (time.monotonic() - begin)
                if left_s <= 0:
                    print(f"not begun within the budget: {name} on {mpi}", file=sys.stderr)
                    continue
                found.setdefault(name, {})[mpi] = ask(args, name, mpi, left_s / (len(tasks) - place), cache)
                save(out, args, found, limits)
                print_summary(name, mpi, found[name])
    finally:
        if args.hosts:
            testbed(args.name, "down")
    print(json.dumps(save(out, args, found, limits)["summary"], indent=1))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=4, help="0: shared memory")
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--ppn", type=int, default=1, help="ranks a host")
    parser.add_argument("--nics", type=int, default=1)
    parser.add_argument("--mtu", type=int, help="bytes of a frame; large ones spare the cores of crowded hosts")
    parser.add_argument("--ranks", type=int, help="on shared memory")
    parser.add_argument("--mpi", default="mpich,openmpi")
    parser.add_argument("--collectives", default=",".join(FLAT))
    parser.add_argument("--min", default="1K")
    parser.add_argument("--max", default="16M")
    parser.add_argument("--factor", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--budget", type=float, default=900.0, help="seconds for everything")
    parser.add_argument("--name", default="collectives", help="of the testbed")
    parser.add_argument("--cache", type=Path, help="folder for what is tuned, by MPI; default: a temporary one")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def limits_of(folder: str, args: argparse.Namespace) -> list[dict]:
    """Seconds of two processes that exchange a word, and that each add both buffers from shared memory."""
    from dovetail.collective.operators import AllReduce

    program = Path(folder) / "limits"
    subprocess.run(["cc", "-O3", "-march=native", HERE / "collectives" / "limits.c", "-o", program], check=True)
    sizes = [str(each.num_bytes) for each in AllReduce.points(min=args.min, max=args.max, factor=args.factor)]
    done = subprocess.run([program, str(args.rounds), *sizes], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def ask(args: argparse.Namespace, name: str, mpi: str, budget_s: float, cache: str) -> dict:
    """One collective on one MPI, by that MPI's own Python; {"failed": why} where it did not end well."""
    python = ENVIRONMENTS[mpi] / "bin" / "python"
    environment = os.environ | {"DOVETAIL_CACHE": str(Path(cache) / mpi)}
    if args.hosts:
        words = ["--env-dir", str(ENVIRONMENTS[mpi]), "--ppn", str(args.ppn)]
        environment["DOVETAIL_LAUNCH"] = testbed(args.name, "launcher", *words).strip()
    words = [sys.argv[0], *sys.argv[1:], "--worker", name, "--budget", str(budget_s)]
    failed, limit_s = "", 4 * budget_s + 300
    for _ in range(TRIES):
        code, said, error = ended([python, *words], environment, limit_s)
        if code is None:
            return {"failed": f"not ended after {limit_s:.0f} s"}
        if code == 0:
            return json.loads(said.splitlines()[-1])
        failed = error.strip()[-2000:]
        print(f"{name} on {mpi} failed: {failed}", file=sys.stderr)
    return {"failed": failed}


def ended(command: list, environment: dict[str, str], limit_s: float) -> tuple[int | None, str, str]:
    """Exit code, stdout and stderr of a command; None past the limit, when it is interrupted: it then ends its ranks,
    which would spin beside whatever is measured next."""
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            said, error = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=GRACE_S)
            process.kill()
            return None, "", ""
    return process.returncode, said, error


def worker(args: argparse.Namespace) -> dict:
    """Tune one collective with the MPI of this Python, then compare what was chosen with the library."""
    from dovetail.planner import operator_class
    from dovetail.run.mpi.executor import MpiExecutor
    from dovetail.tuner.collectives import point_of, tune_collective
    from dovetail.tuner.machines import machine_of

    begin, ranks = time.monotonic(), args.hosts * args.ppn or args.ranks or 2
    if args.worker == PROBE:
        return {"machine": machine_of(MpiExecutor(), ranks).name}
    nodes = args.hosts if args.ppn > 1 and args.hosts > 1 else None
    operators = operator_class(args.worker).points(min=args.min, max=args.max, factor=args.factor, nodes=nodes)
    with tempfile.TemporaryDirectory() as folder:
        budget = {"rounds": args.rounds, "budget_s": TUNING * args.budget}
        tuned = tune_collective(operators, ranks, out=Path(folder), executor=MpiExecutor(), **budget)
    tune_s = time.monotonic() - begin
    rows, facts = compared(tuned.contest.judged, args.rounds, max(args.budget - tune_s, 10.0))
    many = {
        point_of(each).num_bytes: point_of(each) for each in (tuned.at_multiple.judged if tuned.at_multiple else ())
    }
    for row in rows:
        beside, at = tuned.compared.get(row["num_bytes"]), many.get(row["num_bytes"])
        row["beside"] = beside and beside.to_json()
        row["at_multiple"] = at and {"tuned_s": at.measured_s, "library_s": at.library_s, "tuned_spread": at.spread}
    kept = {key: facts.get(key) for key in ("mpi", "cpu", "cores", "host", "thread_level")}
    return {
        "asked": len({operator.resolve({}, ranks)[0].num_bytes for operator in operators}),
        "rows": rows,
        "facts": kept,
        "tune_s": tune_s,
        "total_s": time.monotonic() - begin,
        "notes": list(tuned.notes),
    }


def compared(judged, rounds: int, budget_s: float) -> tuple[list[dict], dict]:
    """For each size the library, the choice, and the named rivals, in turn, in jobs that choose nothing."""
    from dovetail.core import RunError
    from dovetail.run.job import Job
    from dovetail.run.mpi.executor import MpiExecutor
    from dovetail.tuner.contest import pooled
    from dovetail.tuner.measure import LAUNCHES, LONG_S, Clock, groups, repeats_worth

    asked = [ways_of(each) for each in judged]
    seconds = [each.taken.median_s for each in judged]
    together = groups({at: (len(ways), seconds[at]) for at, ways in enumerate(asked)})
    rows, facts = [], {}

    def cost_s(group: list[int]) -> float:
        return 2.0 * LAUNCHES + (rounds + 2 * LAUNCHES) * sum(len(asked[at]) * seconds[at] for at in group)

    for place, (group, share_s) in enumerate(Clock(budget_s).shares(together, cost_s, 1.0)):
        variants = tuple(
            judged[at].entry.variant(schedule, repeats_worth(seconds[at]), check=True)
            for at in group
            for schedule in asked[at].values()
        )
        warmup = int(max(seconds[at] for at in group) < LONG_S)
        limit_s, count = share_s / LAUNCHES, -(-rounds // LAUNCHES)
        jobs = [Job(variants, count, warmup, place + launch, limit_s) for launch in range(LAUNCHES)]
        try:
            results = [MpiExecutor().execute(job) for job in jobs]
        except RunError as error:
            print(f"{', '.join(judged[at].entry.name for at in group)}: {error}", file=sys.stderr)
            continue
        found = iter([pooled(same) for same in zip(*(result.outcomes for result in results), strict=True)])
        rows += [row_of(judged[at], {choice: next(found) for choice in asked[at]}, results) for at in group]
        facts = results[-1].facts
    return rows, facts


def ways_of(judged) -> dict:
    """The schedules that are compared at one size, by choice: the library's first, what was taken, and the named."""
    from dovetail.store.selection import Choice

    operator = judged.entry.operator
    named = NAMED.get(operator.name, ()) if (operator.nodes or 1) > 1 else ()
    ways = [judged.entry.serial, judged.schedule, *map(operator.by, named)]
    return {Choice.of(schedule): schedule for schedule in ways}


def row_of(judged, outcomes: dict, results: list) -> dict:
    """One size: seconds and spread of the library, of the choice, and of the named ones."""
    from dovetail.run.load import Load
    from dovetail.store.selection import Choice
    from dovetail.tuner.collectives import point_of

    choice, point = Choice.of(judged.schedule), point_of(judged)
    library, ours = next(iter(outcomes.values())), outcomes[choice]
    plain = {each.algorithm: o.median_s for each, o in outcomes.items() if each == Choice(each.algorithm)}
    named = {name: plain[name] for names in NAMED.values() for name in names if name in plain}
    return {
        "num_bytes": point.num_bytes,
        **choice._asdict(),
        "library_s": library.median_s,
        "tuned_s": ours.median_s,
        "ratio": statistics.median(a / b for a, b in zip(library.seconds, ours.seconds, strict=True)),
        "library_spread": library.spread,
        "tuned_spread": ours.spread,
        "predicted_s": point.predicted_s,
        "when_tuned": {"tuned_s": point.measured_s, "library_s": point.library_s},
        "named_s": named,
        "num_wrong": sum(outcome.num_wrong or 0 for outcome in outcomes.values()),
        "rounds": sum(result.rounds for result in results),
        "disturbed": sum(result.disturbed for result in results),
        **Load.worst([result.load for result in results]).to_json(),
        "rivals": [{"choice": str(Choice.of(way)), "seconds": s} for way, s in judged.tried.items()],
    }


def save(out: Path, args: argparse.Namespace, found: dict, limits: list) -> dict:
    """The document so far, on disk."""
    described = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=HERE, capture_output=True, text=True)
    head = {
        "bench": "collectives",
        "label": "measured",
        "commit": described.stdout.strip(),
        "date": time.strftime("%F"),
    }
    where = {name: getattr(args, name) for name in ("hosts", "rate", "ppn", "nics", "mtu", "ranks")}
    document = {
        **head,
        **where,
        "cores": os.cpu_count(),
        "summary": summary(found, args.mpi.split(",")),
        "limits": limits,
        "collectives": found,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_suffix(".part")
    partial.write_text(json.dumps(document, indent=1) + "\n")
    partial.replace(out)
    return document


def summary(found: dict, mpis: list[str]) -> dict:
    """For each collective the worst and the best ratio of library to tuned: for each MPI, by rounds, and of the
    fastest library of all MPIs to the fastest tuned choice."""
    return {name: about(by_mpi, mpis) for name, by_mpi in found.items()}


def about(by_mpi: dict, mpis: list[str]) -> dict:
    """Ratios of seconds, library over tuned: above 1 the tuned is faster. `missing`: MPIs that lack a size.

    >>> names = ("num_bytes", "library_s", "tuned_s", "ratio", "num_wrong", "named_s")
    >>> rows = [dict(zip(names, (8, *times, 0, {}))) for times in ((2.0, 1.0, 2.0), (1.5, 1.5, 1.0))]
    >>> found = about({"a": {"asked": 1, "rows": rows[:1]}, "b": {"asked": 2, "rows": rows[1:]}}, ["a", "b"])
    >>> found["worst"], found["a"]["best"], found["missing"], found["holds"]
    (1.5, 2.0, ['b'], False)
    """
    rows = {mpi: {row["num_bytes"]: row for row in each.get("rows", ())} for mpi, each in by_mpi.items()}
    result: dict = {mpi: ratios([row["ratio"] for row in each.values()]) for mpi, each in rows.items()}
    sizes = sorted(set.intersection(*map(set, rows.values()))) if rows else []
    library, tuned = (
        [min(each[size][key] for each in rows.values()) for size in sizes] for key in ("library_s", "tuned_s")
    )
    both = ratios([a / b for a, b in zip(library, tuned, strict=True)])
    wrong = sum(row["num_wrong"] for each in rows.values() for row in each.values())
    result |= {"sizes": len(sizes), **both, "num_wrong": wrong}
    result["missing"] = [mpi for mpi in mpis if len(rows.get(mpi, ())) < by_mpi.get(mpi, {}).get("asked", 1)]
    result["holds"] = not result["missing"] and both["worst"] >= STANDARD and both["best"] >= GAIN and not wrong
    result["failed"] = {mpi: each["failed"][-200:] for mpi, each in by_mpi.items() if "failed" in each}
    result["named"] = {
        mpi: [[n, row["named_s"]] for n, row in each.items() if row["named_s"]] for mpi, each in rows.items()
    }
    return result


def ratios(values: list[float]) -> dict:
    return {"worst": min(values), "best": max(values)} if values else {"worst": 0.0, "best": 0.0}


def print_summary(name: str, mpi: str, by_mpi: dict) -> None:
    """What has just been found, for people."""
    found = by_mpi[mpi]
    if "failed" in found:
        print(f"{name} on {mpi} failed: {found['failed'][-300:]}", file=sys.stderr)
        return
    print(f"{name} on {mpi}, {found['total_s']:.0f} s", flush=True)
    for row in found["rows"]:
        times = f"library {row['library_s'] * 1e6:10.1f} µs  tuned {row['tuned_s'] * 1e6:10.1f} µs"
        print(
            f"  {row['num_bytes']:>9} B  {times}  {row['library_s'] / row['tuned_s']:5.2f}  {row['algorithm']}",
            flush=True,
        )
        if beside := row.get("beside"):
            names = ("installed", "multiple", "best_knobs", "ours")
            times = "  ".join(f"{name} {beside[name + '_s'] * 1e6:.2f}" for name in names)
            print(f"              {times} µs  {beside['knobs']}", flush=True)


def label(args: argparse.Namespace) -> str:
    if not args.hosts:
        return f"shared-memory-{args.ranks or 2}"
    nics = f"-{args.nics}nics" if args.nics > 1 else ""
    return f"{args.hosts}x{args.ppn}-{args.rate}{nics}"


def testbed(name: str, *words: str) -> str:
    """One testbed command; its output."""
    done = subprocess.run([TESTBED, "--name", name, *words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


if __name__ == "__main__":
    main()
