"""Operator: what the user wants, before any schedule; all that plan, probe, run, tune, report and cli ask of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from dovetail.core import CostError, OperatorError, check_schema
from dovetail.ir.build import Builder
from dovetail.ir.kernels import Work
from dovetail.ir.program import Program
from dovetail.ir.schedule import Schedule
from dovetail.ir.workload import Workload

Floats = NDArray[np.float64]
Arrays = Mapping[str, NDArray[Any]]
Times = float | NDArray[np.int64]


@dataclass(frozen=True)
class Option:
    """One thing that may be said of an operator (`of` "operator": needed to make it, unless it has a default), or asked
    of its schedules (`of` "schedules"; None leaves it to the search). The command line is made of these."""

    name: str
    type: type
    help: str
    default: Any = None
    choices: tuple[str, ...] = ()
    least: float | None = None
    of: str = "operator"
    needed: bool = False


@dataclass(frozen=True)
class Heuristic:
    """A rule that others choose by, to be compared with: the family of the schedules that it makes, and what is asked
    of them. `among`: the families that it picks one of; empty where it has but its own. `why_not`: why it has nothing
    to say of this operator, where it has not."""

    name: str
    family: str = ""
    asked: Mapping[str, Any] = field(default_factory=dict)
    among: tuple[str, ...] = ()
    why_not: str = ""


class Studied(NamedTuple):
    """An operator that others published figures of: what they call it, and the machine, a preset, that they had."""

    name: str
    operator: Operator
    machine: str


class Collected(NamedTuple):
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
    """A computation whose cost is to be measured: what it is called, the most of it that a schedule does at once, and
    what appends computations of these amounts, one after the other on every rank, to a program; their rows by rank."""

    label: str
    most: int
    add: Callable[[Builder, int, Sequence[int]], dict[int, list[int]]]


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


@dataclass(frozen=True)
class OfFields:
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


class Operator(Protocol):
    """What the user wants, of any number of ranks. All of it is frozen; sizes are in the operator, ranks come with each
    question.

    `name`: as on the command line. `options`: what may be said of it, and asked of its schedules. `families`: of its
    schedules, the simplest first: on equal predictions the earlier one is taken; "serial" is among them. `by_size`:
    whether it is chosen for at several sizes, into a table.

    A class may also have `heuristics`, rules that others choose its schedules by; `studied()`, operators that others
    published figures of; `drawn(rng, ranks)`, one of sizes drawn at random.
    """

    name: ClassVar[str]
    options: ClassVar[tuple[Option, ...]]
    families: ClassVar[tuple[str, ...]]
    by_size: ClassVar[bool]

    @classmethod
    def points(cls, **asked: Any) -> Sequence[Operator]:
        """The operators that these values of its options ask for: one, or one of each size; None is not asked for."""

    @property
    def title(self) -> str:
        """The operator in a few words, sizes included."""

    def to_json(self) -> dict[str, Any]: ...

    def settled(self, facts: Mapping[str, Any], ranks: int) -> tuple[Operator, tuple[str, ...]]:
        """The operator as a machine of these facts counts its sizes, and sentences where that makes a difference.
        Beside the machine's own facts there is `nodes`, that of each rank. OperatorError where it cannot be on so many
        ranks."""

    def program(self, schedule: Schedule, ranks: int) -> Program:
        """The Program of a schedule. PlanError where the schedule does not fit the operator."""

    def plain(self, schedule: Schedule, ranks: int) -> Program | None:
        """A plain program that does the same, on the same inputs and outputs; None where post-conditions say it."""

    def space(self, schedule: Schedule, ranks: int) -> Space | None:
        """The iteration space as a schedule cuts it, or a part of it that shows how; None where there is no such."""

    def workload(self, program: Program) -> Workload:
        """What a slot of each buffer of such a Program is, and what its kernels are."""

    def modelled(self, schedule: Schedule, ranks: int) -> tuple[Program, Workload, Times]:
        """What is simulated to predict a schedule, its workload, and how many such each of its messages and
        computations stands for: usually its Program, its workload, and 1. Of messages cut into pieces it may be the
        chains, with a number for each op (see `passes.pieces`): then where chains are not alone on their links, the
        pieces are simulated."""

    def arguments(self, program: Program, rank: int, given: Sequence[Any], out: Any) -> tuple[Arrays, Arrays]:
        """What a rank gives, and what it wants its results in (None: new arrays), by buffer, slots first."""

    def result(self, program: Program, rank: int, held: Arrays) -> Any:
        """What a rank gets, from its output buffers."""

    def serial(self, ranks: int) -> Schedule:
        """Nothing overlapped, by the library: what a user has without us. Its Program says what is right."""

    def usual(self, ranks: int) -> Schedule:
        """What is run where nothing was tuned."""

    def schedules(self, costs: Costs) -> Iterator[Schedule]:
        """Every schedule worth simulating, serial ones first."""

    def improved(self, costs: Costs, ranked: Sequence[Schedule], turn: int) -> Iterator[Schedule]:
        """Further schedules, made of the best predicted so far; asked with turn 0, 1, … until there are none."""

    def neighbours(self, schedule: Schedule) -> Iterator[Schedule]:
        """Schedules next to one that was measured to be fast, worth measuring too."""

    def explained(self, schedule: Schedule, ranks: int) -> str:
        """A schedule in a few words."""

    def samples(self, ranks: int) -> Sequence[Sample]:
        """The computations to measure, the usual one first; none where there is nothing to compute."""

    def collected(self, ranks: int) -> Sequence[Collected]:
        """The library's calls to measure, each whole."""
