"""summary: the text of a report beside its timelines: schedules compared, losses, reasons, provenance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dovetail.core import DovetailError, check_schema
from dovetail.ir import Space
from dovetail.timeline import Attribution, Label, Timeline

SCHEMA = "dovetail.summary/1"
LABELS: tuple[Label, ...] = ("predicted", "emulated", "measured")


@dataclass(frozen=True)
class Row:
    """One schedule: its predicted, emulated and measured makespan (seconds), and why it was or was not chosen.

    `ideal_gain` is the share of (serial - ideal) that was reached, 1.0 for all; `spread_s` is half the interquartile
    range of the measured makespan; `chosen` marks the plan's schedule.
    """

    schedule: str
    predicted_s: float | None = None
    measured_s: float | None = None
    ideal_gain: float | None = None
    why: str = ""
    chosen: bool = False
    emulated_s: float | None = None
    spread_s: float | None = None

    def seconds(self, label: Label) -> float | None:
        """Return the makespan under `label`; None if there is none."""
        return {"predicted": self.predicted_s, "emulated": self.emulated_s, "measured": self.measured_s}[label]


@dataclass(frozen=True)
class Losses:
    """The losses of one timeline, along lane and rank `where`: makespan = ideal_s + sum of `lost_s`."""

    label: Label
    ideal_s: float
    lost_s: Mapping[str, float]
    where: str = ""

    @classmethod
    def of(cls, timeline: Timeline, found: Attribution) -> Losses:
        """Return the Losses of `timeline` from the result of `timeline.attribute`."""
        lane = f"lane {timeline.lanes[found.lane]} of " if found.lane >= 0 else ""
        return cls(timeline.label, found.ideal_s, dict(found.losses), f"{lane}rank {found.rank}")

    @property
    def makespan_s(self) -> float:
        """Ideal seconds plus all losses."""
        return self.ideal_s + sum(self.lost_s.values())


@dataclass(frozen=True)
class Provenance:
    """How a result was made: command line, machine, commit. Known parts are shown on every page, plot and picture."""

    command: str = ""
    machine: str = ""
    commit: str = ""

    def items(self) -> list[tuple[str, str]]:
        """Return (name, text) of each known part, in the order in which they are shown."""
        parts = (("command", self.command), ("machine", self.machine), ("commit", self.commit))
        return [(name, text) for name, text in parts if text]


@dataclass(frozen=True)
class Summary:
    """The content of a report: rows of the table, losses (one entry per label), notes (the plan's reasons, one
    paragraph each), provenance; and the iteration space, if there is one."""

    rows: tuple[Row, ...] = ()
    losses: tuple[Losses, ...] = ()
    notes: tuple[str, ...] = ()
    provenance: Provenance = field(default_factory=Provenance)
    space: Space | None = None

    @property
    def labels(self) -> tuple[Label, ...]:
        """The labels under which any row has seconds, predicted first."""
        return tuple(label for label in LABELS if any(row.seconds(label) is not None for row in self.rows))

    def to_json(self) -> dict[str, Any]:
        """Return a document with a `schema` field; times in seconds."""
        losses = [
            {"label": x.label, "ideal_s": x.ideal_s, "lost_s": dict(x.lost_s), "where": x.where} for x in self.losses
        ]
        head = {"schema": SCHEMA, "rows": [vars(row) for row in self.rows], "losses": losses}
        return {**head, "notes": list(self.notes), "provenance": vars(self.provenance)}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Summary:
        """Read what `to_json` wrote.

        >>> summary = Summary((Row("serial", 0.2),), (Losses("predicted", 0.1, {"head": 0.1}),), ("No gain.",))
        >>> Summary.from_json(summary.to_json()) == summary
        True
        """
        check_schema(document, SCHEMA)
        try:
            return cls(
                tuple(Row(**row) for row in document["rows"]),
                tuple(
                    Losses(x["label"], float(x["ideal_s"]), dict(x["lost_s"]), x["where"]) for x in document["losses"]
                ),
                tuple(document["notes"]),
                Provenance(**document["provenance"]),
            )
        except (KeyError, TypeError) as error:
            raise DovetailError("malformed summary document", found=f"{type(error).__name__}: {error}") from error
