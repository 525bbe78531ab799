"""result: what a tuning found: plan, final measurement, losses; saved and loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.core import check_schema, load_document, reading, save_json, seconds_text
from dovetail.machine import Machine
from dovetail.planner.plan import Plan
from dovetail.run.job import Outcome
from dovetail.timeline import Timeline
from dovetail.tuner.contest import LEAST_GAIN, Judged

SCHEMA = "dovetail.tune/2"
COMPUTE, MESSAGES, OWN = "compute alone", "communication alone", "own messages alone"

# Attributes that a tune document stores under their own names, and the type that reads each.
FIELDS = {"facts": dict, "losses": dict, "adjusted_ideal_s": float, "shared_ideal_s": float, "seed": int}


@dataclass(frozen=True)
class TuneResult:
    """Result of one tuning: the plan, the final measurement, and the machine that it was planned for.

    Attributes
    ----------
    plan : Plan
        The fastest schedule found, or serial.
    judged : Judged
        The final: serial, the plan, and computation and communication each in isolation.
    facts : mapping
        Facts of the hosts that ran it.
    losses : dict
        Cause → seconds of the measured run's excess over the ideal that it accounts for.
    adjusted_ideal_s : float
        Ideal seconds if contention slows computation and communication from begin to end.
    shared_ideal_s : float
        Ideal seconds if contention slows each of them only while the other is active.
    machine : Machine
        The probed machine.
    seed : int
        Seed of the inputs.
    notes : tuple of str
        Sentences for the user.
    cil : (float, float)
        Probed slowdown of computation by messages of the plan's size, and of these messages by computation.
    report : Path or None
        The HTML page, if one was written.
    """

    plan: Plan
    judged: Judged
    facts: Mapping[str, Any]
    losses: dict[str, float]
    adjusted_ideal_s: float
    shared_ideal_s: float
    machine: Machine
    seed: int
    notes: tuple[str, ...] = ()
    cil: tuple[float, float] = (1.0, 1.0)
    report: Path | None = None

    def __post_init__(self) -> None:
        """Add a note if the parts in isolation were disturbed."""
        if self.is_ideal_disturbed:
            note = _disturbed(self)
            object.__setattr__(self, "notes", (*(each for each in self.notes if each != note), note))

    def __repr__(self) -> str:
        times = f"{seconds_text(self.planned.median_s)} measured, serial {seconds_text(self.serial.median_s)}"
        return f"<TuneResult: {self.plan.operator.title} on {self.plan.ranks} ranks: {self.plan.schedule}; {times}>"

    @property
    def serial(self) -> Outcome:
        """Return the measured outcome of the serial schedule."""
        return self.judged.serial

    @property
    def planned(self) -> Outcome:
        """Return the measured outcome of the schedule taken."""
        return self.judged.taken

    @property
    def compute_s(self) -> float:
        """Return the measured seconds of all computation in isolation."""
        return self.judged.beside.get(COMPUTE, 0.0)

    @property
    def comm_s(self) -> float:
        """Return the measured seconds of all communication in isolation."""
        return self.judged.beside.get(MESSAGES, self.serial.median_s)

    @property
    def ideal_s(self) -> float:
        """Return the seconds of perfect overlap: the larger of `compute_s` and `comm_s`."""
        return max(self.compute_s, self.comm_s)

    @property
    def is_ideal_disturbed(self) -> bool:
        """Return whether the schedule taken beat its own parts in isolation by more than the noise.

        Overlap cannot do that, so the parts were measured while something else slowed them. The spreads of serial and
        of the schedule taken stand for the noise. False for operators that compute nothing.
        """
        if COMPUTE not in self.judged.beside:
            return False
        own_s = self.judged.beside.get(OWN, self.comm_s)
        comm_s = self.comm_s if self.judged.schedule.is_by_library else min(self.comm_s, own_s)
        noise = max(LEAST_GAIN, self.serial.spread, self.planned.spread)
        return self.planned.median_s < (1 - noise) * max(self.compute_s, comm_s)

    @property
    def has_shares(self) -> bool:
        """Return whether shares of the ideal gain mean anything: on several ranks, with an undisturbed ideal."""
        return self.plan.ranks > 1 and not self.is_ideal_disturbed

    @property
    def speedup(self) -> float:
        """Return median seconds of serial over median seconds of the schedule taken."""
        return self.judged.speedup

    @property
    def keeps_serial(self) -> bool:
        """Return whether no schedule beat serial beyond the noise."""
        return self.judged.keeps_serial

    @property
    def ideal_gain(self) -> float | None:
        """Return the gain as a share of (serial - ideal); None as of `gain_of`."""
        return self.gain_of(self.ideal_s)

    def gain_of(self, ideal_s: float) -> float | None:
        """Return the gain as a share of (serial - `ideal_s`), 0 if that is not positive.

        None if serial was kept, on one rank, or if the ideal was disturbed.
        """
        if self.keeps_serial or not self.has_shares:
            return None
        won_s, room_s = (self.serial.median_s - s for s in (self.planned.median_s, ideal_s))
        return max(won_s / room_s, 0.0) if room_s > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return a document with a `schema` field: the plan's keys, and the figures measured in interleaved runs."""
        document = self.plan.to_json()
        del document["schema"], document["predicted"]
        seconds = {"measured_s": self.planned.median_s, "serial_s": self.serial.median_s, "ideal_s": self.ideal_s}
        plain = {name: vars(self)[name] for name in FIELDS} | {"facts": dict(self.facts)}
        plain |= dict(zip(("cil_compute", "cil_net"), self.cil, strict=True))
        sides = {"compute_s": self.compute_s, "comm_s": self.comm_s, "own_comm_s": self.judged.beside.get(OWN)}
        predicted = {
            "predicted_serial_s": self.plan.serial_s,
            "predicted_ideal_s": self.plan.ideal_s,
            "predicted_losses": dict(self.plan.losses),
        }
        gains = {
            "ideal_gain": self.ideal_gain,
            "adjusted_gain": self.gain_of(self.adjusted_ideal_s),
            "shared_gain": self.gain_of(self.shared_ideal_s),
            "speedup": self.speedup,
        }
        checks = {"max_rel_error": self.planned.max_rel_error, "tolerance": self.planned.tolerance}
        spread = {"serial_spread": self.serial.spread, "measured_spread": self.planned.spread}
        runs = {"rounds": self.judged.rounds, "disturbed": self.judged.disturbed}
        head = {"schema": SCHEMA, **document, **seconds, **plain, **sides, **predicted}
        notes = [*document["notes"], *self.notes]
        about = {
            **checks,
            **spread,
            **runs,
            **self.judged.load.to_json(),
            "report": str(self.report or ""),
            "notes": notes,
        }
        return {**head, **gains, **about, "final": self.judged.to_json()}

    def save(self, folder: str | Path) -> Path:
        """Write the files that `load` and every verb of the command line read; return the path of `tune.json`.

        The folder also gets `plan.json`, `machine.json`, and the timelines `predicted.json` and `measured.json`.
        """
        self.plan.save(Path(folder) / "plan.json")
        return self._save_measured(Path(folder))

    def _save_measured(self, folder: Path) -> Path:
        """Write all but the plan."""
        self.machine.save(folder / "machine.json")
        save_json(folder / "predicted.json", self.plan.predicted.to_json())
        if self.planned.timelines:
            save_json(folder / "measured.json", self.planned.timelines[0].to_json())
        return save_json(folder / "tune.json", self.to_json())

    @staticmethod
    def load(path: str | Path) -> TuneResult:
        """Read a result from a folder that `save` or `dovetail tune` wrote, or from the path of its `tune.json`.

        Raises
        ------
        DovetailError
            If a file of the folder cannot be read, or holds something else; the error names the file.
        ProgramError
            If the plan's program cannot be proved.
        """
        folder = Path(path) if Path(path).is_dir() else Path(path).parent
        measured, plan, machine = folder / "measured.json", Plan.load(folder), Machine.load(folder / "machine.json")
        taken = load_document(measured, Timeline.from_json, "timeline") if measured.exists() else None
        return load_document(path, lambda document: _result(document, plan, machine, taken), "tune")


def _disturbed(result: TuneResult) -> str:
    """Return the sentence on an ideal that was disturbed."""
    taken = "Serial" if result.keeps_serial else "The chosen schedule"
    times = f"{seconds_text(result.planned.median_s)}, the longer of its parts alone {seconds_text(result.ideal_s)}"
    why = "the parts alone were disturbed, unless cutting made them cheaper"
    return f"{taken} took {times}: {why}. No share of the ideal gain is given; tune again on a quiet machine."


def _result(document: Mapping[str, Any], plan: Plan, machine: Machine, measured: Timeline | None) -> TuneResult:
    """Read a result from its document, given the plan, machine and measured timeline of the same folder."""
    check_schema(document, SCHEMA)
    with reading("tune document"):
        return TuneResult(
            plan,
            Judged.from_json(document["final"], plan.operator, plan.ranks, measured),
            machine=machine,
            notes=tuple(document["notes"][len(plan.notes) :]),
            cil=(float(document["cil_compute"]), float(document["cil_net"])),
            report=Path(document["report"]) if document["report"] else None,
            **{name: read(document[name]) for name, read in FIELDS.items()},
        )
