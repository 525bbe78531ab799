"""take: measurements run interleaved in one job, and their timings by cost key."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dovetail.cost import Samples
from dovetail.probe.programs import Measurement
from dovetail.run.job import Executor, Job

ROUNDS = 5


@dataclass(frozen=True)
class Budget:
    """How long a probe may take: seconds for each size of each cost, and the trips that this is worth at most."""

    each_s: float = 0.15
    least: int = 2
    most: int = 60

    def trips(self, expected_s: float) -> int:
        return int(np.clip(self.each_s / max(expected_s, 1e-9) / ROUNDS, self.least, self.most)) + 1

    def allows(self, expected_s: float) -> bool:
        """Whether the least number of trips is worth its time."""
        return expected_s < self.each_s


def take(executor: Executor, measured: Sequence[Measurement], rounds: int = ROUNDS) -> dict[str, Samples]:
    """Run all measurements in turn, `rounds` times (more where some were disturbed); their timings by cost key."""
    named = (replace(m.variant, name=f"{index} {m.variant.name}") for index, m in enumerate(measured))
    result = executor.execute(Job(tuple(named), rounds=rounds, keep_all=True))
    rows: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
    for measurement, outcome in zip(measured, result.outcomes, strict=True):
        for repeat, timeline in enumerate(outcome.timelines):
            rows[measurement.key] += [(measurement.x, s, repeat) for s in measurement.seconds(timeline) if s > 0]
    provenance = {"facts": result.facts, "rounds": result.rounds, "disturbed": result.disturbed}
    provenance |= result.load.to_json()
    return {key: as_samples(values, _unit(key), **provenance) for key, values in rows.items()}


def as_samples(rows: Sequence[tuple[float, float, int]], unit: str = "bytes", **provenance: object) -> Samples:
    """Samples from rows of x, seconds, repeat."""
    x, seconds, repeat = (np.array(column) for column in zip(*rows, strict=True))
    return Samples(x, seconds, repeat, unit, dict(provenance))


def medians_s(executor: Executor, measured: Sequence[Measurement]) -> list[float]:
    """One quick look at each measurement, in one job."""
    found = take(executor, [each._replace(key=str(place)) for place, each in enumerate(measured)], 1)
    return [float(np.median(found[str(place)].medians)) for place in range(len(measured))]


def _unit(key: str) -> str:
    return "rows" if key.startswith("kernel:") else "bytes"
