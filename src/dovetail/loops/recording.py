"""recording: Recording, the arrays, loops and statements of a function of loops, which every analysis reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dovetail.loops.affine import Affine
from dovetail.loops.expressions import Read, Value, reads

BOUNDARIES = ("fixed", "periodic", "reflecting")
WRAPS = ("periodic", "reflecting")


@dataclass(frozen=True)
class Array:
    """An array of a nest: names or lengths of its axes, its dtype and its boundary.

    `time`: its first subscript is a time level; as many levels are kept as the statements need, and those
    before the first step are given. `boundary`, with `time`: the values of a new level where no statement writes it.
    """

    shape: tuple[str | int, ...]
    dtype: str | None = None
    time: bool = False
    boundary: str | None = None

    @property
    def subscripts(self) -> int:
        return len(self.shape) + self.time


@dataclass(frozen=True, eq=False)
class Loop:
    """`for index in range(low, high)`, with its body."""

    index: str
    low: Affine
    high: Affine
    body: list[Loop | Statement | Take] = field(default_factory=list)

    def __str__(self) -> str:
        return f"for {self.index} in loop({self.low}, {self.high})"


@dataclass(frozen=True, eq=False)
class Statement:
    """One assignment, the loops around it from the outermost in, and where it was written."""

    name: str
    target: Read
    value: Value
    loops: tuple[Loop, ...]
    line: str

    @property
    def reads(self) -> tuple[Read, ...]:
        """The elements that it reads, each once."""
        return tuple({str(read): read for read in reads(self.value)}.values())

    def __str__(self) -> str:
        return f"{self.target} = {self.value}"


@dataclass(frozen=True, eq=False)
class Take:
    """`name = read`, where the user's function reads the element."""

    name: str
    read: Read
    line: str

    def __str__(self) -> str:
        return f"{self.name} = {self.read}"


class Code:
    """The loops and statements of a function. `symbols`: the names of its sizes and parameters."""

    def __init__(self, arrays: Mapping[str, Array], symbols: Sequence[str]) -> None:
        self.arrays, self.symbols = arrays, set(symbols)
        self.body: list[Loop | Statement | Take] = []
        self.statements: list[Statement] = []

    def symbol(self, name: str | int) -> Affine:
        return Affine((), name, self) if isinstance(name, int) else Affine(((name, 1),), 0, self)


@dataclass(frozen=True, eq=False)
class Recording:
    """A recorded function of loops over arrays.

    `arrays` in the order of the arguments; `parameters`: whole numbers that the function takes beside them.
    """

    name: str
    function: Callable[..., Any] = field(repr=False)
    arrays: Mapping[str, Array]
    parameters: tuple[str, ...]
    code: Code = field(repr=False)

    @property
    def body(self) -> Sequence[Loop | Statement | Take]:
        return self.code.body

    @property
    def statements(self) -> Sequence[Statement]:
        return self.code.statements

    @property
    def written(self) -> tuple[str, ...]:
        """The arrays that it writes, in the order of the arguments."""
        targets = {statement.target.array for statement in self.statements}
        return tuple(name for name in self.arrays if name in targets)

    def accesses(self, name: str) -> Iterator[tuple[Statement, Read]]:
        """Yield every element of an array that a statement reads or writes."""
        for statement in self.statements:
            yield from ((statement, each) for each in (*statement.reads, statement.target) if each.array == name)

    def __str__(self) -> str:
        return "\n".join(_lines(self.body, ""))


def _lines(body: Sequence[Loop | Statement | Take], indent: str) -> Iterator[str]:
    for each in body:
        yield f"{indent}{each}{':' if isinstance(each, Loop) else ''}"
        if isinstance(each, Loop):
            yield from _lines(each.body, indent + "    ")
