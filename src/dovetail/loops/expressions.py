"""expressions: what a statement computes, as a tree that Python's operators build on array elements."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from dovetail.core import OperatorError
from dovetail.loops.affine import Affine, caller

ARITHMETIC = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}
COMPARISONS = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
}
CONDITIONS = {"&": np.logical_and, "|": np.logical_or, "~": np.logical_not}  # of conditions, to conditions
FUNCTIONS = {"sqrt": np.sqrt, "exp": np.exp, "sin": np.sin, "cos": np.cos, "abs": np.abs}
UNARY = {"neg": "-", "~": "~"}
CHOICES = {"minimum": np.minimum, "maximum": np.maximum}
OPERATORS: dict[str, Any] = ARITHMETIC | COMPARISONS | CONDITIONS | FUNCTIONS | CHOICES
OPERATORS |= {"neg": np.negative, "where": np.where}
_RANKS = dict.fromkeys((*COMPARISONS, "&", "|"), 1) | {"+": 2, "-": 2, "*": 3, "/": 3, "neg": 4, "~": 4}
_UFUNCS = {function: name for name, function in OPERATORS.items()}
_UFUNCS |= {np.bitwise_and: "&", np.bitwise_or: "|", np.invert: "~"}
ATOM = 5
MOST_OPERATORS = 10_000
DEEPEST = 200


class Value:
    """An element, a number, or an expression of them. Python's operators on it record expressions."""

    def __add__(self, other: Any) -> Value:
        return _binary("+", self, other)

    def __radd__(self, other: Any) -> Value:
        return _binary("+", other, self)

    def __sub__(self, other: Any) -> Value:
        return _binary("-", self, other)

    def __rsub__(self, other: Any) -> Value:
        return _binary("-", other, self)

    def __mul__(self, other: Any) -> Value:
        return _binary("*", self, other)

    def __rmul__(self, other: Any) -> Value:
        return _binary("*", other, self)

    def __truediv__(self, other: Any) -> Value:
        return _binary("/", self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return _binary("/", other, self)

    def __lt__(self, other: Any) -> Value:
        return _binary("<", self, other)

    def __le__(self, other: Any) -> Value:
        return _binary("<=", self, other)

    def __gt__(self, other: Any) -> Value:
        return _binary(">", self, other)

    def __ge__(self, other: Any) -> Value:
        return _binary(">=", self, other)

    def __eq__(self, other: Any) -> Value:  # type: ignore[override]
        return _binary("==", self, other)

    def __ne__(self, other: Any) -> Value:  # type: ignore[override]
        return _binary("!=", self, other)

    __hash__ = None  # type: ignore[assignment]

    def __and__(self, other: Any) -> Value:
        return _binary("&", self, other)

    def __or__(self, other: Any) -> Value:
        return _binary("|", self, other)

    __rand__, __ror__ = __and__, __or__

    def __invert__(self) -> Value:
        return Apply("~", (self,))

    def __neg__(self) -> Value:
        return Apply("neg", (self,))

    def __pos__(self) -> Value:
        return self

    def __abs__(self) -> Value:
        return Apply("abs", (self,))

    def __bool__(self) -> NoReturn:
        hint = "where(condition, a, b), maximum(a, b) and minimum(a, b) choose element by element"
        raise OperatorError("a statement cannot branch on data", where=caller(), found=str(self), hint=hint)

    def __pow__(self, power: Any) -> NoReturn:
        hint = "multiply: u[i] * u[i]"  # NumPy rounds powers of scalars differently
        raise OperatorError("powers are not supported in loops", where=caller(), found=f"{self} ** {power}", hint=hint)

    def _number(self, *_: Any) -> NoReturn:
        hint = "sqrt, exp, sin, cos, abs, minimum and maximum of dovetail.loops take elements; Python's math does not"
        raise OperatorError("an element has no value while recording", where=caller(), found=str(self), hint=hint)

    __float__ = __int__ = __index__ = __complex__ = __round__ = __trunc__ = __floor__ = __ceil__ = _number

    def _single(self, *_: Any) -> NoReturn:
        hint = "write all subscripts in one pair of brackets: u[i, j]"
        raise OperatorError("an element has no elements", where=caller(), found=str(self), hint=hint)

    __getitem__ = __setitem__ = __iter__ = __len__ = __contains__ = _single

    def _unknown(self, other: Any) -> NoReturn:
        hint = "+ - * /, comparisons, & | ~ of conditions, and the functions of dovetail.loops"
        raise OperatorError(
            "an operator that loops do not have", where=caller(), found=f"of {self} and {other}", hint=hint
        )

    __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __rpow__ = __xor__ = __rxor__ = _unknown
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __matmul__ = __rmatmul__ = __divmod__ = _unknown

    def __array_ufunc__(self, function: Any, method: str, *of: Any, **options: Any) -> Value:
        """Record a NumPy function. Raises OperatorError if loops do not support it."""
        name = _UFUNCS.get(function)
        if name is None or method != "__call__" or options:
            hint = "supported: sqrt, exp, sin, cos, abs, maximum and minimum"
            found = f"np.{function.__name__}"
            raise OperatorError("a function that loops do not have", where=caller(), found=found, hint=hint)
        return Apply(name, tuple(map(value_of, of)))

    def __array_function__(self, function: Any, *_: Any) -> NoReturn:
        hint = "supported: where, sqrt, exp, sin, cos, abs, maximum and minimum of dovetail.loops"
        raise OperatorError(
            "a function that loops do not have", where=caller(), found=f"np.{function.__name__}", hint=hint
        )

    @property
    def children(self) -> tuple[Value, ...]:
        """The operands."""
        return ()


@dataclass(frozen=True, eq=False)
class Number(Value):
    """A number, written in the program or known when it was recorded."""

    value: int | float
    dtype: str = ""  # of a NumPy float scalar, which keeps its dtype in NumPy

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, eq=False)
class Read(Value):
    """An element of an array."""

    array: str
    at: tuple[Affine, ...]
    taken: Any = field(default=None, repr=False)  # the Moment at which the user's function read it

    def __str__(self) -> str:
        return f"{self.array}[{', '.join(map(str, self.at))}]"


