"""Operator: what the user wants computed, before any schedule. Generic code knows an operator by this protocol only."""

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
    """An option of an operator or of its schedules. The command line is generated from these.

    Parameters
    ----------
    name, type, help, default, choices
        As in `argparse`.
    least : float, optional
        The smallest valid value.
    of : {"operator", "schedules"}
        An option of the operator is required unless it has a default. An option of its schedules restricts the search;
        None leaves the value to the search.
    needed : bool
        Whether the option is required although `default` is None.
    """

    name: str
    type: type
    help: str
    default: Any = None
    choices: tuple[str, ...] = ()
    least: float | None = None
    of: str = "operator"
    needed: bool = False


class LibraryCall(NamedTuple):
    """A call of the collective library: its kind, and the bytes of the larger of a rank's input and output."""

    kind: str
    num_bytes: int


class Piece(NamedTuple):
    """Iterations that a rank computes at once: [low, high) along one axis, of step `step` (from 1).

    `turn`: number of the rank's tile or sweep that they belong to. `beyond`: the rank does not own these iterations;
    their owner computes them, too. In a pipeline a step is a group of tile positions, and a turn is a time step.
    """

    rank: int
    turn: int
    step: int
    low: int
    high: int
    beyond: bool


class Space(NamedTuple):
    """A part of an iteration space, for a picture: positions along one axis to the right, steps upwards.

    `cuts`: borders between ranks. `up`: the label of the vertical axis. Step s is labelled `first + (s - 1) · stride`.
    `apart`: whether each step is computed separately.
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
        """Return the label of a step."""
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
    """The costs of the machine that a plan is for: what an operator may ask when it proposes schedules."""

    @property
    def ranks(self) -> int: ...

    @property
    def options(self) -> Mapping[str, Any]:
        """The values that the user gave for options of schedules, by name; None for those not given."""

    @property
    def family(self) -> str:
        """The family of schedules that the user asked for, or "auto"."""

    def for_operator(self, operator: Operator) -> Costs:
        """Return the costs of another operator. Sizes beyond the measured range are extrapolated."""

    def knows_collective(self, kind: str) -> bool:
        """Return whether the machine has a cost for the library's collective of this kind."""

    def knows_messages(self) -> bool:
        """Return whether the machine has a cost for messages between every two ranks."""

    def has_one_way_out(self) -> bool:
        """Return whether all messages of a rank leave by one link (as to a switch)."""

    def unknown(self, kind: str) -> CostError:
        """Return the error that the machine has no cost for this collective, as a library call or by messages."""

    def collective_s(self, kind: str, num_bytes: NDArray[Any]) -> Floats:
        """Return the seconds of the library's calls, by the bytes of the larger of a rank's input and output."""

    def work_s(self, work: Sequence[Work], amount: NDArray[Any]) -> Floats:
        """Return the seconds of the slowest of these computations, at `amount` times its units. Amounts below the
        measured range cost as much as its lower end."""

    def least_amount(self, work: Sequence[Work]) -> float:
        """Return the smallest amount that was measured of all of these; 0 if their times come from a FLOP rate."""

    def is_measured(self, work: Sequence[Work]) -> bool:
        """Return whether all of these were measured; False if any time comes from a FLOP rate."""

    def messages_s(self, operator: Operator, schedule: Schedule) -> float:
        """Return the predicted seconds of a schedule of `operator` whose computations take no time."""

    def predicted_s(self, schedule: Schedule) -> float:
        """Return the simulated seconds of a schedule; infinity if the machine lacks a cost."""

    def busy_s(self, schedule: Schedule) -> float:
        """Return the seconds of a schedule's busiest lane or link without contention, a lower bound of its time."""

    def effort(self, schedule: Schedule) -> int:
        """Return the cost of predicting a schedule, in simulated ops; building its Program is included."""

    def stretch(self, schedule: Schedule) -> tuple[float, float]:
        """Return the factors by which compute and messages of a schedule slow each other: (compute, messages)."""


