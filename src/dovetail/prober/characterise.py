"""characterise: measure DIL and CIL of computations in isolation, interleaved, and the resulting cost curves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.core import OperatorError, Say
from dovetail.cost import CostModel, fit, fit_factor, rate_key
from dovetail.ir import Builder, Sample, Subject, Work, op_works
from dovetail.machine import LIBRARY, Machine
from dovetail.passes.regions import split
from dovetail.prober import programs
from dovetail.prober.characteristics import Beside, Characteristic, Characteristics, Cut, Ratio
from dovetail.prober.contention import stretch
from dovetail.prober.operator_costs import BESIDE, CONTENTION_BYTES, MOST_MESSAGES, library_calls
from dovetail.prober.take import Budget, as_samples, take
from dovetail.run.executor import Executor
from dovetail.run.job import Job, JobResult, Variant
from dovetail.run.load import Load
from dovetail.run.options import RunOptions

MESSAGES = "messages"  # traffic of our own
PIECES = (8, 64)  # into which every way is cut, as FiCCO's paper does
FINER = (2, 16)  # of the first way, and of parts: points of their curves
STREAMED = 8  # pieces of the computation beside which traffic goes on
ROUNDS = 5
TRIP_S = 5e-3  # of a cut in one run, at least: short ones are repeated
BESIDE_S = 10e-3  # of computation beside traffic, and at least as long as CAME messages
CAME = 4
MOST_TRIPS = 64
LEAST_POINTS = 3  # of a curve against units
NO_ENGINES = "Traffic by copy engines was not measured: ranks of CPUs have none."

Rows = dict[str, list[tuple[float, float, int]]]  # cost key -> amount, seconds, round


class Repeated(NamedTuple):
    """A computation cut into `pieces` along `way`, repeated `trips` times, as a Program to run."""

    way: str
    pieces: int
    trips: int
    variant: Variant
    rows: dict[int, list[int]]
    works: list[Work]  # of the pieces, each time


def characterise(
    executor: Executor, machine: Machine, points: Sequence[Subject], ranks: int | None = None, say: Say | None = None
) -> tuple[Machine, Characteristics]:
    """Measure what cutting computations costs (DIL), and how they and traffic slow each other (CIL).

    DIL is the summed time of the pieces over the time of the whole, on the slowest rank. CIL is the time of STREAMED
    pieces beside traffic over their time in isolation, and likewise of the traffic. Runs that are compared alternate
    within one job. Source: seed 001 (IV-C, IV-D).

    Parameters
    ----------
    executor : Executor
        Runs the ranks.
    machine : Machine
        Machine to add cost curves to.
    points : sequence of Subject
        Computations of one kind.
    ranks : int, optional
        Default: all of the machine.
    say : callable, optional
        Called with a text and the share done, 0 to 1.

    Returns
    -------
    machine : Machine
        With curves `kernel:…` of each computation and its parts, `flops:…`, `cil:…` against the bytes of a message or
        call, and the library's collectives.
    found : Characteristics
        The ratios, by computation.

    Raises
    ------
    OperatorError
        If `points` is empty.
    RunError
        If a rank fails.
    """
    ranks, notify = ranks or machine.ranks, say or (lambda what, done: None)
    if not points:
        raise OperatorError("nothing to characterise", hint="name a shape")
    notify("a first run", 0.3)
    wholes_s = first_look(executor, points, ranks)
    costs: Rows = defaultdict(list)
    factors: Rows = defaultdict(list)
    found, results = list[Characteristic](), list[JobResult]()
    for place, (point, whole_s) in enumerate(zip(points, wholes_s, strict=True)):
        notify(point.title, 0.35 + 0.6 * place / len(points))
        made = list(cuts_of(point, ranks, whole_s))
        results.append(executor.execute(Job(tuple(each.variant for each in made), ROUNDS, keep_all=True)))
        one = _cut(point, made, results[-1], costs)
        if ranks > 1:
            beside, result = _beside(executor, machine, point, ranks, pieces_s(point, one), factors)
            one = replace(one, beside=beside, disturbed=one.disturbed + result.disturbed)
            results.append(result)
        found.append(one)
    notify("the library's calls", 0.95)
    load, facts, kind = Load.worst([result.load for result in results]), results[0].facts, type(points[0])
    about = {"facts": facts, "rounds": ROUNDS, "disturbed": sum(result.disturbed for result in results)}
    machine = _with_curves(machine, costs, factors, about | load.to_json())
    machine = _with_calls(executor, machine, points, ranks)
    return machine, Characteristics(kind.name, ranks, kind.aspect, tuple(found), facts, load, (NO_ENGINES,))


def first_look(executor: Executor, points: Sequence[Subject], ranks: int) -> list[float]:
    """Return approximate seconds of each whole computation."""
    made = [repeated(point, point.ways()[0], ranks, 1, 2) for point in points]
    job = Job(tuple(replace(each.variant, name=f"{i}") for i, each in enumerate(made)), rounds=1)
    outcomes = executor.execute(job).outcomes
    return [min(programs.slowest(o.timelines[0], each.rows)) for o, each in zip(outcomes, made, strict=True)]


def cuts_of(point: Subject, ranks: int, whole_s: float) -> Iterator[Repeated]:
    """Yield the whole, its pieces by every way, and pieces of its parts."""
    trips = trips_worth(TRIP_S, whole_s)
    first, *others = point.ways()
    for pieces in pieces_of(first, (1, *FINER, *PIECES)):
        yield repeated(point, first, ranks, pieces, trips)
    for sample in others:
        for pieces in pieces_of(sample, PIECES):
            yield repeated(point, sample, ranks, pieces, trips)
    for sample in point.samples(ranks):
        for pieces in pieces_of(sample, (1, *FINER, *PIECES)):
            yield repeated(point, sample, ranks, pieces, trips * ranks)


def pieces_of(sample: Sample, wanted: Sequence[int]) -> list[int]:
    """Return the numbers of pieces into which a sample can be cut, rising.

    >>> pieces_of(Sample("rows", 10, None), (1, 8, 64, 4))
    [1, 4, 8]
    """
    return [count for count in sorted(wanted) if count <= sample.most]


def trips_worth(least_s: float, whole_s: float) -> int:
    """Return how many repeats fill the given time.

    >>> trips_worth(5e-3, 1e-3), trips_worth(5e-3, 1.0), trips_worth(5e-3, 1e-9)
    (5, 1, 64)
    """
    return min(max(ceil(least_s / max(whole_s, 1e-9)), 1), MOST_TRIPS)


def repeated(point: Subject, sample: Sample, ranks: int, pieces: int, trips: int) -> Repeated:
    """Return a sample cut into n pieces, repeated several times."""
    b = Builder("pieces", ranks)
    rows = sample.add(b, ranks, split(sample.most, pieces) * trips)
    program = b.build()
    workload = point.workload(program)
    works = op_works(program, workload)
    variant = Variant(f"{sample.label} in {pieces}", program, workload, RunOptions())
    return Repeated(sample.label, pieces, trips, variant, rows, [works[row] for row in rows[0]])


def _cut(point: Subject, made: Sequence[Repeated], result: JobResult, costs: Rows) -> Characteristic:
    """Return the DIL of each cut; add seconds of the pieces to `costs`, by kernel and by FLOP."""
    summed: list[NDArray[np.float64]] = []
    for each, outcome in zip(made, result.outcomes, strict=True):
        durations = np.array([programs.slowest(timeline, each.rows) for timeline in outcome.timelines])
        summed.append(np.median(durations.reshape(len(durations), each.trips, each.pieces).sum(axis=2), axis=1))
        _add_costs(costs, each.works, durations)
    whole, ways, cuts = made[0].works[0], [sample.label for sample in point.ways()], list[Cut]()
    for each, seconds in zip(made, summed, strict=True):
        if each.way in ways and each.pieces in PIECES:
            most = max(each.works[: each.pieces], key=lambda work: work.flops)
            cuts.append(Cut(each.way, each.pieces, Ratio.of(seconds / summed[0]), most.flops, _moved(most)))
    about = point.title, point.to_json(), whole.flops, _moved(whole), point.shape, Ratio.of(summed[0])
    return Characteristic(*about, tuple(cuts), (), result.rounds, result.disturbed)


def _add_costs(costs: Rows, works: Sequence[Work], durations: NDArray[np.float64]) -> None:
    """Add one timing per round of each kind of piece: the median of all equal ones."""
    for work in dict.fromkeys(works):
        alike = [place for place, other in enumerate(works) if other == work]
        for repeat, seconds in enumerate(np.median(durations[:, alike], axis=1).tolist()):
            costs[f"kernel:{work.key}"].append((work.units, seconds, repeat))
            costs[rate_key(work.key)].append((work.flops, seconds, repeat))


def _moved(work: Work) -> float:
    return work.num_bytes + work.shared_bytes


def pieces_s(point: Subject, found: Characteristic) -> float:
    """Return seconds of the pieces that run beside traffic; repeats a small number of pieces so that they last."""
    cut = found.dil(point.ways()[0].label, STREAMED)
    return found.whole.median * (STREAMED if cut is None else cut.median)


def _beside(
    executor: Executor, machine: Machine, point: Subject, ranks: int, alone_s: float, factors: Rows
) -> tuple[tuple[Beside, ...], JobResult]:
    """Measure pieces (`alone_s` in isolation) beside messages and calls of several sizes; add every round's factors."""
    sample, called = point.ways()[0], point.library_calls(ranks)[0].kind
    kinds = [(call, size) for call in (None, called) for size in CONTENTION_BYTES]
    each_s = [_traffic_s(machine, ranks, *kind) for kind in kinds]
    trips = trips_worth(max(BESIDE_S, CAME * max(each_s)), alone_s)
    pieces = split(sample.most, min(STREAMED, sample.most)) * trips
    alone = programs.stream(point.workload, sample, ranks, pieces, 0, 0)
    pairs = []
    for (call, size), one_s in zip(kinds, each_s, strict=True):
        count = int(min(max(BESIDE * trips * alone_s / one_s, CAME), MOST_MESSAGES))
        pairs.append([programs.stream(point.workload, sample, ranks, of, size, count, call) for of in ((), pieces)])
    variants = [alone.variant, *(stream.variant for pair in pairs for stream in pair)]
    result = executor.execute(Job(tuple(variants), ROUNDS, keep_all=True))
    by_name = {outcome.name: outcome.timelines for outcome in result.outcomes}
    beside = []
    for (call, size), (quiet, both) in zip(kinds, pairs, strict=True):
        streams = alone, quiet, both
        rounds = zip(*(by_name[stream.variant.name] for stream in streams), strict=True)
        ratios = [stretch(streams, timelines) for timelines in rounds]
        beside.append(_factored(call, size, ratios, factors))
    return tuple(beside), result