@dataclass(frozen=True, eq=False)
class Taken(Value):
    """A temporary: an element as it was before a statement overwrote it."""

    name: str
    read: Read

    @property
    def children(self) -> tuple[Value, ...]:
        return (self.read,)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class Apply(Value):
    """An operator or function on values."""

    name: str
    of: tuple[Value, ...]
    size: int = field(init=False, repr=False)  # number of operators in it
    depth: int = field(init=False, repr=False)  # largest number of nested operators

    def __post_init__(self) -> None:
        for name, many, most in (("size", sum, MOST_OPERATORS), ("depth", max, DEEPEST)):
            count = 1 + many(getattr(each, name) if isinstance(each, Apply) else 0 for each in self.of)
            object.__setattr__(self, name, count)
            if count > most:
                what = f"an expression of more than {most} operators{' nested in one another' * (name == 'depth')}"
                raise OperatorError(what, where=caller(), hint="write parts of it into arrays, and read those")

    @property
    def children(self) -> tuple[Value, ...]:
        return self.of

    def __str__(self) -> str:
        if rank(self) < ATOM:
            return bracketed(self, [str(child) for child in self.of])
        return f"{self.name}({', '.join(map(str, self.of))})"


def rank(value: Value) -> int:
    """Return the precedence of an expression's outermost operator; ATOM if it never needs brackets."""
    return _RANKS.get(value.name, ATOM) if isinstance(value, Apply) else ATOM


def bracketed(value: Apply, of: Sequence[str]) -> str:
    """Return the text of an operator and its operands, with the brackets that Python and C need.

    >>> a, b = Read("a", ()), Read("b", ())
    >>> str(a - (b - 2) * -a), str(a - b - 2 < b)
    ('a[] - (b[] - 2) * -a[]', 'a[] - b[] - 2 < b[]')
    """
    own = rank(value)
    if value.name in UNARY:
        return f"{UNARY[value.name]}{of[0] if rank(value.of[0]) >= ATOM else f'({of[0]})'}"
    left, right = value.of
    texts = (of[0] if rank(left) >= own + (own == 1) else f"({of[0]})", of[1] if rank(right) > own else f"({of[1]})")
    return f" {value.name} ".join(texts)


