"""Who chooses best: FiCCO's rule, MC²'s rule, or simulation? Judged by the search of all schedules on the true machine.

    bench/products/choice.py [--seeds S,T,…] [--fit-seed F] [--count N] [--operators A,B] [--out FILE]

Every machine here pretends: its costs are known, so that every schedule's time is. A chooser sees how the machine is
wired, and what a probe with noise measures there. Scenarios are the published ones (FiCCO's g1 to g16, on the preset
`mi300x-8`) and as many drawn for each operator, on meshes, switches and tori in turn. FiCCO's threshold T, which its
paper leaves out, is fitted on scenarios of another seed, as is nothing else here. Everything in the file is predicted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what benches share

from tuned import HERE, OPERATORS

from dovetail.ir import Heuristic
from dovetail.matmul.ficco import LITERAL_S, MEMORY_S, PICKED, RULE, Outcome, best_threshold
from dovetail.planner import operator_class
from dovetail.report.choices import scenarios_table, score_table
from dovetail.tuner.choices import NOISE, OURS, TIE, Compared, compare, heuristics_of, scores
from dovetail.tuner.scenarios import Scenario, drawn, published

FITTED = "FiCCO, fitted to others"
BY_RULE = ("all_gather_matmul", "all_to_all_matmul")  # operators of which FiCCO's rule speaks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="20261122", help="of the scenarios drawn, with commas")
    parser.add_argument("--fit-seed", type=int, default=1, help="of the scenarios that T is fitted on")
    parser.add_argument("--count", type=int, default=24, help="scenarios of each operator and seed, and to fit T on")
    parser.add_argument("--operators", default=",".join(OPERATORS))
    parser.add_argument("--jobs", type=int, default=1, help="scenarios at once")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "choice.json")
    args = parser.parse_args()
    kinds = [operator_class(name) for name in args.operators.split(",")]
    seeds = [int(seed) for seed in args.seeds.split(",")]
    with ProcessPoolExecutor(args.jobs) as pool:
        known = [each for name in BY_RULE for each in drawn(operator_class(name), args.count, args.fit_seed)]
        threshold_s = fitted(list(pool.map(partial(judged, None), [(args.fit_seed, each) for each in known])))
        print(f"T fitted on {len(known)} scenarios of seed {args.fit_seed}: {threshold_s:.3g} s")
        sets = {"published": [(seeds[0], each) for kind in kinds for each in published(kind)]}
        sets["drawn"] = [(seed, each) for seed in seeds for kind in kinds for each in drawn(kind, args.count, seed)]
        found: dict[str, list[Compared]] = {}
        for name, some in sets.items():
            found[name] = list(pool.map(partial(judged, threshold_s), some))
            save(args, threshold_s, found)
    for which, some in found.items():
        print(f"\n{which}\n", scenarios_table(some), score_table(scores(some)), sep="\n")
    print("", score_table(scores([*found["published"], *found["drawn"]])), planning(found), sep="\n")


def judged(threshold_s: float | None, drawn_by: tuple[int, Scenario]) -> Compared:
    """Compare one scenario, with the seed of its probe's noise; print progress."""
    seed, scenario = drawn_by
    return seen(compare(scenario, seed=seed, rules=rules_of(scenario.operator, threshold_s)))


def seen(each: Compared) -> Compared:
    """Compare scenarios; print progress."""
    ours = next(pick for pick in each.picks if pick.chooser == OURS)
    verdict = "" if ours.right else f" wrong, for {ours.best_family}"
    print(f"{each.scenario.name} {each.scenario.operator.title}: {ours.family} +{ours.regret:.2%}{verdict}", flush=True)
    return each


def rules_of(operator: Any, threshold_s: float | None) -> tuple[Heuristic, ...]:
    """The rules that the operator's class knows, and FiCCO's with the fitted threshold."""
    known = heuristics_of(operator)
    if threshold_s is None or not any(rule.family == RULE for rule in known):
        return known
    return (Heuristic(FITTED, RULE, {"ficco_threshold_s": threshold_s}, PICKED), *known)


def fitted(some: Sequence[Compared]) -> float:
    """The threshold by which the rule's choices take least, by geometric mean, where each family's best is taken."""

    return best_threshold([Outcome(sizes_of(each), each.families) for each in some])


def sizes_of(each: Compared) -> tuple[int, int, float, float]:
    """What the rule goes by; the literal reading's values are those of any."""
    rule = next(pick.schedule for pick in each.picks if pick.schedule and "peak_s" in pick.schedule.steps)
    m, k, flop, peak_s = (float(rule.steps[name]) for name in ("m", "k", "flop", "peak_s"))
    return int(m), int(k), flop, flop / peak_s


def planning(found: dict[str, list[Compared]]) -> str:
    """Seconds of CPU that a plan took."""
    each = [one.planning_s for some in found.values() for one in some]
    return f"planning, s of CPU an operator: median {statistics.median(each):.2f}, at most {max(each):.2f}"


def save(args: argparse.Namespace, threshold_s: float, found: dict[str, list[Compared]]) -> None:
    described = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    head: dict[str, Any] = {"bench": "choice", "label": "predicted", "machine": machine}
    head |= {"commit": described.stdout.strip(), "date": time.strftime("%Y-%m-%d")}
    head |= {"seeds": args.seeds, "fit_seed": args.fit_seed, "noise": NOISE, "tie": TIE}
    head |= {"thresholds_s": {"literal": LITERAL_S, "by memory": MEMORY_S, "fitted": threshold_s}}
    sets = {
        name: {"scores": [each.to_json() for each in scores(some)], "scenarios": [each.to_json() for each in some]}
        for name, some in found.items()
    }
    args.out.write_text(json.dumps({**head, **sets}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
