"""Operator: what the user wants, before any schedule; all that plan, probe, run, tune, report and cli ask of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dovetail.core import CostError, OperatorError, check_schema
from dovetail.ir.arrays import ArraySpec
from dovetail.ir.build import Builder
from dovetail.ir.kernels import Work
from dovetail.ir.program import Program
from dovetail.ir.schedule import Schedule
from dovetail.ir.workload import Workload

Floats = NDArray[np.float64]
Times = float | NDArray[np.int64]


@dataclass(frozen=True)
class Option:
    """An option of an operator (`of` "operator": required unless it has a default), or a limit on its schedules (`of`
    "schedules"; None leaves it to the search). The command line is generated from these."""

    name: str
    type: type
    help: str
    default: Any = None
    choices: tuple[str, ...] = ()
    least: float | None = None
    of: str = "operator"
    needed: bool = False


class LibraryCall(NamedTuple):
    """A call of the library that an operator's schedules make: its kind, and bytes of the larger of a rank's
    buffers."""

    kind: str
    num_bytes: int


class Piece(NamedTuple):
    """Iterations that a rank computes at once: those of step `step` (from 1) from `low` to `high` along one axis, in
    its `turn`-th tile or sweep. Those beyond what the rank owns are computed by another rank, too. Of a pipeline a step
    is some positions of its tiles, and a turn is a time step."""

    rank: int
    turn: int
    step: int
    low: int
    high: int
    beyond: bool


class Space(NamedTuple):
    """A part of an iteration space, for a picture: rows of one axis across, steps upwards; `cuts`: where ranks meet.

    `up`: what steps are called; `first`, `stride`: the number that step 1 goes by, and how far the next one's is;
    `apart`: whether each is computed by itself.
    """

    axis: str
    low: int
    high: int
    cuts: tuple[int, ...]
    pieces: tuple[Piece, ...]
    up: str = "step"
    first: int = 1
    stride: int = 1
    apart: bool = True

    def number(self, step: int) -> int:
        """What a step goes by."""
        return self.first + (step - 1) * self.stride


class Sample(NamedTuple):
    """A computation to benchmark.

    `most`: largest amount any schedule runs at once. `add(builder, ranks, amounts)` appends one op per amount on every
    rank, none where there are no amounts, and returns their rows by rank. `schedule(amount)`: the schedule whose
    kernels these are; None: the serial one.
    """

    label: str
    most: int
    add: Callable[[Builder, int, Sequence[int]], dict[int, list[int]]]
    schedule: Callable[[int], Schedule] | None = None


class Costs(Protocol):
    """What things take on the machine that is planned for, as an operator may ask when it proposes schedules."""

    @property
    def ranks(self) -> int: ...

    @property
    def options(self) -> Mapping[str, Any]:
        """What the user asked of the schedules, by the names of the operator's options; what was not asked for is
        None."""

    @property
    def family(self) -> str:
        """The family of schedules that the user keeps to, or "auto"."""

    def for_operator(self, operator: Operator) -> Costs:
        """The same for another operator, of sizes beyond what was measured too."""

    def knows_collective(self, kind: str) -> bool:
        """Whether the machine has a cost of the library's collective of that kind."""

    def knows_messages(self) -> bool:
        """Whether it has a cost of messages between every two ranks."""

    def has_one_way_out(self) -> bool:
        """Whether all messages of a rank, to whichever other, go out by one and the same link: to a switch, say."""

    def unknown(self, kind: str) -> CostError:
        """The error that the machine has no cost of this collective, in no way."""

    def collective_s(self, kind: str, num_bytes: NDArray[Any]) -> Floats:
        """Seconds of the library's call, by bytes of the larger of a rank's buffers."""

    def work_s(self, work: Sequence[Work], amount: NDArray[Any]) -> Floats:
        """Seconds of the slowest of such computations, each `amount` times; below what was measured, those of its
        start."""

    def least_amount(self, work: Sequence[Work]) -> float:
        """The least amount that was measured of all of these, 0 where the machine is asked for FLOP only."""

    def is_measured(self, work: Sequence[Work]) -> bool:
        """Whether each of these was measured, and not taken from a rate of FLOP."""

    def messages_s(self, operator: Operator, schedule: Schedule) -> float:
        """Seconds of a schedule of an operator (a part of the one that is planned for), were its computations free."""

    def predicted_s(self, schedule: Schedule) -> float:
        """Seconds of a schedule, as simulated; infinite where the machine lacks a cost."""

    def busy_s(self, schedule: Schedule) -> float:
        """Seconds that the busiest lane or link of a schedule works, undisturbed: no order of its ops takes less."""

    def effort(self, schedule: Schedule) -> int:
        """What a look at a schedule takes: the ops that are simulated for it, and what making any takes, in ops."""

    def stretch(self, schedule: Schedule) -> tuple[float, float]:
        """By how much compute and messages of a schedule slow each other, as one factor each."""