def value_of(given: Any) -> Value:
    """Return an operand as a Value. Raises OperatorError if it is neither an element nor a finite number."""
    if isinstance(given, Value):
        return given
    if isinstance(given, Affine):
        hint = "give the numbers in an array of their own, and read that"
        raise OperatorError("an index cannot be used as a value", where=caller(), found=str(given), hint=hint)
    if isinstance(given, bool | int | float | np.integer | np.floating):
        number = given.item() if isinstance(given, np.generic) else int(given) if isinstance(given, bool) else given
        if abs(number) <= sys.float_info.max:  # excludes NaN, and integers beyond all floats
            return Number(number, given.dtype.name if isinstance(given, np.floating) else "")
    raise OperatorError("a statement takes elements and finite numbers", where=caller(), found=repr(given))


def _binary(name: str, left: Any, right: Any) -> Value:
    return Apply(name, (value_of(left), value_of(right)))


def maximum(a: Any, b: Any) -> Any:
    """Return the greater of two values.

    >>> int(maximum(3, 4)), str(maximum(Read("u", ()), 0))
    (4, 'maximum(u[], 0)')
    """
    return _call("maximum", np.maximum, a, b)


def minimum(a: Any, b: Any) -> Any:
    """Return the smaller of two values."""
    return _call("minimum", np.minimum, a, b)


def where(condition: Any, then: Any, otherwise: Any) -> Any:
    """Return `then` where the condition holds, else `otherwise`; both are computed."""
    if isinstance(condition, Value):
        return Apply("where", (condition, value_of(then), value_of(otherwise)))
    chosen = then if condition else otherwise
    of = next((each.dtype for each in (then, otherwise) if isinstance(each, np.generic)), None)
    return chosen if of is None else np.asarray(chosen).astype(of)[()]  # a number takes the dtype of the other one


def sqrt(a: Any) -> Any:
    """Return the square root of a floating value."""
    return _call("sqrt", np.sqrt, a)


def exp(a: Any) -> Any:
    """Return the exponential of a floating value."""
    return _call("exp", np.exp, a)


def sin(a: Any) -> Any:
    """Return the sine of a floating value."""
    return _call("sin", np.sin, a)


def cos(a: Any) -> Any:
    """Return the cosine of a floating value."""
    return _call("cos", np.cos, a)


def _call(name: str, plain: Any, *given: Any) -> Any:
    if any(isinstance(each, Value) for each in given):
        return Apply(name, tuple(map(value_of, given)))
    return plain(*given)


def names_of(value: Value) -> Iterator[str]:
    """Yield the names of an expression's operators."""
    if isinstance(value, Apply):
        yield value.name
    for child in value.children:
        yield from names_of(child)


def operations(value: Value) -> int:
    """Return how many arithmetic operations an expression has."""
    return sum(1 for _ in names_of(value))


def depth_of(value: Value, read: Read) -> int:
    """Return the largest number of operators applied to an element on its way to the value; -1 if it is not read.

    >>> a, b = Read("a", ()), Read("b", ())
    >>> depth_of(a - (b - 2) * -b, b), depth_of(a, b)
    (3, -1)
    """
    if isinstance(value, Read):
        return 0 if str(value) == str(read) else -1
    deepest = max((depth_of(child, read) for child in value.children), default=-1)
    return deepest + (deepest >= 0)


def reads(value: Value) -> Iterator[Read]:
    """Yield every element that a value reads, from left to right."""
    if isinstance(value, Read):
        yield value
    for child in value.children:
        yield from reads(child)


def with_reads(value: Value, placed: Callable[[Read], Value]) -> Value:
    """Return the expression with `placed(read)` in place of each element that it reads."""
    if isinstance(value, Apply):
        return Apply(value.name, tuple(with_reads(child, placed) for child in value.of))
    return placed(value) if isinstance(value, Read) else value
