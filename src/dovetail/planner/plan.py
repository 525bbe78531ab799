"""plan: a proved Program with its predicted time, the rivals it beat, and the losses against the ideal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from dovetail.core import PlanError, check_schema, load_document, parse_count, reading, save_json, seconds_text
from dovetail.ir import Operator, Program, Schedule
from dovetail.ir.proof.certificate import Certificate
from dovetail.ir.registry import operator_from, prove
from dovetail.planner.explain import explain
from dovetail.planner.rival import Rival
from dovetail.timeline import Timeline

if TYPE_CHECKING:
    from dovetail.call.bound import Bound
    from dovetail.run.ranks.world import World

SCHEMA = "dovetail.plan/2"
DOCUMENT = "plan document"
MOST_RANKS = 1 << 16  # documents for more ranks are refused


Codec = tuple[Callable[[Any], Any], Callable[[Any], Any]]
# Attributes that are fields of a plan's document: (read, write) functions of each.
FIELDS: Mapping[str, Codec] = {
    **dict.fromkeys(("serial_s", "compute_s", "comm_s", "noise", "handling_s"), (float, float)),
    "losses": (lambda losses: {str(name): float(seconds) for name, seconds in losses.items()}, dict),
    "rivals": (lambda rivals: tuple(map(Rival.from_json, rivals)), lambda rivals: [each.to_json() for each in rivals]),
    "machine": (str, str),
    "probed": (lambda when: when, lambda when: when),
    "serial": (Schedule.from_json, Schedule.to_json),
    "notes": (tuple, list),
    "published": (dict, dict),
    "predicted": (Timeline.from_json, Timeline.to_json),
}


@dataclass(frozen=True)
class Plan:
    """The schedule to run, and the reasons for it. All seconds are predicted.

    Attributes
    ----------
    schedule : Schedule
        The chosen schedule.
    operator : Operator
        What the plan computes.
    ranks : int
        Number of ranks.
    machine : str
        Name of the machine that it was planned for.
    program, certificate : Program, Certificate
        The schedule's program, and its proof.
    predicted : Timeline
        The simulated run.
    serial, serial_s : Schedule, float
        The schedule without overlap (the library's collective where it has a cost), and its seconds.
    compute_s, comm_s : float
        All computation, and all communication, each uncut and in isolation.
    losses : dict
        Loss → seconds; the sum is `predicted_s - ideal_s`.
    rivals : tuple of Rival
        The other schedules, and why each was not chosen.
    notes : tuple of str
        Sentences for the user.
    published : dict
        Numbers that the machine's source published for this operator; predictions do not use them.
    noise : float
        Share of `serial_s`: a smaller gain counts as none.
    handling_s : float
        Seconds that the busiest rank's CPU spends on messages beyond the timeline.
    probed : str or None
        When the machine was probed; None for a preset.
    """

    schedule: Schedule
    operator: Operator
    ranks: int
    machine: str
    program: Program = field(repr=False)
    certificate: Certificate = field(repr=False)
    predicted: Timeline = field(repr=False)
    serial: Schedule
    serial_s: float
    compute_s: float
    comm_s: float
    losses: dict[str, float]
    rivals: tuple[Rival, ...] = field(repr=False)
    notes: tuple[str, ...] = ()
    published: dict[str, Any] = field(default_factory=dict, repr=False)
    noise: float = 0.0
    handling_s: float = 0.0
    probed: str | None = None

    def __str__(self) -> str:
        """Return a description: the chosen schedule, its predicted times, its losses and its rivals."""
        return explain(self)

    def __repr__(self) -> str:
        times = f"{seconds_text(self.predicted_s)} predicted, serial {seconds_text(self.serial_s)}"
        return f"<Plan: {self.operator.title} on {self.ranks} ranks of {self.machine}: {self.schedule}; {times}>"

    @property
    def family(self) -> str:
        return self.schedule.family

    @property
    def tiles(self) -> tuple[int, ...]:
        """Rows of each tile, in the order in which they run; () without tiles."""
        return self.schedule.tiles

    @property
    def predicted_s(self) -> float:
        """Predicted seconds of the plan: makespan of `predicted`, plus `handling_s`."""
        return self.predicted.makespan_s + self.handling_s

    @property
    def ideal_s(self) -> float:
        """Seconds with perfect overlap: the longer of all compute and all communication."""
        return max(self.compute_s, self.comm_s)

    @property
    def ideal_gain(self) -> float:
        """Predicted share of (serial - ideal) that the plan gains: 1 is ideal, or nothing to gain; 0 is serial."""
        room = self.serial_s - self.ideal_s
        return (self.serial_s - self.predicted_s) / room if room > 0 else 1.0

    @property
    def keeps_serial(self) -> bool:
        """Whether the plan runs the same as serial, perhaps under another family's name."""
        return self.schedule.parameters == self.serial.parameters

    @property
    def overlaps(self) -> bool:
        """Whether the plan is predicted to beat serial by more than the noise."""
        return self.serial_s - self.predicted_s > self.noise * self.serial_s

    def explain(self) -> str:
        """Return the schedule's family and parameters, and what it does."""
        return f"{self.schedule}: {self.operator.describe(self.schedule, self.ranks)}"

    def with_measured(self, seconds: Mapping[Schedule, float]) -> Plan:
        """Return the plan with measured seconds of its rivals, by schedule."""
        timed = (replace(r, measured_s=seconds.get(r.schedule, r.measured_s)) for r in self.rivals)
        return replace(self, rivals=tuple(timed))

    def run(self, *inputs: ArrayLike, out: Any = None, comm: Any = None, allow_nonfinite: bool = False) -> Any:
        """Run the plan on this rank's arrays, inside the user's own MPI program. Collective: every rank calls it.

        Parameters
        ----------
        *inputs : array_like
            This rank's arguments; for shapes and dtypes see the operator.
        out : array, optional
            Receives the result. It must not share memory with the inputs.
        comm : communicator of mpi4py or dovetail.world(), optional
            Its ranks run the plan. Default: all ranks of the program (mpi4py is then not needed). A plan for one rank
            needs no MPI.
        allow_nonfinite : bool
            Accept NaN and infinity.

        Returns
        -------
        ndarray
            This rank's part of the result.

        Raises
        ------
        OperatorError
            On every rank, if arrays of any rank have another shape or dtype than the plan, or hold NaN or infinity.
        RunError
            If a rank does not join within ten minutes.

        Examples
        --------

        >>> from dovetail.matmul import MatmulAllReduce
        >>> from dovetail.planner.search import plan
        >>> plan(MatmulAllReduce(2, 1, 2), "shared-memory-2", ranks=1).run([[1.0], [2.0]], [[3.0, 4.0]]).tolist()
        [[3.0, 4.0], [6.0, 8.0]]
        """
        found: Any = self._bound_to(comm)(*inputs, out=out, allow_nonfinite=allow_nonfinite)
        return found

    def _bound_to(self, comm: Any) -> Bound:
        """Return the plan bound to a communicator; cached as long as the communicator lives."""
        from dovetail.call.bound import bind_on
        from dovetail.run.options import RunOptions
        from dovetail.run.ranks.embedded import check_size, ranks_of

        for freed in [world for world in self._places if world and world.freed]:
            del self._places[freed]
        level = RunOptions.of(self.schedule).level
        world = ranks_of(comm, level=level) if self.ranks > 1 or comm is not None else None
        if world not in self._places:
            if world:
                check_size(world, self.ranks)  # raises on all ranks alike
            with world.together() if world else nullcontext():
                made = bind_on(self.operator, world, self.schedule, program=self.program)
            self._places[world] = made  # only after all ranks have bound it
        return self._places[world]

    @cached_property
    def _places(self) -> dict[World | None, Bound]:
        return {}

    def to_json(self) -> dict[str, Any]:
        """Return a document: `schema`, schedule, tiles, seconds, losses, rivals, and all that `from_json` needs."""
        head: dict[str, Any] = {"schema": SCHEMA, "schedule": self.family, "tiles": list(self.tiles)}
        head |= {"steps": dict(self.schedule.steps)}
        times = {"predicted_s": self.predicted_s, "ideal_s": self.ideal_s, "ideal_gain": self.ideal_gain}
        plain = {name: write(vars(self)[name]) for name, (_, write) in FIELDS.items()}
        asked = {"operator": self.operator.to_json(), "ranks": self.ranks, "choices": self.schedule.to_json()}
        return {**head, **times, **plain, **asked, "certificate": self.certificate.to_json()}

    def save(self, path: str | Path) -> Path:
        """Write the plan to a JSON file that `load`, and every verb of the command line, reads; return its path."""
        return save_json(path, self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Return the plan in a file, or in the folder that `dovetail plan --out` wrote, proved anew.

        Raises
        ------
        DovetailError
            If the file cannot be read, or contains no plan; the error names the file.
        ProgramError
            If the proof of the plan's program fails.
        """
        return load_document(path, cls.from_json, "plan")

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Plan:
        """Read what `to_json` wrote. Builds the program from operator and schedule again, and proves it again.

        Raises PlanError for a malformed document, ProgramError if the proof fails.
        """
        check_schema(document, SCHEMA)
        operator, schedule, ranks = asked_of(document)
        emitted = program_of(document)
        certificate = prove(operator, schedule, emitted)
        certificate.raise_if_bad()
        with reading(DOCUMENT, PlanError):
            steps = dict(document["steps"])
            plain = {name: read(document[name]) for name, (read, _) in FIELDS.items()}
            whole: dict[str, Any] = {
                "operator": operator,
                "ranks": ranks,
                "program": emitted,
                "certificate": certificate,
            }
            return cls(replace(schedule, steps=steps), **whole, **plain)


def asked_of(document: Mapping[str, Any]) -> tuple[Operator, Schedule, int]:
    """Return operator, schedule and ranks of the document of a plan or a tuning."""
    if str(document.get("schema")).startswith("dovetail.plan/"):
        check_schema(document, SCHEMA)
    with reading(DOCUMENT, PlanError):
        operator, schedule = operator_from(document["operator"]), Schedule.from_json(document["choices"])
        ranks = parse_count(document["ranks"], "ranks", least=1)
    if ranks > MOST_RANKS:
        raise PlanError(f"malformed {DOCUMENT}", found=f"{ranks} ranks")
    return operator, schedule, ranks


def program_of(document: Mapping[str, Any]) -> Program:
    """Return the program of the document of a plan or a tuning, without proving it."""
    operator, schedule, ranks = asked_of(document)
    with reading(DOCUMENT, PlanError):
        return operator.program(schedule, ranks)


def reference_of(document: Mapping[str, Any]) -> Program | None:
    """Return the reference program of the document of a plan or a tuning; None if post-conditions define the result."""
    operator, schedule, ranks = asked_of(document)
    with reading(DOCUMENT, PlanError):
        return operator.reference(schedule, ranks)
