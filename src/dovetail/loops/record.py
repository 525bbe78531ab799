"""record: run a Python function of loops once on symbols, and record its loops and statements."""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from dovetail.core import OperatorError
from dovetail.loops.affine import Affine, caller, is_ours
from dovetail.loops.expressions import Read, reads, value_of
from dovetail.loops.iterations import check_alike, check_same, state_now
from dovetail.loops.recording import Array, Code, Loop, Statement, Take
from dovetail.loops.taken import Moment, take_values

MOST_STATEMENTS = 1000
# Names that mean something else in C: keywords, and what math.h, stdint.h and string.h declare.
RESERVED = frozenset(
    """auto break case char const continue default do double else enum extern float for goto if inline int long register
    restrict return short signed sizeof static struct switch typedef union unsigned void volatile while main asm typeof
    unix linux memcpy memmove memset memcmp memchr index rindex int8_t uint8_t int16_t uint16_t int32_t uint32_t int64_t
    uint64_t intmax_t uintmax_t intptr_t uintptr_t size_t float_t double_t NULL NAN INFINITY
    acos asin atan atan2 cos sin tan cosh sinh tanh acosh asinh atanh exp frexp ldexp log log10 modf expm1 log1p logb
    exp2 log2 pow sqrt hypot cbrt ceil fabs floor fmod isinf finite drem significand copysign nan isnan j0 j1 jn
    y0 y1 yn erf erfc lgamma tgamma gamma rint nextafter nexttoward remainder scalbn ilogb scalbln nearbyint round trunc
    remquo lrint llrint lround llround fdim fmax fmin fma scalb signgam sqrtf expf sinf cosf fabsf powf fminf fmaxf
    signbit isfinite isnormal fpclassify strlen strcpy strcat strcmp strncpy strdup""".split()  # noqa: SIM905
)


