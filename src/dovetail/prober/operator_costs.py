"""operator_costs: measure an operator's computations, its collectives, and the contention between both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from dovetail.core import Say
from dovetail.cost import CostModel, Curve, Samples, Segment, fit, fit_factor
from dovetail.ir import Operator, Sample, Subject, work_keys
from dovetail.machine import Machine
from dovetail.prober import programs
from dovetail.prober.contention import stretch
from dovetail.prober.take import ROUNDS, Budget, as_samples, calmest, medians_s, should_probe_again, take
from dovetail.run.executor import Executor
from dovetail.run.job import Job, Outcome

CONTENTION_BYTES = (32 << 10, 128 << 10, 512 << 10)  # message sizes that are streamed beside computations
LARGER = 4  # each further message size is this multiple of the one before, up to the operator's own collective
LEAST_MESSAGES = 4
MOST_AGAIN = 16  # most repeats of a computation until LEAST_MESSAGES are complete
LEAST_AMOUNT = 128  # smallest absolute amount (rows of a product): shorter tiles are limited by memory
LEAST_CALL = 64 << 10  # bytes
PIECES = 10  # most pieces of the computation that runs beside messages
LEAST_PIECES, ENOUGH_S = 3, 0.06  # fewest pieces, and the seconds that all pieces should take together
BESIDE = 1.6  # messages are streamed for this multiple of the computation's seconds
MOST_MESSAGES = 2000


def probe_operator(
    executor: Executor,
    machine: Machine,
    operator: Operator,
    ranks: int | None = None,
    budget: Budget | None = None,
    say: Say | None = None,
) -> Machine:
    """Measure the costs of one operator: its computations, its collectives, and contention between both.

    The loss by cutting (DIL) follows from a computation's cost curve. The slowdowns by contention (CIL: `cil:compute`,
    `cil:net`) are measured beside a stream of messages; the seeds assume 1.15. Source: seed 000 (steps 2-4 of its
    preparations), seed 001 (DIL, CIL).

    Parameters
    ----------
    executor : Executor
        Runs the ranks.
    machine : Machine
        Machine to add cost curves to.
    operator : Operator
        The operator whose costs to measure.
    ranks : int, optional
        Default: all of the machine.
    budget : Budget, optional
        Time that each measurement may take.
    say : callable, optional
        Called with a text and the share done, 0 to 1.

    Returns
    -------
    Machine
        With seconds of computations against their amount (rows of a product), of collectives up to their whole size,
        and, for two ranks or more, `cil:compute` and `cil:net`.

    Raises
    ------
    RunError
        If a rank fails.
    """
    ranks, notify, afford = ranks or machine.ranks, say or (lambda what, done: None), budget or Budget()
    samples = operator.samples(ranks)
    if not samples:
        notify("the library's calls", 0.3)
        return _with_calls(executor, _with_nothing_to_compute(machine, operator, ranks), operator, ranks, afford)
    notify(", ".join(dict.fromkeys(sample.label for sample in samples)), 0.3)
    machine = _with_computations(executor, machine, operator, ranks, samples, afford)
    if ranks == 1:
        return machine
    notify("compute beside messages", 0.7)
    return _with_contention(executor, machine, operator, ranks, samples[0], afford)


def spot_check_operator(
    executor: Executor, machine: Machine, operator: Operator, ranks: int, tolerance: float = 0.1, rounds: int = ROUNDS
) -> bool:
    """Return whether each whole computation of an operator still takes the seconds that the machine's costs predict.

    It may not if the processor's clock, its load or the operator's code has changed. `tolerance`: allowed relative
    difference. Raises RunError if a rank fails.
    """
    asked = [programs.computations(operator, sample, ranks, sample.most, 1) for sample in operator.samples(ranks)]
    if not asked:
        return True
    if any(each.key not in CostModel.of(machine) for each in asked):
        return False
    found = take(executor, [each._replace(key=f"kernel:{place}") for place, each in enumerate(asked)], rounds)
    if should_probe_again(machine.costs, found):
        return False
    taken, model = [float(found[f"kernel:{place}"].medians[0]) for place in range(len(asked))], CostModel.of(machine)
    expected = [float(model.seconds(each.key, each.x, extrapolate=True)) for each in asked]
    return all(abs(s - usual_s) <= tolerance * usual_s for s, usual_s in zip(taken, expected, strict=True))


def _with_nothing_to_compute(machine: Machine, operator: Operator, ranks: int) -> Machine:
    """Return the machine with a cost of 0 for each computation of an operator that computes nothing."""
    serial = operator.serial(ranks)
    program = operator.program(serial, ranks)
    free = Curve("rows", (Segment(0.0, 0.0, 0.0),), label="prior", provenance={"source": "nothing to compute"})
    return machine.with_costs(
        {f"kernel:{key}": free.to_json() for key in work_keys(program, operator.workload(program, serial))}
    )


def _with_calls(executor: Executor, machine: Machine, operator: Operator, ranks: int, budget: Budget) -> Machine:
    """Add the costs of an operator's library calls, if they move any bytes."""
    if ranks == 1 or not any(call.num_bytes for call in operator.library_calls(ranks)):
        return machine
    taken = take(executor, list(library_calls(machine, operator, ranks, budget)))
    return machine.with_costs({key: fit(found).to_json() for key, found in taken.items()})


