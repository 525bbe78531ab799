"""abilities: what some operators can do beyond `Operator`, each a small protocol that generic rooms check for.

Classes have `OnArrays`, `BalancedSizes` and `PublishedCases`: `issubclass(kind, OnArrays)`; operators the others:
`isinstance(operator, Nested)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    from dovetail.ir.operator import Operator
    from dovetail.ir.schedule import Schedule


class CallOption(NamedTuple):
    """A keyword that a call on arrays takes beside them.

    `read(value)` returns the value as the operator has it, or raises OperatorError. `default`: where it is left out.
    `help`: a sentence for the call's documentation.
    """

    read: Callable[[Any], Any]
    default: Any = None
    help: str = ""


class RankArguments(NamedTuple):
    """What a rank reports of the arguments of its call: shape of each array, their dtype, its options."""

    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    options: dict[str, Any]


@runtime_checkable
class OnArrays(Protocol):
    """A class of operators whose sizes follow from arrays: it is called by name, on each rank's own arrays."""

    @classmethod
    def call_arrays(cls) -> Mapping[str, str]:
        """Return the arrays of a call, by name and in order, each with a phrase for the call's documentation. A list
        may be given for the last one: several arrays."""

    @classmethod
    def call_options(cls) -> Mapping[str, CallOption]:
        """Return the keywords of a call, by name."""

    @classmethod
    def fault_of(cls, given: Sequence[Any]) -> str:
        """Return the fault of one rank's arrays, in words; empty if there is none."""

    @classmethod
    def of_ranks(cls, arguments: Sequence[RankArguments]) -> Operator:
        """Return the operator of all ranks' arguments. Raises OperatorError, naming the rank, if they do not fit."""


@runtime_checkable
class BalancedSizes(Protocol):
    """A class of operators that can choose sizes for a machine: compute takes about as long as communication."""

    @classmethod
    def pilot(cls, ranks: int, dtype: str) -> Operator:
        """Return a small operator to measure a machine's FLOP/s and bytes/s with."""

    @classmethod
    def sized(cls, ranks: int, dtype: str, flop_per_s: float, bytes_per_s: float) -> Operator:
        """Return an operator whose sides take equally long at these speeds of a rank and of the collective."""


class PublishedCase(NamedTuple):
    """An operator with figures published by others. `name`: their name. `machine`: the preset of their machine."""

    name: str
    operator: Operator
    machine: str


@runtime_checkable
class PublishedCases(Protocol):
    """A class of operators on which rules for choosing schedules are compared."""

    @classmethod
    def published_cases(cls) -> Sequence[PublishedCase]:
        """Return the operators with figures published by others."""

    @classmethod
    def drawn(cls, rng: np.random.Generator, ranks: int) -> Operator:
        """Return an operator of random sizes."""


@dataclass(frozen=True)
class Heuristic:
    """A published rule for choosing schedules, to compare with.

    `family`: family of the schedules that it makes. `asked`: options that it makes them with. `among`: families from
    which it picks one; empty if it has only its own. `why_not`: why it does not apply to an operator.
    """

    name: str
    family: str = ""
    asked: Mapping[str, Any] = field(default_factory=dict)
    among: tuple[str, ...] = ()
    why_not: str = ""


@runtime_checkable
class HasHeuristics(Protocol):
    """An operator with published rules for choosing its schedules: `heuristics`."""

    heuristics: ClassVar[tuple[Heuristic, ...]]

    def counted_as(self, base: Schedule, found: Schedule) -> Schedule:
        """Return `found`, the result of a local search from `base`, with the family that comparisons count it for."""


@runtime_checkable
class Nested(Protocol):
    """An operator made from a loop nest. `nest`: a `loops.Nest`; its text identifies the operator."""

    nest: ClassVar[Any]
