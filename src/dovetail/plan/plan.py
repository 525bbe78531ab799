"""Plan: a proved Program with its reasons: what it is predicted to take, what it beat, and where the rest is lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from dovetail.collective import Family as AllReduce
from dovetail.collective import family
from dovetail.core import PlanError, check_schema
from dovetail.cost import price
from dovetail.ir import Program
from dovetail.ir.certificate import Certificate
from dovetail.ir.verify import verify
from dovetail.machine import Machine
from dovetail.matmul import MatmulAllReduce, program
from dovetail.plan.explain import MEASURED_SLOWER, explain
from dovetail.run.arrays import Array, numpy_dtype
from dovetail.run.job import Job, JobResult, Variant
from dovetail.run.options import Progress, RunOptions
from dovetail.sim import simulate
from dovetail.timeline import Alone, Timeline, losses

if TYPE_CHECKING:
    from dovetail.run.embedded import Inside

SCHEMA = "dovetail.plan/1"
PATIENCE = 4.0


class Executor(Protocol):
    """Whatever runs a job on ranks."""

    def execute(self, job: Job) -> JobResult: ...


@dataclass(frozen=True)
class Choices:
    """What a plan decides, beside the wish: rows of each tile in running order, and by which messages each is reduced.

    `progress` and `block_rows` say who drives the messages while compute runs (see `RunOptions`).
    """

    tiles: tuple[int, ...]
    all_reduce: AllReduce = "library"
    rows_per_message: int | None = None
    progress: Progress = "poll"
    block_rows: int = 0

    def program(self, wish: MatmulAllReduce, ranks: int) -> Program:
        """The Program of `wish` on `ranks` ranks that these choices make."""
        return program(wish, ranks, self.tiles, family(self.all_reduce), self.rows_per_message)

    def variant(self, name: str, wish: MatmulAllReduce, ranks: int, expected_s: float = 0.0) -> Variant:
        """The same as one variant of a job; its product is checked. Ranks that wait for one that computes are patient:
        a stall is several times the `expected_s` of a whole run."""
        stall_s = max(RunOptions.stall_s, PATIENCE * expected_s)
        options = RunOptions(progress=self.progress, block_rows=self.block_rows, stall_s=stall_s)
        return Variant(name, self.program(wish, ranks), wish.workload(ranks), options, check="C")

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Choices:
        names = ("all_reduce", "rows_per_message", "progress", "block_rows")
        return Choices(tuple(document["tiles"]), *(document[name] for name in names))


@dataclass(frozen=True)
class Rival:
    """A schedule that was considered and not taken. `label` tells rivals of one family apart."""

    schedule: str
    label: str
    predicted_s: float
    why_not: str
    choices: Choices
    measured_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        head = {"schedule": self.schedule, "label": self.label, "predicted_s": self.predicted_s}
        measured = {} if self.measured_s is None else {"measured_s": self.measured_s}
        return {**head, **measured, "why_not": self.why_not, "choices": asdict(self.choices)}

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Rival:
        schedule, label, why_not = (str(document[key]) for key in ("schedule", "label", "why_not"))
        choices = Choices.from_json(document["choices"])
        return Rival(schedule, label, float(document["predicted_s"]), why_not, choices, document.get("measured_s"))


@dataclass(frozen=True)
class Plan:
    """The schedule to run, and why. All seconds are predicted.

    `serial_s`: nothing overlapped, by the library's all-reduce where it has a cost; `compute_s`, `comm_s`: all compute
    and all communication, each uncut and alone, the longer of them being `ideal_s`; `losses`: by name, what
    `predicted_s` exceeds `ideal_s` by, adding up to it. `steps`: named intermediate values of the schedule's
    heuristic. `published`: what the machine's source printed for this very wish, never used in a prediction.
    """

    schedule: str
    wish: MatmulAllReduce
    ranks: int
    choices: Choices
    machine: str
    program: Program = field(repr=False)
    certificate: Certificate = field(repr=False)
    predicted: Timeline = field(repr=False)
    serial_s: float
    compute_s: float
    comm_s: float
    losses: dict[str, float]
    rivals: tuple[Rival, ...] = field(repr=False)
    steps: dict[str, float | int | str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    published: dict[str, Any] = field(default_factory=dict, repr=False)
    noise: float = 0.0

    @property
    def tiles(self) -> tuple[int, ...]:
        """Rows of each tile, in running order."""
        return self.choices.tiles

    @property
    def predicted_s(self) -> float:
        return self.predicted.makespan_s

    @property
    def ideal_s(self) -> float:
        """Perfect overlap: the longer of all compute and all communication."""
        return max(self.compute_s, self.comm_s)

    @property
    def ideal_gain(self) -> float:
        """Predicted share of (serial - ideal) that is won: 1 is ideal, 0 serial; 1 where nothing can be won."""
        room = self.serial_s - self.ideal_s
        return (self.serial_s - self.predicted_s) / room if room > 0 else 1.0

    @property
    def overlaps(self) -> bool:
        """Whether the plan is predicted to beat serial by more than the noise."""
        return self.serial_s - self.predicted_s > self.noise * self.serial_s

    def explain(self) -> str:
        """What was chosen, what it beat and by how much, and what the rest is lost to, in plain language."""
        return explain(self)

    def with_measured(self, seconds: Mapping[str, float]) -> Plan:
        """The same plan with measured seconds of rivals, by label.

        Raises PlanError for a label that no rival has.
        """
        unknown = set(seconds) - {rival.label for rival in self.rivals}
        if unknown:
            found = ", ".join(rival.label for rival in self.rivals)
            raise PlanError(f"no rival '{min(unknown)}'", found=f"rivals {found}")
        timed = (replace(r, measured_s=seconds.get(r.label, r.measured_s)) for r in self.rivals)
        return replace(self, rivals=tuple(timed))

    def with_choices(self, choices: Choices, schedule: str, machine: Machine, contention: float | None = None) -> Plan:
        """The plan that takes `choices` instead, proved and predicted anew; the one taken so far becomes a rival."""
        made = choices.program(self.wish, self.ranks)
        certificate = verify(made)
        certificate.raise_if_bad()
        work = self.wish.workload(self.ranks)
        predicted = simulate(made, price(made, machine, work, contention, extrapolate=True), machine.name)
        calm = price(made, machine, work, 1.0, extrapolate=True)
        columns = calm.work_s, calm.wire_s, calm.latency_s, calm.rendezvous
        mine = Rival(self.schedule, f"{self.schedule}, as predicted", self.predicted_s, MEASURED_SLOWER, self.choices)
        others = tuple(rival for rival in self.rivals if rival.choices != choices)
        return replace(
            self,
            schedule=schedule,
            choices=choices,
            program=made,
            certificate=certificate,
            predicted=predicted,
            losses=losses(predicted, made, Alone(*columns, self.compute_s, self.comm_s)),
            rivals=(mine, *others),
            steps=self.steps if choices.tiles == self.tiles else {},
        )

    @property
    def serial(self) -> Choices:
        """What the serial schedule of `serial_s` decides."""
        rivals = [rival for rival in self.rivals if rival.schedule == "serial"]
        mine = [self.choices] if self.schedule == "serial" else []
        serials = [*mine, *(rival.choices for rival in rivals)]  # fastest first
        return next((choices for choices in serials if choices.all_reduce == "library"), serials[0])

    def job(self, rivals: int = 0, **options: Any) -> Job:
        """A job that runs `serial`, `planned` and the first `rivals` rivals (by label) in turn; options as of `Job`."""
        chosen = [("serial", self.serial), ("planned", self.choices)]
        others = [(rival.label, rival.choices) for rival in self.rivals if rival.choices != self.serial]
        asked = self.wish, self.ranks, self.serial_s
        return Job(tuple(c.variant(name, *asked) for name, c in chosen + others[:rivals]), **options)

    def run(self, a: ArrayLike, b: ArrayLike, out: Array | None = None, *, allow_nonfinite: bool = False) -> Array:
        """C (m, n) on every rank, from this rank's A (m, k_r) and B (k_r, n), inside the user's own MPI program.

        Every rank of the program calls it, one process per rank, with mpi4py or without; a plan for one rank needs no
        MPI. `out` takes C in place. Raises WishError, on every rank, where some rank's arrays have another shape or
        dtype than the plan, or hold NaN or infinity and `allow_nonfinite` is not set; RunError where a rank stalls.

        >>> from dovetail.matmul import MatmulAllReduce
        >>> from dovetail.plan.search import plan
        >>> plan(MatmulAllReduce(2, 1, 2), "shared-memory-2", ranks=1).run([[1.0], [2.0]], [[3.0, 4.0]]).tolist()
        [[3.0, 4.0], [6.0, 8.0]]
        """
        dtype = numpy_dtype(self.wish.dtype)
        mine, theirs = (x if hasattr(x, "dtype") else np.asarray(x, dtype) for x in (a, b))
        inputs = {"A": np.asarray(mine), "B": np.asarray(theirs)[None]}
        given = None if out is None else {"C": out}
        return self._inside(inputs, given, allow_nonfinite=allow_nonfinite)["C"]

    @cached_property
    def _inside(self) -> Inside:
        from dovetail.run.embedded import Inside

        options = RunOptions(progress=self.choices.progress, block_rows=self.choices.block_rows)
        return Inside(self.program, self.wish.workload(self.ranks), options)

    def measure(self, executor: Executor | None = None, **options: Any) -> JobResult:
        """Run serial and the plan in turn on ranks of their own, by MPI unless another executor is given."""
        if executor is None:
            from dovetail.run.mpi import MpiExecutor

            executor = MpiExecutor()
        return executor.execute(self.job(**options))

    def to_json(self) -> dict[str, Any]:
        """The document of DESIGN section 10, and what is needed to read it back."""
        head = {"schema": SCHEMA, "schedule": self.schedule, "tiles": list(self.tiles), "steps": dict(self.steps)}
        times = {"predicted_s": self.predicted_s, "serial_s": self.serial_s, "ideal_s": self.ideal_s}
        sides = {"compute_s": self.compute_s, "comm_s": self.comm_s}
        reasons = {"losses": dict(self.losses), "rivals": [rival.to_json() for rival in self.rivals]}
        asked = {"machine": self.machine, "wish": self.wish.to_json(), "ranks": self.ranks, "noise": self.noise}
        rest = {"choices": asdict(self.choices), "notes": list(self.notes), "published": dict(self.published)}
        proof = {"certificate": self.certificate.to_json(), "predicted": self.predicted.to_json()}
        return {**head, **times, **sides, "ideal_gain": self.ideal_gain, **reasons, **asked, **rest, **proof}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Plan:
        """Read what `to_json` wrote. The Program is made anew from wish and choices, and proved anew.

        Raises PlanError for a malformed document, ProgramError where the Program no longer holds.
        """
        check_schema(document, SCHEMA)
        try:
            wish = MatmulAllReduce.from_json(document["wish"])
            ranks, choices = int(document["ranks"]), Choices.from_json(document["choices"])
            emitted = choices.program(wish, ranks)
            certificate = verify(emitted)
            certificate.raise_if_bad()
            return cls(
                str(document["schedule"]),
                wish,
                ranks,
                choices,
                str(document["machine"]),
                emitted,
                certificate,
                Timeline.from_json(document["predicted"]),
                float(document["serial_s"]),
                float(document["compute_s"]),
                float(document["comm_s"]),
                {str(name): float(seconds) for name, seconds in document["losses"].items()},
                tuple(Rival.from_json(rival) for rival in document["rivals"]),
                dict(document["steps"]),
                tuple(document["notes"]),
                dict(document["published"]),
                float(document["noise"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise PlanError("malformed plan document", found=f"{type(error).__name__}: {error}") from error