def _with_computations(
    executor: Executor, machine: Machine, operator: Operator, ranks: int, samples: Sequence[Sample], afford: Budget
) -> Machine:
    """Add the cost curves of the computations, under each rank's key, and of the collectives.

    Measures everything in two jobs, because starting ranks takes longer than most measurements.
    """
    whole = medians_s(executor, [programs.computations(operator, each, ranks, each.most, 1) for each in samples])
    measured = [
        [
            programs.computations(operator, sample, ranks, amount, _worth(afford, whole_s, amount, sample.most))
            for amount in amounts(sample.most)
        ]
        for sample, whole_s in zip(samples, whole, strict=True)
    ]
    numbered = [m._replace(key=f"kernel:{place}") for place, row in enumerate(measured) for m in row]
    taken = take(executor, [*numbered, *library_calls(machine, operator, ranks, afford)])
    fitted: dict[str, dict[str, Any]] = {}
    for place, (first, *_) in enumerate(measured):
        curve, variant = fit(taken.pop(f"kernel:{place}")).to_json(), first.variant
        keys = [first.key, *(f"kernel:{key}" for key in work_keys(variant.program, variant.workload))]
        fitted |= dict.fromkeys(keys, curve)
    return machine.with_costs(fitted | {key: fit(found).to_json() for key, found in taken.items()})


