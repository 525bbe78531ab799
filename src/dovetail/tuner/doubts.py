"""doubts: kept costs that the final of a tune contradicts are probed again by the next one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from dovetail.core import DovetailError
from dovetail.cost import CostModel, price
from dovetail.machine import Machine
from dovetail.run.job import Variant
from dovetail.sim import simulate
from dovetail.tuner.contest import Judged
from dovetail.tuner.machines import doubt

MARGIN = 0.25  # beyond the costs' own error; as far as a spot check lets messages stray


class Contradiction(NamedTuple):
    """A side of a plan, whole and alone: what the kept costs said, and what the final measured."""

    side: str
    predicted_s: float
    measured_s: float


def contradictions(sides: Mapping[str, Variant], judged: Judged, machine: Machine) -> list[Contradiction]:
    """The sides whose seconds in the final are off by more than the costs' own error and `MARGIN`; none where the final
    was itself disturbed.
    """
    if judged.load.warnings:
        return []
    found = []
    for name, variant in sides.items():
        try:
            prices = price(variant.program, machine, variant.workload, extrapolate=True)
            predicted_s = simulate(variant.program, prices).makespan_s
        except DovetailError:
            continue
        measured_s, allowed = judged.beside.get(name, predicted_s), MARGIN + _error(machine)
        if not predicted_s / (1 + allowed) <= measured_s <= predicted_s * (1 + allowed):
            found.append(Contradiction(name, predicted_s, measured_s))
    return found


def _error(machine: Machine) -> float:
    """The largest median error of the computations and collectives probed."""
    model = CostModel.of(machine)
    names = [key for key in machine.costs if key.startswith("kernel:") or key.endswith(f":{machine.ranks}")]
    errors = [model.curve(name).median_error for name in names]
    return max((each for each in errors if each == each), default=0.0)  # NaN where nothing was measured


def note_doubts(found: list[Contradiction], path_of: Mapping[str, Path | None]) -> tuple[str, ...]:
    """Mark the files of the cache that hold the costs of each side; sentences for the user."""
    paths = list(dict.fromkeys(path_of.get(each.side) for each in found))
    marked = {path: doubt(path) for path in paths}
    ends = {True: "the next tune probes anew", False: "probe on a calm machine, with --fresh"}
    text = "{} took {:.3g} s, the probed costs say {:.3g} s: {}"
    return tuple(
        text.format(each.side, each.measured_s, each.predicted_s, ends[marked[path_of.get(each.side)]])
        for each in found
    )