@runtime_checkable
class Operator(Protocol):
    """What the user wants, of any number of ranks, before any schedule. Frozen: sizes are in the operator, ranks come
    with each question.

    Attributes
    ----------
    name : str
        As on the command line.
    options : tuple of Option
        Its options, and the limits on its schedules. The command line and the HTML page are generated from these.
    families : tuple of str
        Families of its schedules, the simplest first: of equal predictions the earlier family wins. "serial" is one.
    by_size : bool
        Whether a schedule is chosen at each of several sizes, into a table.

    See Also
    --------
    OfFields : an operator that is a dataclass.
    dovetail.ir.abilities : what a class of operators may offer beyond this.

    Notes
    -----
    A class that inherits from this has what most operators answer alike: one without `reference`, `space`, `refine`,
    `neighbours`, `samples` and `library_calls` has none of these, and `default_schedule` is `serial`.
    """

    name: ClassVar[str]
    options: ClassVar[tuple[Option, ...]]
    families: ClassVar[tuple[str, ...]]
    by_size: ClassVar[bool]

    # Sizes

    @classmethod
    def points(cls, **asked: Any) -> Sequence[Self]:
        """Return the operators that these values of its options ask for: one, or one of each size. None is a value that
        was not asked for."""

    @property
    def title(self) -> str:
        """The operator in a few words, sizes included."""

    def to_json(self) -> dict[str, Any]:
        """Return a document, `schema` first, that `from_json` reads."""

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Return the operator of a document. OperatorError where it is malformed."""

    def resolve(self, facts: Mapping[str, Any], ranks: int) -> tuple[Operator, tuple[str, ...]]:
        """Return the operator as a machine counts its sizes, and sentences where that makes a difference.

        `facts`: the machine's facts, and `nodes`, the node of each rank. OperatorError if the operator does not exist
        on `ranks` ranks.
        """
        return self, ()

    # Arrays

    def inputs(self, schedule: Schedule, ranks: int) -> Sequence[ArraySpec]:
        """Return the arrays that every rank gives in a call, in order. `Signature` checks them and lays them out."""

    def outputs(self, schedule: Schedule, ranks: int) -> Sequence[ArraySpec]:
        """Return the arrays that every rank gets, in order."""

    # Programs

    def program(self, schedule: Schedule, ranks: int) -> Program:
        """Return the Program of a schedule. PlanError where the schedule does not fit the operator."""

    def reference(self, schedule: Schedule, ranks: int) -> Program | None:
        """Return a program that is right, on the same inputs and outputs; None where post-conditions say what is."""
        return None

    def workload(self, program: Program, schedule: Schedule) -> Workload:
        """Describe a program of a schedule: elements and dtype of each buffer's slots, and its kernels (cost, native
        form). `program`: that of `program`, of `reference`, of a prediction model, or of a sample."""

    def prediction_model(self, schedule: Schedule, ranks: int) -> tuple[Program, Workload, Times]:
        """Return (program, workload, repeats): a smaller program to simulate. Op i stands for `repeats[i]` identical
        ops, or for `repeats` where it is one number.

        Repeats by op are chains of pieces of messages (see `passes.pieces`). Where two chains share a link, the planner
        simulates all pieces.
        """
        program = self.program(schedule, ranks)
        return program, self.workload(program, schedule), 1.0

    def space(self, schedule: Schedule, ranks: int) -> Space | None:
        """Return the iteration space as a schedule cuts it, or a part that shows how; None where there is none."""
        return None

    # Schedules

    def serial(self, ranks: int) -> Schedule:
        """Return the schedule without overlap, by the library's collectives: what a user has without Dovetail. Its
        Program is the reference for results."""

    def default_schedule(self, ranks: int) -> Schedule:
        """Return the schedule to run where nothing was tuned."""
        return self.serial(ranks)

    def schedules(self, costs: Costs) -> Iterator[Schedule]:
        """Yield every schedule worth simulating, serial ones first."""

    def refine(self, costs: Costs, ranked: Sequence[Schedule], turn: int) -> Iterator[Schedule]:
        """Yield further schedules, made of the best predicted so far. Asked with turn 0, 1, … until there are none."""
        return iter(())

    def neighbours(self, schedule: Schedule) -> Iterator[Schedule]:
        """Yield the schedules next to one that was measured to be fast."""
        return iter(())

    def describe(self, schedule: Schedule, ranks: int) -> str:
        """Return a schedule in a few words."""

    # Benchmarks

    def samples(self, ranks: int) -> Sequence[Sample]:
        """Return the computations to benchmark, the usual one first; none where there is nothing to compute."""
        return ()

    def library_calls(self, ranks: int) -> Sequence[LibraryCall]:
        """Return the library's calls to benchmark, each whole."""
        return ()


@dataclass(frozen=True)
class OfFields(Operator):
    """An operator of which its fields say all: one for one set of options, a document of theirs."""

    name: ClassVar[str]

    @classmethod
    def points(cls, **asked: Any) -> tuple[Self, ...]:
        """The one operator of these fields."""
        return (cls(**{name: value for name, value in asked.items() if value is not None}),)

    def to_json(self) -> dict[str, Any]:
        return {"schema": f"dovetail.operator.{self.name}/1", **asdict(self)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        check_schema(document, f"dovetail.operator.{cls.name}/1")
        try:
            return cls(**{field.name: document[field.name] for field in fields(cls)})
        except KeyError as error:
            raise OperatorError(f"malformed operator document: {error} is missing") from None
