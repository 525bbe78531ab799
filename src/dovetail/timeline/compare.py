"""compare: compare a predicted with a measured timeline: makespan, busy seconds by lane, errors by op."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.core import DovetailError, check_schema
from dovetail.timeline.spans import op_times
from dovetail.timeline.timeline import Timeline

SCHEMA = "dovetail.comparison/1"


@dataclass(frozen=True)
class Busy:
    """Seconds in which a lane of a rank had a span open, predicted and measured."""

    rank: int
    lane: str
    predicted_s: float
    measured_s: float


@dataclass(frozen=True)
class OpErrors:
    """Durations of the ops of one name: measured / predicted - 1. `worst_op` is the row with the largest error."""

    name: str
    count: int
    median: float
    p90_abs: float
    max_abs: float
    worst_op: int


@dataclass(frozen=True)
class Comparison:
    """How far a measured Timeline is from its prediction. `ratio`: measured / predicted makespan (0 if that is 0)."""

    predicted_label: str
    measured_label: str
    predicted_s: float
    measured_s: float
    ratio: float
    busy: tuple[Busy, ...]
    errors: tuple[OpErrors, ...]
    num_missing: int  # predicted ops without a measured span

    def to_json(self) -> dict[str, Any]:
        """Return a document with a `schema` field."""
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Comparison:
        """Read what `to_json` wrote; DovetailError for another schema."""
        check_schema(document, SCHEMA)
        fields = {key: value for key, value in document.items() if key != "schema"}
        fields["busy"] = tuple(Busy(**row) for row in document["busy"])
        fields["errors"] = tuple(OpErrors(**row) for row in document["errors"])
        return cls(**fields)


def compare(predicted: Timeline, measured: Timeline) -> Comparison:
    """Compare makespans, busy seconds by rank and lane, and relative errors of op durations by name.

    Lanes are matched by name, ops by their row in the Program.

    Parameters
    ----------
    predicted, measured : Timeline
        Two timelines of one program.

    Returns
    -------
    Comparison
        Times in seconds, errors relative to the prediction.

    Raises
    ------
    DovetailError
        If the numbers of ranks differ.
    """
    if predicted.num_ranks != measured.num_ranks:
        found = f"{predicted.num_ranks} and {measured.num_ranks} ranks"
        raise DovetailError("these timelines are not of one program", found=found)
    errors, missing = _errors(predicted, measured)
    before, after = predicted.makespan_s, measured.makespan_s
    ratio = after / before if before > 0 else 0.0
    busy = _busy(predicted, measured)
    return Comparison(predicted.label, measured.label, before, after, ratio, busy, errors, missing)


def _busy(predicted: Timeline, measured: Timeline) -> tuple[Busy, ...]:
    lanes = dict.fromkeys([*predicted.lanes, *measured.lanes])
    rows = []
    for rank in range(predicted.num_ranks):
        for lane in lanes:
            seconds = [t.busy_s(rank, t.lanes.index(lane)) if lane in t.lanes else 0.0 for t in (predicted, measured)]
            if any(seconds):
                rows.append(Busy(rank, lane, *seconds))
    return tuple(rows)


def _errors(predicted: Timeline, measured: Timeline) -> tuple[tuple[OpErrors, ...], int]:
    size = 1 + max((int(t.columns["op"].max(initial=-1)) for t in (predicted, measured)), default=-1)
    before, after = (np.subtract(*op_times(t, size)[::-1]) for t in (predicted, measured))
    missing = int((~np.isnan(before) & np.isnan(after)).sum())
    name = np.full(size, -1)
    rows = predicted.columns["op"] >= 0
    name[predicted.columns["op"][rows]] = predicted.columns["name"][rows]
    both = (np.nan_to_num(before) > 0) & ~np.isnan(after)
    found = [
        _errors_of(predicted.names[row], np.flatnonzero(both & (name == row)), before, after)
        for row in np.unique(name[both])
    ]
    return tuple(found), missing


def _errors_of(name: str, ops: NDArray[np.int64], before: NDArray[np.float64], after: NDArray[np.float64]) -> OpErrors:
    error = after[ops] / before[ops] - 1
    size = np.abs(error)
    worst = int(ops[np.argmax(size)])
    return OpErrors(name, len(ops), float(np.median(error)), float(np.quantile(size, 0.9)), float(size.max()), worst)
