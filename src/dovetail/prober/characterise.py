"""characterise: measure what cutting computations costs (DIL), and how computation and traffic slow each other (CIL).

DIL (decomposition loss) and CIL (contention loss) are FiCCO's names; source: seed 001.
"""

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
from dovetail.prober.links import pairs_of
from dovetail.prober.operator_costs import BESIDE, CONTENTION_BYTES, MOST_MESSAGES, library_calls
from dovetail.prober.take import Budget, as_samples, take
from dovetail.run.executor import Executor
from dovetail.run.job import Job, JobResult, Variant
from dovetail.run.load import Load
from dovetail.run.options import RunOptions

MESSAGES = "messages"  # traffic by Dovetail's own messages, not by a collective of the library
PIECES = (8, 64)  # numbers of pieces for every way of cutting, as in FiCCO's paper
FINER = (2, 16)  # further numbers of pieces for the first way and for parts: points of their cost curves
STREAMED = 8  # pieces of the computation that runs beside traffic
ROUNDS = 5
TRIP_S = 5e-3  # least seconds of a cut in one run; shorter cuts are repeated
BESIDE_S = 10e-3  # least seconds of computation beside traffic
CAME = 4  # least number of messages that must fit into the computation
MOST_TRIPS = 64  # repeats
LEAST_POINTS = 3  # a cost curve needs measurements at this many amounts
NO_ENGINES = "Traffic by copy engines was not measured: ranks on CPUs have none."

Rows = dict[str, list[tuple[float, float, int]]]  # cost key -> amount, seconds, round


class Repeated(NamedTuple):
    """A Program that runs a computation cut into `pieces` along `way`, `trips` times. `rows`: its ops, by rank."""

    way: str
    pieces: int
    trips: int
    variant: Variant
    rows: dict[int, list[int]]
    works: list[Work]  # of each piece of each repeat


def characterise(
    executor: Executor, machine: Machine, points: Sequence[Subject], ranks: int | None = None, say: Say | None = None
) -> tuple[Machine, Characteristics]:
    """Measure what cutting computations costs (DIL), and how they and traffic slow each other (CIL).

    DIL = Σ seconds of the pieces / seconds of the whole, on the slowest rank.
    CIL = seconds of STREAMED pieces beside traffic / their seconds in isolation; likewise for the traffic.
    Runs to be compared are interleaved within one job. Source: seed 001 (IV-C, IV-D).

    Parameters
    ----------
    points : sequence of Subject
        Computations of one kind.
    executor, machine, ranks, say
        As in `probe_operator`.

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
        raise OperatorError("nothing to characterise", hint="give at least one shape")
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
    notes = () if "copies" in facts else (NO_ENGINES,)  # devices have some
    about = {"facts": facts, "rounds": ROUNDS, "disturbed": sum(result.disturbed for result in results)}
    machine = _with_curves(machine, costs, factors, about | load.to_json())
    machine = _with_calls(executor, machine, points, ranks)
    return machine, Characteristics(kind.name, ranks, kind.aspect, tuple(found), facts, load, notes)


def first_look(executor: Executor, points: Sequence[Subject], ranks: int) -> list[float]:
    """Return approximate seconds of each whole computation."""
    made = [repeated(point, point.ways()[0], ranks, 1, 2) for point in points]
    job = Job(tuple(replace(each.variant, name=f"{i}") for i, each in enumerate(made)), rounds=1)
    outcomes = executor.execute(job).outcomes
    return [min(programs.slowest(o.timelines[0], each.rows)) for o, each in zip(outcomes, made, strict=True)]


def cuts_of(point: Subject, ranks: int, whole_s: float) -> Iterator[Repeated]:
    """Yield the whole computation, its pieces along every way, and pieces of its parts."""
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
    """Return those of the `wanted` numbers of pieces into which a sample can be cut, in ascending order.

    >>> pieces_of(Sample("rows", 10, None), (1, 8, 64, 4))
    [1, 4, 8]
    """
    return [count for count in sorted(wanted) if count <= sample.most]


def trips_worth(least_s: float, whole_s: float) -> int:
    """Return how many repeats of `whole_s` seconds fill `least_s` seconds: 1 to MOST_TRIPS.

    >>> trips_worth(5e-3, 1e-3), trips_worth(5e-3, 1.0), trips_worth(5e-3, 1e-9)
    (5, 1, 64)
    """
    return min(max(ceil(least_s / max(whole_s, 1e-9)), 1), MOST_TRIPS)


def repeated(point: Subject, sample: Sample, ranks: int, pieces: int, trips: int) -> Repeated:
    """Return the Program of a sample cut into `pieces`, repeated `trips` times."""
    b = Builder("pieces", ranks)
    rows = sample.add(b, ranks, split(sample.most, pieces) * trips)
    program = b.build()
    workload = point.workload(program)
    works = op_works(program, workload)
    variant = Variant(f"{sample.label} in {pieces}", program, workload, RunOptions())
    return Repeated(sample.label, pieces, trips, variant, rows, [works[row] for row in rows[0]])


def _cut(point: Subject, made: Sequence[Repeated], result: JobResult, costs: Rows) -> Characteristic:
    """Return the DIL of each cut; add the pieces' seconds to `costs`, against units of the kernel and against FLOP."""
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
    """Add one timing per round for each kind of piece: the median over equal pieces."""
    for work in dict.fromkeys(works):
        alike = [place for place, other in enumerate(works) if other == work]
        for repeat, seconds in enumerate(np.median(durations[:, alike], axis=1).tolist()):
            costs[f"kernel:{work.key}"].append((work.units, seconds, repeat))
            costs[rate_key(work.key)].append((work.flops, seconds, repeat))