class Recorder(Code):
    """Collects loops and statements while the function runs."""

    def __init__(self, arrays: Mapping[str, Array], symbols: Sequence[str]) -> None:
        super().__init__(arrays, symbols)
        self._open: list[Loop] = []
        self._lines: list[str] = []  # of the open loops
        self._repeats = 0  # how many open loops are in their second iteration, which is only compared
        self.left_early = ""  # file:line of a loop that a break or return left

    def enter(self, index: str, low: Affine, high: Affine, where: str) -> Loop:
        taken = {loop.index for loop in self._open} | self.symbols | set(self.arrays) | RESERVED
        name, number = index, 1
        while name in taken:
            number += 1
            name = f"{index}{number}"
        for bound in (low, high):
            self._check_names(bound, f"a bound of loop {name}")
        made = Loop(name, low, high)
        self._inside.append(made)
        self._open.append(made)
        self._lines.append(where)
        return made

    def leave(self, loop: Loop) -> None:
        where = self._lines.pop()
        if self._open.pop() is not loop:
            hint = "write one loop, and use its index for both"
            raise OperatorError("loops go on side by side, as in zip(loop(…), loop(…))", where=where, hint=hint)
        if not loop.body:
            hint = "leave it out: a loop is recorded once, and its iterations can only write elements"
            raise OperatorError("a loop writes nothing", where=where, found=str(loop), hint=hint)

    def iterations(self, index: str, low: Affine, high: Affine, where: str) -> Iterator[Affine]:
        """Yield the index twice. The second iteration must record the same as the first, and is dropped."""
        first, before = self.enter(index, low, high, where), len(self.statements)
        yield self._index(first)
        made, state = len(self.statements), state_now()
        self.leave(first)
        again = self.enter(index, low, high, where)
        self._repeats += 1
        yield self._index(again)
        check_same(where, state, state_now())
        self.leave(again)
        self._repeats -= 1
        check_alike(self.statements[before:made], self.statements[made:])
        del self.statements[made:]
        self._inside.pop()

    def _index(self, loop: Loop) -> Affine:
        return Affine(((loop.index, 1),), 0, self, frozenset({loop}))

    @property
    def _inside(self) -> list[Loop | Statement | Take]:
        """The body that is being recorded."""
        return self._open[-1].body if self._open else self.body

    def finish(self) -> None:
        """Check that no loop was left early; add temporaries for values that are used after they are overwritten."""
        if where := self.left_early or (self._lines and self._lines[0]):
            hint = "a loop runs all its iterations: narrow its bounds"
            raise OperatorError("a loop is left early", where=where, hint=hint)
        take_values(self)

    def read(self, array: str, given: Any) -> Read:
        at = tuple(Affine.of(each) for each in (given if isinstance(given, tuple) else (given,)))
        inside = self._inside
        found = Read(array, at, Moment(tuple(self._open), len(self.statements), inside, len(inside), caller()))
        if len(at) != self.arrays[array].subscripts:
            asked = self.arrays[array]
            hint = f"{asked.subscripts} subscripts" + ", the first of them the time step" * asked.time
            raise OperatorError(f"array {array} has other axes", where=caller(), found=str(found), hint=hint)
        for each in at:
            self._check_names(each, f"a subscript of {found}")
        return found

    def write(self, array: str, at: Any, given: Any) -> None:
        target = self.read(array, at)
        name = f"S{len(self.statements)}"
        made = Statement(name, target, value_of(given), tuple(self._open), caller())
        for read in reads(made.value):
            if read.taken is None or read.taken.loops != made.loops[: len(read.taken.loops)]:
                hint = "write it into an array, and read that after the loop"
                what = f"{read} is used after the iteration that read it"
                raise OperatorError(what, where=made.line, found=str(made), hint=hint)
        self._inside.append(made)
        self.statements.append(made)
        if len(self.statements) > MOST_STATEMENTS and not self._repeats:
            hint = "take bounds from u.shape or from parameters; loops over plain numbers are written out"
            raise OperatorError(f"more than {MOST_STATEMENTS} statements", where=caller(), hint=hint)

    def _check_names(self, value: Affine, what: str) -> None:
        known = {loop.index for loop in self._open} | self.symbols
        ended = [loop.index for loop in value.within if loop not in self._open]
        if strange := [*ended, *(name for name in value.names if name not in known)]:
            hint = "indices hold within their loop only"
            raise OperatorError(f"index {strange[0]} outside its loop, in {what}", where=caller(), hint=hint)


