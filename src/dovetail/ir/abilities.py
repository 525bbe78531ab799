"""abilities: optional protocols of operators, beyond `Operator`; generic code checks for each where it needs it.

Classes of operators implement `OnArrays`, `BalancedSizes` and `PublishedCases`: `issubclass(kind, OnArrays)`. Their
instances implement `HasHeuristics` and `Nested`: `isinstance(operator, Nested)`.
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
    """A keyword argument of a call on arrays.

    `read(value)` converts what the caller passed to the operator's own value, or raises OperatorError. `default`: the
    value if the caller passes none. `help`: a sentence for the call's documentation.
    """

    read: Callable[[Any], Any]
    default: Any = None
    help: str = ""


class RankArguments(NamedTuple):
    """The arguments of one rank's call: the shape of each array, the dtype of all of them, and the options."""

    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    options: dict[str, Any]


@runtime_checkable
class OnArrays(Protocol):
    """A class of operators that is called on arrays, by name: the arrays of all ranks determine the sizes."""

    @classmethod
    def call_arrays(cls) -> Mapping[str, str]:
        """Return the name of each array of a call, in order, with a phrase for the call's documentation. The caller may
        pass a list of arrays as the last one."""

    @classmethod
    def call_options(cls) -> Mapping[str, CallOption]:
        """Return the keyword arguments of a call, by name."""

    @classmethod
    def fault_of(cls, given: Sequence[Any]) -> str:
        """Return what is wrong with one rank's arrays; "" if they are valid."""

    @classmethod
    def of_ranks(cls, arguments: Sequence[RankArguments]) -> Operator:
        """Return the operator of all ranks' arguments. Raises OperatorError, naming a rank that does not fit."""


@runtime_checkable
class BalancedSizes(Protocol):
    """A class of operators that can choose sizes for a machine: compute takes about as long as communication."""

    @classmethod
    def pilot(cls, ranks: int, dtype: str) -> Operator:
        """Return a small operator with which a machine's FLOP/s and bytes/s are measured."""

    @classmethod
    def sized(cls, ranks: int, dtype: str, flop_per_s: float, bytes_per_s: float) -> Operator:
        """Return an operator whose compute and communication take equally long at these speeds of a rank."""


class PublishedCase(NamedTuple):
    """An operator with published timings: its published `name`, and the preset of the `machine` measured."""

    name: str
    operator: Operator
    machine: str


@runtime_checkable
class PublishedCases(Protocol):
    """A class of operators on which rules for choosing schedules are compared."""

    @classmethod
    def published_cases(cls) -> Sequence[PublishedCase]:
        """Return the operators of which others published timings."""

    @classmethod
    def drawn(cls, rng: np.random.Generator, ranks: int) -> Operator:
        """Return an operator of random sizes."""


@dataclass(frozen=True)
class Heuristic:
    """A published rule for choosing a schedule, with which Dovetail's own choice is compared.

    `family`: the family of the schedules that the rule makes. `asked`: the options that it sets. `among`: the families
    from which it picks one; empty if it makes schedules of `family` only. `why_not`: why the rule does not apply to
    this operator; "" if it does.
    """

    name: str
    family: str = ""
    asked: Mapping[str, Any] = field(default_factory=dict)
    among: tuple[str, ...] = ()
    why_not: str = ""


@runtime_checkable
class HasHeuristics(Protocol):
    """An operator for which there are published rules for choosing a schedule: `heuristics`."""

    heuristics: ClassVar[tuple[Heuristic, ...]]

    def counted_as(self, base: Schedule, found: Schedule) -> Schedule:
        """Return `found`, the result of a local search from `base`, with the family as which comparisons count it."""


@runtime_checkable
class Nested(Protocol):
    """An operator made from a loop nest. `nest`: the `loops.Nest`; its source text identifies the operator."""

    nest: ClassVar[Any]
