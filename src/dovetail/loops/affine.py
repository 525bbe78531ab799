"""affine: Affine, a whole number that is linear in sizes and loop indices: a subscript or the bound of a loop."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from dovetail.core import OperatorError

_HERE = Path(__file__).parent


def caller() -> str:
    """File and line of the user's code that is running: the innermost frame outside this room, problems aside."""
    frame = sys._getframe(1)
    while frame.f_back is not None and not _is_users(frame):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _is_users(frame: FrameType) -> bool:
    """Whether neither this room, nor NumPy, nor what dataclasses write for both runs there."""
    code, module = frame.f_code, str(frame.f_globals.get("__name__"))
    written = code.co_filename == "<string>" and code.co_name == "__init__"
    return not (is_ours(code.co_filename) or written or module.partition(".")[0] == "numpy")


def is_ours(file: str) -> bool:
    """Whether code of a file is of this room, problems aside."""
    return _HERE in (parents := Path(file).parents) and _HERE / "problems" not in parents


@dataclass(frozen=True, eq=False)
class Affine:
    """The sum of `terms` (symbol, factor) and a constant; `owner`: the recording that its symbols belong to.

    >>> i, n = Affine((("i", 1),)), Affine((("n", 1),))
    >>> str(2 * i - n + 1 - i), (i + 1).at({"i": 4})
    ('i - n + 1', 5)
    """

    terms: tuple[tuple[str, int], ...] = ()
    constant: int = 0
    owner: Any = field(default=None, repr=False)
    within: frozenset[Any] = field(default=frozenset(), repr=False)  # the loops whose indices it was made of

    @staticmethod
    def of(value: Any, owner: Any = None) -> Affine:
        """A subscript or bound as it was written; OperatorError where it is none."""
        if isinstance(value, Affine):
            return value
        if hasattr(value, "__index__") and not isinstance(value, bool) and not hasattr(value, "children"):
            return Affine((), int(value.__index__()), owner)
        what = "an index must be a sum of loop indices, sizes and whole numbers"
        hint = "data cannot say where data lies" if hasattr(value, "children") else "write i, i + 1, 2 * i or n - 1 - i"
        raise OperatorError(f"non-affine index: {what}", where=caller(), found=str(value), hint=hint)

    def __add__(self, other: Any) -> Affine:
        return self._plus(Affine.of(other), 1)

    def __sub__(self, other: Any) -> Affine:
        return self._plus(Affine.of(other), -1)

    def __rsub__(self, other: Any) -> Affine:
        return Affine.of(other)._plus(self, -1)

    def __neg__(self) -> Affine:
        return self * -1

    def __mul__(self, other: Any) -> Affine:
        factor, whole = Affine.of(other), self
        if factor.terms:
            factor, whole = whole, factor
        if factor.terms:
            _refuse(f"({self}) * ({other})", "one of two factors must be a number")
        k = factor.constant
        terms = tuple((name, k * f) for name, f in whole.terms if k)
        return Affine(terms, k * whole.constant, whole.owner or factor.owner, whole.within | factor.within)

    __radd__, __rmul__ = __add__, __mul__

    def __pos__(self) -> Affine:
        return self

    def _unknown(self, *other: Any) -> NoReturn:
        _refuse(f"an operator on {self}", "an index is a sum of loop indices, sizes and whole numbers")

    __pow__ = __rpow__ = __abs__ = __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __invert__ = _unknown
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __divmod__ = __rdivmod__ = __matmul__ = _unknown
    __iter__ = __len__ = __getitem__ = __round__ = __float__ = _unknown

    def __floordiv__(self, other: Any) -> NoReturn:
        _refuse(f"({self}) // {other}", "indices cannot be divided: let the loop run over the quotient")

    def __mod__(self, other: Any) -> NoReturn:
        _refuse(f"({self}) % {other}", "an index that wraps around is what boundary='periodic' is for")

    __truediv__, __rfloordiv__, __rmod__, __rtruediv__ = __floordiv__, __floordiv__, __mod__, __floordiv__

    def __index__(self) -> NoReturn:
        hint = "write `for i in loop(1, n - 1)`; a loop over plain numbers may be a range"
        raise OperatorError("a size or an index is no plain number yet", where=caller(), found=str(self), hint=hint)

    def _compared(self, other: Any) -> NoReturn:
        hint = "write loops of their own for the parts of the space that differ"
        raise OperatorError("a condition on an index", where=caller(), found=f"{self} compared with {other}", hint=hint)

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _compared
    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> NoReturn:
        self._compared("zero")

    def _plus(self, other: Affine, sign: int) -> Affine:
        sums = dict(self.terms)
        for name, factor in other.terms:
            sums[name] = sums.get(name, 0) + sign * factor
        terms = tuple((name, factor) for name, factor in sums.items() if factor)
        within = self.within | other.within
        return Affine(terms, self.constant + sign * other.constant, self.owner or other.owner, within)

    @property
    def names(self) -> tuple[str, ...]:
        """The symbols that it depends on."""
        return tuple(name for name, _ in self.terms)

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for equal ones."""
        return tuple(sorted(self.terms)), self.constant

    def factor(self, name: str) -> int:
        """What the symbol is multiplied by."""
        return dict(self.terms).get(name, 0)

    def at(self, values: Mapping[str, int]) -> int:
        """Its value where every symbol has one."""
        return self.constant + sum(factor * values[name] for name, factor in self.terms)

    def put(self, name: str, value: Affine) -> Affine:
        """The same with `value` in the place of a symbol."""
        return self.replaced({name: value}) if self.factor(name) else self

    def replaced(self, values: Mapping[str, Affine]) -> Affine:
        """The same with sums in the places of some symbols, of all at once."""
        own = tuple(term for term in self.terms if term[0] not in values)
        found = Affine(own, self.constant, self.owner, self.within)
        return sum((values[name] * factor for name, factor in self.terms if name in values), found)

    def named(self, names: Mapping[str, str | int]) -> str:
        """Return the text with other names, or numbers, for some symbols.

        >>> (2 * Affine((("i", 1),)) - Affine((("n", 1),)) + 1).named({"i": "(p0)", "n": 8})
        '2 * (p0) - 7'
        """
        known = {s: Affine((), to) if isinstance(to, int) else Affine(((to, 1),)) for s, to in names.items()}
        return str(self.replaced(known))

    def __str__(self) -> str:
        return "".join(self._words()) or "0"

    def _words(self) -> Iterator[str]:
        shown = [(f, name if abs(f) == 1 else f"{abs(f)} * {name}") for name, f in self.terms]
        shown += [(self.constant, str(abs(self.constant)))] if self.constant else []
        for place, (sign, text) in enumerate(shown):
            yield (" - " if sign < 0 else " + ") if place else "-" * (sign < 0)
            yield text


def extreme(value: Affine, loops: Sequence[Any], sign: int) -> Affine:
    """The greatest (sign 1) or least (-1) value that an index expression takes in these loops."""
    for loop in reversed(loops):
        up = value.factor(loop.index) * sign > 0
        value = value.put(loop.index, loop.high - 1 if up else loop.low)
    return value


def _refuse(found: str, hint: str) -> NoReturn:
    raise OperatorError("non-affine index: it must be linear", where=caller(), found=found, hint=hint)