def _moved(work: Work) -> float:
    return work.num_bytes + work.shared_bytes


def pieces_s(point: Subject, found: Characteristic) -> float:
    """Return the seconds in isolation of the pieces that run beside traffic."""
    cut = found.dil(point.ways()[0].label, STREAMED)
    return found.whole.median * (STREAMED if cut is None else cut.median)


def _beside(
    executor: Executor, machine: Machine, point: Subject, ranks: int, alone_s: float, factors: Rows
) -> tuple[tuple[Beside, ...], JobResult]:
    """Measure pieces (`alone_s` seconds in isolation) beside messages and calls of several sizes.

    Adds every round's slowdowns to `factors`.
    """
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
    """Return the slowdowns of both sides, with one kind and size of traffic; add them to `factors`."""
    ending = "" if call is None else f":{LIBRARY}"
    net = [(repeat, ratio) for repeat, (_, ratio) in enumerate(ratios) if ratio is not None]
    factors[f"cil:compute{ending}"] += [(size, ratio, repeat) for repeat, (ratio, _) in enumerate(ratios)]
    factors[f"cil:net{ending}"] += [(size, ratio, repeat) for repeat, ratio in net]
    slowed = Ratio.of(ratio for _, ratio in net) if net else None
    return Beside(call or MESSAGES, size, Ratio.of(ratio for ratio, _ in ratios), slowed)


def _traffic_s(machine: Machine, ranks: int, call: str | None, size: int) -> float:
    """Return approximate seconds of one message or call."""
    model, kind = CostModel.of(machine), next(iter(pairs_of(machine)), "shm")
    keys = (f"exchange:{kind}",) if call is None else (f"{call}:{ranks}", f"all_reduce:{ranks}")
    key = next((key for key in keys if key in model), keys[-1])
    return float(model.seconds(key, size, extrapolate=True))


def _with_curves(machine: Machine, costs: Rows, factors: Rows, about: Mapping[str, object]) -> Machine:
    """Return the machine with a curve for each cost that was measured at LEAST_POINTS amounts, and each slowdown."""
    curves = {}
    for key, rows in costs.items():
        if len({x for x, _, _ in rows}) >= LEAST_POINTS:
            unit = "rows" if key.startswith("kernel:") else "flop"
            curves[key] = fit(as_samples(rows, unit, **about)).to_json()
    curves |= {key: fit_factor(as_samples(rows, "bytes", **about)).to_json() for key, rows in factors.items() if rows}
    return machine.with_costs(curves)


def _with_calls(executor: Executor, machine: Machine, points: Sequence[Subject], ranks: int) -> Machine:
    """Return the machine with the costs of library calls, up to the largest call that the points need."""
    if ranks == 1:
        return machine
    largest = max(points, key=lambda point: point.library_calls(ranks)[0].num_bytes)
    taken = take(executor, list(library_calls(machine, largest, ranks, Budget())))
    return machine.with_costs({key: fit(found).to_json() for key, found in taken.items()})
