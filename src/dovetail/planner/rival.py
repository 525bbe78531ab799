"""rival: a schedule that a plan did not choose, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dovetail.ir import Schedule

MEASURED_SLOWER = "measured slower"
WITHIN_NOISE = "faster, but not beyond the noise"


@dataclass(frozen=True)
class Rival:
    """A schedule that was considered and not chosen. `label` distinguishes rivals of one family."""

    label: str
    schedule: Schedule
    predicted_s: float
    why_not: str
    measured_s: float | None = None

    @property
    def family(self) -> str:
        return self.schedule.family

    def to_json(self) -> dict[str, Any]:
        head = {"schedule": self.family, "label": self.label, "predicted_s": self.predicted_s}
        measured = {} if self.measured_s is None else {"measured_s": self.measured_s}
        return {**head, **measured, "why_not": self.why_not, "choices": self.schedule.to_json()}

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Rival:
        schedule, measured_s = Schedule.from_json(document["choices"]), document.get("measured_s")
        label, why_not = str(document["label"]), str(document["why_not"])
        return Rival(label, schedule, float(document["predicted_s"]), why_not, measured_s)


def distinct(rivals: Sequence[Rival]) -> list[Rival]:
    """Return one rival for each schedule; its label names all families that found it."""
    found: dict[Schedule, list[Rival]] = {}
    for rival in rivals:
        found.setdefault(rival.schedule, []).append(rival)
    return [_with_families(*those) for those in found.values()]


def _with_families(first: Rival, *others: Rival) -> Rival:
    further = dict.fromkeys(rival.family for rival in others if rival.family != first.family)
    return replace(first, label=", also ".join([first.label, *further]))