@runtime_checkable
class Operator(Protocol):
    """What the user wants computed, on any number of ranks, before any schedule.

    An operator is immutable and holds its sizes. Each method gets the number of ranks, or a schedule and that number.

    Attributes
    ----------
    name : str
        The name on the command line.
    options : tuple of Option
        Options of the operator and of its schedules. The command line and the HTML page are generated from these.
    families : tuple of str
        Families of schedules, the simplest first; "serial" is one. If predictions are equal, the earlier family wins.
    by_size : bool
        Whether a schedule is chosen for each of several sizes, into a selection table.

    See Also
    --------
    OfFields : an operator that is a dataclass.
    dovetail.ir.abilities : optional protocols beyond this one.

    Notes
    -----
    A class that inherits from this gets defaults: no `reference`, `space`, `refine`, `neighbours`, `samples` and
    `library_calls`; and `default_schedule` returns `serial`.
    """

    name: ClassVar[str]
    options: ClassVar[tuple[Option, ...]]
    families: ClassVar[tuple[str, ...]]
    by_size: ClassVar[bool]

    # Sizes

    @classmethod
    def points(cls, **asked: Any) -> Sequence[Self]:
        """Return an operator for each size that these values of the options give. None: the option was not given."""

    @property
    def title(self) -> str:
        """A short description, sizes included."""

    def to_json(self) -> dict[str, Any]:
        """Return a document, `schema` first, that `from_json` reads."""

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Return the operator that `to_json` wrote. Raises OperatorError if the document is malformed."""

    def resolve(self, facts: Mapping[str, Any], ranks: int) -> tuple[Operator, tuple[str, ...]]:
        """Return the operator with its sizes as this machine counts them, and a sentence for each that differs.

        `facts`: the machine's facts, and `nodes`, the node of each rank. Raises OperatorError if the operator cannot
        run on `ranks` ranks.
        """
        return self, ()

    # Arrays

    def inputs(self, schedule: Schedule, ranks: int) -> Sequence[ArraySpec]:
        """Return the arrays that every rank passes, in order. `Signature` checks them and fills buffers with them."""

    def outputs(self, schedule: Schedule, ranks: int) -> Sequence[ArraySpec]:
        """Return the arrays that every rank gets, in order."""

    # Programs

    def program(self, schedule: Schedule, ranks: int) -> Program:
        """Return the Program of a schedule. Raises PlanError if the schedule does not fit the operator."""

    def reference(self, schedule: Schedule, ranks: int) -> Program | None:
        """Return a correct program with the same inputs and outputs; None if post-conditions define the results."""
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
        """Return (a representative part of) the iteration space as a schedule cuts it; None if there is none."""
        return None

    # Schedules

    def serial(self, ranks: int) -> Schedule:
        """Return the schedule without overlap, with the library's collectives: what a user has without Dovetail. Its
        Program is the reference for results."""

    def default_schedule(self, ranks: int) -> Schedule:
        """Return the schedule to run where nothing was tuned."""
        return self.serial(ranks)

    def schedules(self, costs: Costs) -> Iterator[Schedule]:
        """Yield every schedule worth simulating, serial ones first."""

    def refine(self, costs: Costs, ranked: Sequence[Schedule], turn: int) -> Iterator[Schedule]:
        """Yield schedules derived from the best so far. The planner calls it with turn 0, 1, … until none is left."""
        return iter(())

    def neighbours(self, schedule: Schedule) -> Iterator[Schedule]:
        """Yield the schedules that differ from `schedule` in one small step, to refine it by measuring."""
        return iter(())

    def describe(self, schedule: Schedule, ranks: int) -> str:
        """Return a short description of a schedule."""

    # Benchmarks

    def samples(self, ranks: int) -> Sequence[Sample]:
        """Return the computations to benchmark, the most typical one first; none if there is nothing to compute."""
        return ()

    def library_calls(self, ranks: int) -> Sequence[LibraryCall]:
        """Return the library's calls to benchmark."""
        return ()


@dataclass(frozen=True)
class OfFields(Operator):
    """An operator that is a dataclass: its fields are its options, and the content of its document."""

    name: ClassVar[str]

    @classmethod
    def points(cls, **asked: Any) -> tuple[Self, ...]:
        """Return the one operator with these fields."""
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