class Symbolic:
    """An array while a function is recorded."""

    def __init__(self, name: str, recorder: Recorder) -> None:
        self._name, self._recorder = name, recorder
        self.shape = tuple(map(recorder.symbol, recorder.arrays[name].shape))
        self.ndim = len(self.shape)

    def __getitem__(self, at: Any) -> Read:
        return self._recorder.read(self._name, at)

    def __setitem__(self, at: Any, value: Any) -> None:
        self._recorder.write(self._name, at, value)

    def _whole(self, *_: Any) -> NoReturn:
        hint = "write loops over the elements, for i in loop(u.shape[0]): … u[i] …"
        raise OperatorError(
            "a nest works on elements, not on whole arrays", where=caller(), found=self._name, hint=hint
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        self._whole()

    __iter__ = __len__ = __contains__ = __array__ = __array_ufunc__ = __bool__ = __float__ = _whole
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = _whole
    __lt__ = __le__ = __gt__ = __ge__ = __pow__ = __abs__ = _whole


def loop(*bounds: Any) -> Iterable[Any]:
    """Iterate like range: `loop(high)`, `loop(low, high)` or `loop(high - 1, low - 1, -1)`. While a nest is recorded,
    the index is symbolic, and a loop with step -1 is recorded as a loop over the count of its iterations.

    >>> list(loop(2, 5)), list(loop(4, 1, -1))
    ([2, 3, 4], [4, 3, 2])
    """
    checked = [Affine.of(each) for each in bounds]
    step = checked[2] if len(bounds) == 3 else Affine((), 1)
    if len(bounds) not in (1, 2, 3) or step.terms or abs(step.constant) != 1:
        found, hint = ", ".join(map(str, bounds)), "a loop over every second element can be one over i with u[2 * i]"
        raise OperatorError(
            "a loop has one or two bounds, and a step of 1 or -1", where=caller(), found=found, hint=hint
        )
    owner = next((b.owner for b in checked if b.owner is not None), None)
    if owner is None:
        return range(*bounds)
    first, end = checked[:2] if len(bounds) > 1 else (Affine((), 0, owner), checked[0])
    return _Iterations(owner, _index_name(), first, end, step.constant, caller())


@dataclass(frozen=True, eq=False)
class _Iterations:
    """The iterations of a recorded loop; like a range, they can be iterated several times."""

    recorder: Recorder
    index: str
    first: Affine
    end: Affine
    step: int
    where: str

    def __iter__(self) -> Iterator[Affine]:
        if self.step > 0:
            return self._once(self.first, self.end)
        return (self.first - count for count in self._once(Affine((), 0, self.recorder), self.first - self.end))

    def _once(self, low: Affine, high: Affine) -> Iterator[Affine]:
        try:
            yield from self.recorder.iterations(self.index, low, high, self.where)
        except GeneratorExit:
            self.recorder.left_early = self.recorder.left_early or self.where

    def _refused(self, *_: Any) -> NoReturn:
        hint = "write `for i in loop(…)`, without list or len; backwards: loop(n - 1, -1, -1)"
        raise OperatorError("only `for` can iterate a recorded loop", where=caller(), hint=hint)

    __len__ = __reversed__ = __getitem__ = __contains__ = __next__ = _refused


def _index_name() -> str:
    """The name of the index in the user's `for`, if its source can be read; else "i"."""
    frame = sys._getframe(2)
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    match = re.search(r"\bfor\s+(\w+)\s+in\b", line)
    return (match[1].strip("_") or "step") if match else "i"


def record(function: Callable[..., Any], arrays: Mapping[str, Array], parameters: Sequence[str]) -> Recorder:
    """Run a function on symbolic arrays, sizes and parameters, and return what it recorded."""
    sizes = [size for array in arrays.values() for size in array.shape if isinstance(size, str)]
    if strange := [n for n in (function.__name__, *arrays, *sizes, *parameters) if n in RESERVED or n.endswith("_")]:
        raise OperatorError(f"'{strange[0]}' cannot be a name in C", where=caller(), hint="rename it")
    recorder = Recorder(arrays, [*sizes, *parameters])
    given = {name: Symbolic(name, recorder) for name in arrays}
    record_once(function, given | {name: recorder.symbol(name) for name in parameters})
    recorder.finish()
    if not recorder.statements:
        raise OperatorError(f"{function.__name__} has no statement", hint="write u[i] = … within its loops")
    return recorder


def record_once(function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Run the function. Python's errors about symbols become OperatorErrors with the user's line."""
    try:
        function(**given)
    except (TypeError, AttributeError, ValueError, LookupError, ArithmeticError, NameError, RecursionError) as error:
        if isinstance(error, OperatorError):
            raise
        where = _line_of(error)
        hint = "docs/stencils.md says what a nest may contain"
        found = f"{type(error).__name__}: {error}"
        raise OperatorError(f"{function.__name__} cannot be recorded", where=where, found=found, hint=hint) from error


def _line_of(error: BaseException) -> str:
    """The innermost line of the user's code in an error's traceback."""
    found, trace = "", error.__traceback__
    while trace is not None:
        path = Path(trace.tb_frame.f_code.co_filename)
        found = f"{path.name}:{trace.tb_lineno}" if not is_ours(str(path)) else found
        trace = trace.tb_next
    return found
