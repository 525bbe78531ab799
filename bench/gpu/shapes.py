"""FiCCO's shapes g1 to g16 on one device: what cutting their products costs, and which schedule wins where."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dovetail.core import DovetailError
from dovetail.ir import Schedule
from dovetail.matmul import AllGatherMatmul
from dovetail.matmul.alone import ProductAlone
from dovetail.matmul.ficco import GPUS, LITERAL_S, MEMORY_S, SCENARIOS, TRANCHES, Outcome, best_threshold, ficco_rule
from dovetail.planner import plan
from dovetail.planner.costs import Costs
from dovetail.planner.search import ranked_schedules
from dovetail.prober import characterise, probe_operator
from dovetail.prober.characteristics import Characteristics
from dovetail.prober.take import Budget
from dovetail.report.characteristics import write_characteristics
from dovetail.report.summary import Provenance
from dovetail.run.cuda.executor import CudaExecutor
from dovetail.run.cuda.runs import ONE_RANK, StreamsOptions
from dovetail.run.job import Job, Variant
from dovetail.run.options import RunOptions

Rows = Iterator[dict[str, Any]]
PEAK = 989e12  # FLOP a second of bfloat16, by the datasheet: what it is only scales the rule's threshold
GRAIN = GPUS * 64  # rows and depths stay multiples, so that FiCCO's cuts fit
ALONE_BYTES, GATHERED_BYTES = 1 << 30, 1 << 27  # a product with its operands; what one rank gathers
ROUNDS = 8  # the first half chooses, the second judges
BF16 = 2


def scaled(m: int, k: int, n: int, most_bytes: int, whole: bool) -> tuple[int, int, int]:
    """M and K smaller by one factor, so that their ratio stays and n does, which balances product against transfer;
    `whole`: B and C count, too.

    >>> scaled(16384, 131072, 2048, 1 << 27, False)
    (3072, 23040, 2048)
    """
    share = 1.0
    while True:
        rows, depth = (max(round(share * each / GRAIN), 1) * GRAIN for each in (m, k))
        held = rows * depth + (depth * n + rows * n if whole else 0)
        if BF16 * held <= most_bytes or rows == depth == GRAIN:
            return rows, depth, n
        share *= 0.95


def pieces(setting: Any) -> Rows:
    """DIL of products alone: what cutting each of the shapes into pieces costs."""
    yield from of_way(setting, "alone", 1, CudaExecutor, points_of(setting))


def points_of(setting: Any) -> list[tuple[str, ProductAlone]]:
    dtype = "float32" if setting.small else "bfloat16"
    points = [("small", ProductAlone(64, 64, 64, dtype))]
    if not setting.small:
        sizes = {name: scaled(m, k, n // GPUS, ALONE_BYTES, True) for name, (m, n, k) in SCENARIOS.items()}
        points = [(name, ProductAlone(m, k, n, dtype)) for name, (m, k, n) in sizes.items()]
    return points


def beside(setting: Any) -> Rows:
    """CIL of products beside copies: by the driver, by kernels, and to and from the host; of every third shape."""
    kernel = {blocks: StreamsOptions(copies="kernel", copy_blocks=blocks) for blocks in (8, 32)}
    overlapping = StreamsOptions(graph=False, copies="overlapping")
    ways: dict[str, Callable[[], CudaExecutor]] = {
        "beside host copies both ways": lambda: CudaExecutor(real=0),
        "beside memcpy": CudaExecutor,
        "beside 8 threadblocks": lambda: CudaExecutor(options=kernel[8]),
        "beside 32 threadblocks": lambda: CudaExecutor(options=kernel[32]),
        "beside copies asked to overlap": lambda: CudaExecutor(options=overlapping),
    }
    for way, make in ways.items():
        yield from of_way(setting, way, 2, make, points_of(setting)[::3])


def of_way(
    setting: Any, way: str, ranks: int, make: Callable[[], CudaExecutor], points: Sequence[tuple[str, ProductAlone]]
) -> Rows:
    """One shape at a time, so that a cut loses one; each with memory of its own."""
    found: list[Characteristics] = []
    for name, point in points:
        if setting.left_s > 3:
            executor = make()
            machine = setting.linked(executor, ranks)
            found.append(characterise(executor, machine, [point], ranks)[1])
            yield from one_piece(way, name, ranks, found[-1])
    write_page(setting, way, found)


def one_piece(way: str, name: str, ranks: int, each: Characteristics) -> Rows:
    for one in each.found:
        cuts = ", ".join(f"{c.way} in {c.pieces} {c.dil.median:.2f}" for c in one.cuts)
        beside = ", ".join(f"{b.traffic} of {b.num_bytes} B {b.compute.median:.2f}" for b in one.beside)
        line = f"{way}, {name} {one.title}: {cuts if ranks == 1 else beside}"
        yield {"name": way, "scenario": name, "title": one.title, "characteristics": each.to_json(), "line": line}


def write_page(setting: Any, way: str, found: Sequence[Characteristics]) -> None:
    """The plots of all products of one way, where what draws them is installed."""
    if not found:
        return
    every = replace(found[0], found=tuple(one for each in found for one in each.found))
    try:
        place = setting.pages / f"pieces-{way.replace(' ', '-')}.html"
        write_characteristics(place, every, Provenance("bench/gpu/run", every.facts.get("cpu", ""), setting.commit))
    except (ImportError, DovetailError) as error:
        print(f"no page of {way}: {error}", flush=True)


@dataclass(frozen=True)
class Contest:
    """What each family's best schedule took for one shape, in rounds; and what simulation chose."""

    name: str
    operator: AllGatherMatmul
    seconds: dict[str, tuple[float, ...]]  # by family
    simulated: str
    sizes: tuple[int, int, float, float]  # as the static rule takes them

    @property
    def judged_s(self) -> dict[str, float]:
        """By the second half of the rounds."""
        return {family: statistics.median(each[len(each) // 2 :]) for family, each in self.seconds.items()}

    @property
    def measured(self) -> str:
        """The family that was fastest in the first half."""
        first = {family: statistics.median(each[: max(len(each) // 2, 1)]) for family, each in self.seconds.items()}
        return min(first, key=lambda family: first[family])

    def regret(self, family: str) -> float:
        """By which share it takes longer than the best; of what was not measured, that of serial."""
        taken = self.judged_s
        return taken.get(family, taken["serial"]) / min(taken.values()) - 1

    def row(self) -> dict[str, Any]:
        taken = self.judged_s
        best = min(taken, key=lambda family: taken[family])
        line = (
            f"{self.name} {self.operator.m}x{self.operator.k}x{self.operator.n}: {best} {1e3 * taken[best]:.3f} ms, "
            f"serial {1e3 * taken['serial']:.3f} ms; simulation {self.simulated} +{self.regret(self.simulated):.1%}, "
            f"measured {self.measured} +{self.regret(self.measured):.1%}"
        )
        about = {"scenario": self.name, "operator": self.operator.to_json(), "best": best, "families": taken}
        picks = {"simulation": self.simulated, "measured": self.measured}
        return {"label": ONE_RANK, **about, "seconds": self.seconds, "picks": picks, "line": line}


def schedules(setting: Any) -> Rows:
    """Which schedule wins where, one rank real, against simulation and against FiCCO's static rule."""
    operators = [("small", AllGatherMatmul(64, 64, 64, "float16"))]
    if not setting.small:
        sizes = {name: scaled(m, k, n, GATHERED_BYTES, False) for name, (m, n, k) in SCENARIOS.items()}
        operators = [(name, AllGatherMatmul(m, k, n, "bfloat16")) for name, (m, k, n) in sizes.items()]
    held = []
    for name, operator in operators:
        if setting.left_s > 8:
            held.append(contest(setting, name, operator, 2 if setting.small else GPUS))
            yield held[-1].row()
    if held:
        yield from regrets(held)


def contest(setting: Any, name: str, operator: AllGatherMatmul, ranks: int) -> Contest:
    """Every family's best by simulation on the probed device, run in turn."""
    executor = CudaExecutor(real=0)
    budget = Budget(1e-3 if setting.small else 0.01, 2, 20)
    machine = probe_operator(executor, setting.linked(executor, ranks), operator, ranks, budget)
    costs, _ = Costs.of(operator, machine, ranks, {}, extrapolate=True)
    chosen = plan(operator, machine, ranks=ranks, extrapolate=True).schedule
    firsts: dict[str, Schedule] = {operator.serial(ranks).family: operator.serial(ranks)}
    for each in ranked_schedules(costs):
        firsts.setdefault(each.family, each.schedule)
    firsts |= {chosen.family: chosen}
    quiet = RunOptions(spans=False)
    programs = {family: operator.program(schedule, ranks) for family, schedule in firsts.items()}
    variants = tuple(
        Variant(family, made, operator.workload(made, firsts[family]), quiet) for family, made in programs.items()
    )
    result = executor.execute(Job(variants, rounds=2 if setting.small else ROUNDS, budget_s=max(setting.left_s - 3, 2)))
    seconds = {outcome.name: outcome.seconds for outcome in result.outcomes}
    flops = 2.0 * operator.m * operator.k * operator.n / ranks
    return Contest(name, operator, seconds, chosen.family, (operator.m, operator.k, flops, PEAK))


def regrets(held: Sequence[Contest]) -> Rows:
    """Each chooser over all shapes; the rule's threshold as fitted to these, as the text has it, and by memory."""
    outcomes = [Outcome(each.sizes, each.judged_s) for each in held]
    known = [each for each in outcomes if set(TRANCHES) <= set(each.families)]
    thresholds = {"literal": LITERAL_S, "by memory": MEMORY_S} | ({"fitted": best_threshold(known)} if known else {})
    choosers = {"measured": [each.measured for each in held], "simulation": [each.simulated for each in held]}
    for name, threshold_s in thresholds.items():
        choosers[f"FiCCO, {name}"] = [ficco_rule(*each.sizes, threshold_s).family for each in held]
    for name, picks in choosers.items():
        lost = [each.regret(pick) for each, pick in zip(held, picks, strict=True)]
        mean = math.exp(statistics.fmean(math.log1p(each) for each in lost)) - 1
        threshold = thresholds.get(name.removeprefix("FiCCO, "))
        line = f"{name}: regret {mean:.1%} by geometric mean, {max(lost):.1%} at worst, of {len(lost)} shapes"
        about = {"chooser": name, "regret": mean, "worst": max(lost), "shapes": len(lost)}
        yield {**about, "threshold_s": threshold, "line": line}
