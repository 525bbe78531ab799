"""shared: measure what messages through memory that the ranks of one host share cost, and sums beside them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from dovetail.cost import fit
from dovetail.machine import SHARED_COST, Machine
from dovetail.prober import programs
from dovetail.prober.links import pairs_of
from dovetail.prober.programs import Measurement
from dovetail.prober.take import ROUNDS, as_samples, calmest
from dovetail.run.executor import Executor
from dovetail.run.job import Job
from dovetail.run.options import SHARED

SIZES = (8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 2 << 20)  # bytes
TRIPS = 7  # of a program: its messages fit the slots that a channel has
EACH_S = 2e-3  # seconds of one timing
MOST_REPEATS = 2000
RATE, LEAST_S = 2e9, 2e-7  # bytes a second and seconds of a message, both poor: how often to repeat


def probe_shared(executor: Executor, machine: Machine) -> Machine:
    """Measure the costs of messages, sums and copies of Programs that run with `transport="shared"`.

    Parameters
    ----------
    executor : Executor
        Runs the ranks, which share memory (`executor.shares_memory`).
    machine : Machine
        The machine to add cost curves to; its ranks are on one node.

    Returns
    -------
    Machine
        With curves in seconds against bytes, by the keys of `Machine.shared`.

    Raises
    ------
    RunError
        If a rank fails.
    """
    asked = list(_measurements(machine))
    variants = tuple(replace(each.variant, name=f"{at} {each.variant.name}") for at, (each, _) in enumerate(asked))
    result = calmest(executor, Job(variants, rounds=ROUNDS))
    rows: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
    for (each, count), outcome in zip(asked, result.outcomes, strict=True):
        rows[each.key] += [(each.x, seconds / count, repeat) for repeat, seconds in enumerate(outcome.seconds)]
    about: dict[str, Any] = {"facts": result.facts, "rounds": result.rounds, "disturbed": result.disturbed}
    about |= result.load.to_json()
    curves = {SHARED_COST + key: fit(as_samples(found, **about)).to_json() for key, found in rows.items()}
    return machine.with_costs(curves)


def _measurements(machine: Machine) -> Iterator[tuple[Measurement, int]]:
    """Yield what to run, and how many costs in a row one run takes."""
    ((kind, pair),) = pairs_of(machine).items()
    for size in SIZES:
        yield _shared(programs.ping_pong(machine.ranks, pair, size, TRIPS, kind)), 2 * TRIPS
        yield _shared(programs.exchange(machine.ranks, pair, size, TRIPS, kind)), TRIPS + 1
        for local in (programs.reduce, programs.copy):  # after a first copy
            yield _shared(local(machine.ranks, size, TRIPS)), TRIPS + 1


def _shared(made: Measurement) -> Measurement:
    repeats = int(EACH_S / (TRIPS * (LEAST_S + made.x / RATE)))
    options = replace(made.variant.options, transport=SHARED, spans=False, repeats=min(max(repeats, 1), MOST_REPEATS))
    return made._replace(variant=replace(made.variant, options=options))