def amounts(most: int, count: int = 12, least: int = LEAST_AMOUNT) -> list[int]:
    """Return amounts to measure: `count` from most / 64 to `most`, and absolute ones from `least` to most / 64.

    >>> amounts(2048)
    [32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048]
    >>> amounts(131072, 4)
    [128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 131072]
    """
    step = max(1, most // 64)
    grid = {step, most}
    while step < most and len(grid) < count:
        grid |= {step, min(most, step * 3 // 2)}
        step *= 2
    small = least
    while small < most // 64:
        grid |= {small, small * 3 // 2}
        small *= 2
    return sorted(grid)


def _worth(budget: Budget, whole_s: float, amount: int, most: int) -> int:
    """Return how often to run an amount within the budget, given the seconds `whole_s` of the amount `most`."""
    return max(2, min(budget.trips(whole_s * amount / most) - 1, max(8, 2 * most // amount)))


def library_calls(
    machine: Machine, operator: Operator | Subject, ranks: int, budget: Budget
) -> Iterator[programs.Measurement]:
    """Yield measurements of an operator's library calls, at the sizes of its parts, up to the whole."""
    model, known = CostModel.of(machine), f"all_reduce:{ranks}"
    for kind, num_bytes in operator.library_calls(ranks):
        sizes = {max(4 * ranks, size) for size in amounts(max(num_bytes, 1), 8, LEAST_CALL)} | {1 << 10, LEAST_CALL}
        key = f"{kind}:{ranks}" if f"{kind}:{ranks}" in model else known
        for size in sorted(sizes):
            trips = budget.trips(float(model.seconds(key, size, extrapolate=True)))
            yield programs.library(kind, ranks, size, trips)


@dataclass(frozen=True)
class _Beside:
    """One message size of the contention probe: slowdowns of both sides, and the share of the shorter one hidden."""

    num_bytes: int
    compute: Samples | None
    net: Samples | None
    overlap: float


def _with_contention(
    executor: Executor, machine: Machine, operator: Operator, ranks: int, sample: Sample, budget: Budget
) -> Machine:
    """Add `cil:compute` and `cil:net`: seconds beside the other side / seconds in isolation, by message size."""
    sizes = contention_sizes(
        machine, max((call.num_bytes for call in operator.library_calls(ranks)), default=0), budget
    )
    asked = [_streams(machine, operator, ranks, sample, size) for size in sizes]
    variants = tuple(stream.variant for streams in asked for stream in streams)
    result = calmest(executor, Job(variants, rounds=ROUNDS, keep_all=True))
    outcomes = iter(result.outcomes)
    load: dict[str, Any] = dict(result.load.to_json())
    found = [_beside(size, streams, list(islice(outcomes, 3))) for size, streams in zip(sizes, asked, strict=True)]
    curves = {}
    for key, parts in (("cil:compute", [f.compute for f in found]), ("cil:net", [f.net for f in found])):
        rows = [(x, s, r) for p in parts if p for x, s, r in zip(p.x, p.seconds, p.repeat, strict=True)]
        if rows:
            curves[key] = fit_factor(as_samples(rows, **load)).to_json()
    return machine.with_costs(curves, overlap_fraction={str(f.num_bytes): f.overlap for f in found})


def contention_sizes(machine: Machine, most: int, budget: Budget) -> list[int]:
    """Return message sizes, in bytes, to stream beside computations.

    CONTENTION_BYTES, then larger sizes up to `most` (the largest call of the operator) while LEAST_MESSAGES of a size
    fit the budget.
    """
    model, key, sizes = CostModel.of(machine), f"exchange:{machine.route(0, 1)[0]}", list(CONTENTION_BYTES)
    while sizes[-1] < most:
        size = min(LARGER * sizes[-1], most)
        if not budget.allows(LEAST_MESSAGES * float(model.seconds(key, size, extrapolate=True))):
            break
        sizes.append(size)
    return sizes


def _least_piece(piece_s: Callable[[int], float], amount: int, limit_s: float) -> int:
    """Return an amount, at most `amount` and at least 1, whose computation takes no longer than `limit_s`.

    >>> _least_piece(lambda amount: 1e-3 * amount, 100, 0.5), _least_piece(lambda amount: 1 + 1e-3 * amount, 100, 0.5)
    (100, 1)
    """
    while amount > 1 and (seconds := piece_s(amount)) > limit_s:
        amount = max(1, min(amount - 1, int(amount * limit_s / seconds)))
    return amount


def _streams(machine: Machine, operator: Operator, ranks: int, sample: Sample, size: int) -> list[programs.Stream]:
    """Return the programs of computations, of messages of one size, and of both together."""
    model, largest = CostModel.of(machine), max(1, sample.most // PIECES)
    one = programs.computations(operator, sample, ranks, largest, 1)
    kind = machine.route(0, 1)[0]
    message_s = sum(float(model.seconds(key, size, extrapolate=True)) for key in (f"exchange:{kind}", "reduce"))

    def piece_s(amount: int) -> float:
        return float(model.seconds(one.key, amount, extrapolate=True))

    piece = _least_piece(piece_s, largest, MOST_MESSAGES * message_s / BESIDE / PIECES)
    pieces = [piece] * int(np.clip(np.ceil(ENOUGH_S / max(piece_s(piece), 1e-9)), LEAST_PIECES, PIECES))
    compute_s = len(pieces) * piece_s(piece)
    again = int(np.clip(np.ceil(LEAST_MESSAGES * message_s / compute_s), 1, MOST_AGAIN)) if compute_s else 1
    pieces, compute_s = pieces * again, compute_s * again
    count = int(min(max(BESIDE * compute_s / message_s, LEAST_MESSAGES), MOST_MESSAGES))
    ways: tuple[tuple[list[int], int], ...] = ((pieces, 0), ([], count), (pieces, count))
    cut = machine.slice_bytes
    held = programs.workload_of(operator, sample, ranks, piece)
    return [programs.stream(held, sample, ranks, each, size, count, slice_bytes=cut) for each, count in ways]


def _beside(size: int, streams: Sequence[programs.Stream], outcomes: Sequence[Outcome]) -> _Beside:
    """Return the slowdowns, by round, from the outcomes of `_streams`."""
    rows = []
    for repeat, timelines in enumerate(zip(*(outcome.timelines for outcome in outcomes), strict=True)):
        compute, net = stretch(streams, timelines)
        rows.append((compute, net, repeat))
    compute_rows = [(float(size), compute, repeat) for compute, _, repeat in rows]
    net_rows = [(float(size), net, repeat) for _, net, repeat in rows if net is not None]
    alone_s, stream_s, both_s = (outcome.median_s for outcome in outcomes)
    overlap = (alone_s + stream_s - both_s) / min(alone_s, stream_s)
    return _Beside(size, as_samples(compute_rows), as_samples(net_rows) if net_rows else None, overlap)
