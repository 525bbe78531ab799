"""record: a Python function of loops, run once on symbols, becomes a tree of loops and statements."""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dovetail.core import WishError
from dovetail.loops.affine import Affine, caller
from dovetail.loops.expressions import Read, Value, reads, value_of

MOST_STATEMENTS = 1000
# Names that mean something else in C.
RESERVED = frozenset(
    """auto break case char const continue default do double else enum extern float for goto if inline int long register
    restrict return short signed sizeof static struct switch typedef union unsigned void volatile while main memcpy
    sqrt sqrtf exp expf sin sinf cos cosf fabs fabsf y0 y1 j0 j1 yn jn""".split()  # noqa: SIM905
)
BOUNDARIES = ("fixed", "periodic", "reflecting")


@dataclass(frozen=True)
class Array:
    """An array of a nest: what its axes are called or how long they are, its dtype, and what lies at its boundary.

    `time`: its first subscript is a step of the time loop; as many levels are kept as the statements need, and those
    before the first step are given. `boundary`: of such an array, what a new level has where no statement writes it.
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
    """`for index in range(low, high)`, and what it holds."""

    index: str
    low: Affine
    high: Affine
    body: list[Loop | Statement] = field(default_factory=list)

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


class Recorder:
    """Collects loops and statements while the function runs."""

    def __init__(self, arrays: Mapping[str, Array], symbols: Sequence[str]) -> None:
        self.arrays, self.symbols = arrays, set(symbols)
        self.body: list[Loop | Statement] = []
        self.statements: list[Statement] = []
        self._open: list[Loop] = []
        self.left_early = ""  # where there is a loop that something broke out of

    def symbol(self, name: str | int) -> Affine:
        return Affine((), name, self) if isinstance(name, int) else Affine(((name, 1),), 0, self)

    def enter(self, index: str, low: Affine, high: Affine) -> Loop:
        taken = {loop.index for loop in self._open} | self.symbols | set(self.arrays) | RESERVED
        name, number = index, 1
        while name in taken:
            number += 1
            name = f"{index}{number}"
        for bound in (low, high):
            self._check_names(bound, f"a bound of loop {name}")
        made = Loop(name, low, high)
        (self._open[-1].body if self._open else self.body).append(made)
        self._open.append(made)
        return made

    def leave(self) -> None:
        self._open.pop()

    def read(self, array: str, given: Any) -> Read:
        at = tuple(Affine.of(each) for each in (given if isinstance(given, tuple) else (given,)))
        found = Read(array, at)
        if len(at) != self.arrays[array].subscripts:
            asked = self.arrays[array]
            hint = f"{asked.subscripts} subscripts" + ", the first of them the time step" * asked.time
            raise WishError(f"array {array} has other axes", where=caller(), found=str(found), hint=hint)
        for each in at:
            self._check_names(each, f"a subscript of {found}")
        return found

    def write(self, array: str, at: Any, given: Any) -> None:
        target = self.read(array, at)
        name = f"S{len(self.statements)}"
        made = Statement(name, target, value_of(given), tuple(self._open), caller())
        (self._open[-1].body if self._open else self.body).append(made)
        self.statements.append(made)
        if len(self.statements) > MOST_STATEMENTS:
            hint = "take bounds from u.shape or from parameters; loops over plain numbers are written out"
            raise WishError(f"more than {MOST_STATEMENTS} statements", where=caller(), hint=hint)

    def _check_names(self, value: Affine, what: str) -> None:
        known = {loop.index for loop in self._open} | self.symbols
        if strange := [name for name in value.names if name not in known]:
            hint = "indices hold within their loop only"
            raise WishError(f"index {strange[0]} outside its loop, in {what}", where=caller(), hint=hint)


class Symbolic:
    """An array while a function is recorded."""

    def __init__(self, name: str, recorder: Recorder) -> None:
        self._name, self._recorder = name, recorder
        self.shape = tuple(map(recorder.symbol, recorder.arrays[name].shape))

    def __getitem__(self, at: Any) -> Read:
        return self._recorder.read(self._name, at)

    def __setitem__(self, at: Any, value: Any) -> None:
        self._recorder.write(self._name, at, value)


def loop(*bounds: Any) -> Iterator[Any]:
    """`for i in loop(high)`, `loop(low, high)` or `loop(high - 1, low - 1, -1)`: like range, and where a nest is
    recorded over one symbolic index. A loop that goes back is recorded as one that counts its iterations.

    >>> list(loop(2, 5)), list(loop(4, 1, -1))
    ([2, 3, 4], [4, 3, 2])
    """
    step = Affine.of(bounds[2]) if len(bounds) == 3 else Affine((), 1)
    if len(bounds) not in (1, 2, 3) or step.terms or abs(step.constant) != 1:
        found, hint = ", ".join(map(str, bounds)), "a loop over every second element can be one over i with u[2 * i]"
        raise WishError("a loop has one or two bounds, and a step of 1 or -1", where=caller(), found=found, hint=hint)
    owner = next((b.owner for b in bounds if isinstance(b, Affine) and b.owner is not None), None)
    if owner is None:
        return iter(range(*bounds))
    first, end = (Affine.of(each, owner) for each in (bounds[:2] if len(bounds) > 1 else (0, *bounds)))
    return _back(owner, _index_name(), first, end) if step.constant < 0 else _once(owner, _index_name(), first, end)


def _once(recorder: Recorder, index: str, low: Affine, high: Affine) -> Iterator[Affine]:
    where = caller()
    try:
        yield recorder.symbol(recorder.enter(index, low, high).index)
    except GeneratorExit:
        recorder.left_early = recorder.left_early or where
    else:
        recorder.leave()


def _back(recorder: Recorder, index: str, first: Affine, end: Affine) -> Iterator[Affine]:
    yield from (first - count for count in _once(recorder, index, Affine((), 0, recorder), first - end))


def _index_name() -> str:
    """What the user's `for` calls the index, as far as the source can be read."""
    frame = sys._getframe(2)
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    match = re.search(r"\bfor\s+(\w+)\s+in\b", line)
    return (match[1].strip("_") or "step") if match else "i"


def record(function: Callable[..., Any], arrays: Mapping[str, Array], parameters: Sequence[str]) -> Recorder:
    """Run a function on symbols: its arrays by name, and the sizes and parameters that it takes."""
    sizes = [size for array in arrays.values() for size in array.shape if isinstance(size, str)]
    if strange := [n for n in (function.__name__, *arrays, *sizes, *parameters) if n in RESERVED or n.endswith("_")]:
        raise WishError(f"'{strange[0]}' cannot be a name in C", where=caller(), hint="call it otherwise")
    recorder = Recorder(arrays, [*sizes, *parameters])
    given = {name: Symbolic(name, recorder) for name in arrays}
    function(**given, **{name: recorder.symbol(name) for name in parameters})
    if recorder.left_early:
        hint = "a loop goes through all its iterations: narrow its bounds"
        raise WishError("a loop is left early", where=recorder.left_early, hint=hint)
    if not recorder.statements:
        raise WishError(f"{function.__name__} has no statement", hint="write u[i] = … within its loops")
    return recorder