def _factored(call: str | None, size: int, ratios: Sequence[tuple[float, float | None]], factors: Rows) -> Beside:
    """Return the slow-downs by one kind of traffic and size, over rounds, and add both to their curves."""
    ending = "" if call is None else f":{LIBRARY}"
    net = [(repeat, ratio) for repeat, (_, ratio) in enumerate(ratios) if ratio is not None]
    factors[f"cil:compute{ending}"] += [(size, ratio, repeat) for repeat, (ratio, _) in enumerate(ratios)]
    factors[f"cil:net{ending}"] += [(size, ratio, repeat) for repeat, ratio in net]
    slowed = Ratio.of(ratio for _, ratio in net) if net else None
    return Beside(call or MESSAGES, size, Ratio.of(ratio for ratio, _ in ratios), slowed)


def _traffic_s(machine: Machine, ranks: int, call: str | None, size: int) -> float:
    """Return approximate seconds of one message or call."""
    model, kind = CostModel.of(machine), "net" if machine.num_nodes > 1 else "shm"
    keys = (f"exchange:{kind}",) if call is None else (f"{call}:{ranks}", f"all_reduce:{ranks}")
    key = next((key for key in keys if key in model), keys[-1])
    return float(model.seconds(key, size, extrapolate=True))


def _with_curves(machine: Machine, costs: Rows, factors: Rows, about: Mapping[str, object]) -> Machine:
    """Return the machine with a curve for each cost measured at enough amounts, and for each factor."""
    curves = {}
    for key, rows in costs.items():
        if len({x for x, _, _ in rows}) >= LEAST_POINTS:
            unit = "rows" if key.startswith("kernel:") else "flop"
            curves[key] = fit(as_samples(rows, unit, **about)).to_json()
    curves |= {key: fit_factor(as_samples(rows, "bytes", **about)).to_json() for key, rows in factors.items() if rows}
    return machine.with_costs(curves)


def _with_calls(executor: Executor, machine: Machine, points: Sequence[Subject], ranks: int) -> Machine:
    """Return the machine with the cost of the library's call, up to the largest that the points use."""
    if ranks == 1:
        return machine
    largest = max(points, key=lambda point: point.library_calls(ranks)[0].num_bytes)
    taken = take(executor, list(library_calls(machine, largest, ranks, Budget())))
    return machine.with_costs({key: fit(found).to_json() for key, found in taken.items()})
