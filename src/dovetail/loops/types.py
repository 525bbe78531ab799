"""types: the dtype of each expression. A statement computes in one dtype; numbers take that of the other operand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from dovetail.core import OperatorError
from dovetail.loops.expressions import COMPARISONS, CONDITIONS, FUNCTIONS, Apply, Number, Read, Taken, Value
from dovetail.loops.recording import Recording

WHOLE, REAL, TRUTH = "whole number", "real number", "condition"
DTYPES = ("float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


def check_types(nest: Recording, dtypes: Mapping[str, str]) -> None:
    """Raise OperatorError, with the statement, if it mixes dtypes or applies an operation to a wrong dtype."""
    for name, dtype in dtypes.items():
        if dtype not in DTYPES:
            raise OperatorError(f"{name} has dtype {dtype}", hint=f"one of {', '.join(DTYPES)}")
    for statement in nest.statements:
        try:
            one_of(dtypes[statement.target.array], dtype_of(statement.value, dtypes), statement.value)
        except _MixedError as mixed:
            raise OperatorError(mixed.what, where=statement.line, found=mixed.found, hint=mixed.hint) from None


class _MixedError(Exception):
    def __init__(self, what: str, found: str, hint: str) -> None:
        self.what, self.found, self.hint = what, found, hint


def dtype_of(value: Value, dtypes: Mapping[str, str]) -> str:
    """Return the dtype of an expression; WHOLE or REAL if it has numbers only, TRUTH if it is a condition."""
    if isinstance(value, Read | Taken):
        return dtypes[(value.read if isinstance(value, Taken) else value).array]
    if isinstance(value, Number):
        return value.dtype or (REAL if isinstance(value.value, float) else WHOLE)
    assert isinstance(value, Apply)
    of = [dtype_of(child, dtypes) for child in value.of]
    if value.name == "where":
        if of[0] != TRUTH:
            raise _MixedError("where takes a condition first", str(value.of[0]), "compare it: where(a > 0, …)")
        return one_of(of[1], of[2], value)
    if value.name in CONDITIONS:
        if set(of) != {TRUTH}:
            raise _MixedError("& | ~ join conditions", str(value), "compare first, in brackets: (a > 0) & (b > 0)")
        return TRUTH
    found = one_of(of[0], of[-1], value)
    if found == TRUTH:
        raise _MixedError("a condition is not a number", str(value), "where(condition, 1, 0)")
    if value.name in COMPARISONS:
        return TRUTH
    if found in (WHOLE, REAL):  # Python would compute it in other dtypes than C
        hint = "write the results as numbers: where(condition, -1, -2)"
        raise _MixedError("an operator on numbers that where chooses", str(value), hint)
    if (value.name == "/" or value.name in set(FUNCTIONS) - {"abs"}) and not is_real(found):
        raise _MixedError(f"{value.name} is for floating values", f"{value} of {found}", "use an array of floats")
    return found


def is_real(dtype: str) -> bool:
    return dtype == REAL or dtype.startswith("float")


def one_of(left: str, right: str, value: Value) -> str:
    """Return the common dtype of two operands."""
    weak = {WHOLE: 0, REAL: 1}
    if left in weak and right in weak:
        return left if weak[left] >= weak[right] else right
    if left in weak:
        left, right = right, left
    if left == right or right == WHOLE or (right == REAL and is_real(left)):
        _check_range(value, left)
        return left
    hint = "one dtype in a statement: arrays of another must be converted before"
    raise _MixedError(f"{left} and {right} in one expression", str(value), hint)


def _check_range(value: Value, dtype: str) -> None:
    """Check that the dtype can hold all number operands, also those that `where` chooses among."""
    if dtype not in DTYPES:
        return
    info = np.finfo(dtype) if is_real(dtype) else np.iinfo(dtype)
    kind = float if is_real(dtype) else int
    least, most = kind(info.min), kind(info.max)
    for number in _numbers(value.of if isinstance(value, Apply) else (value,)):
        if not least <= number.value <= most:
            raise _MixedError(f"{number} is no {dtype}", str(value), f"{least} to {most}")


def _numbers(values: Iterable[Value]) -> Iterator[Number]:
    """Yield the numbers among operands, including those that a `where` may choose.

    >>> [number.value for number in _numbers((Number(1), Apply("where", (Read("a", ()), Number(2), Number(3)))))]
    [1, 2, 3]
    """
    for each in values:
        if isinstance(each, Number):
            yield each
        elif isinstance(each, Apply) and each.name == "where":
            yield from _numbers(each.of)
