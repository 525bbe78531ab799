"""evaluate: the value of an expression on whole arrays, by NumPy, with the same bits as the generated C."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dovetail.loops.expressions import COMPARISONS, CONDITIONS, OPERATORS, Apply, Number, Read, Taken, Value
from dovetail.loops.types import DTYPES, REAL, WHOLE, dtype_of, one_of


def evaluated(value: Value, element: Callable[[Any], Any], dtypes: Mapping[str, str], dtype: str) -> Any:
    """Return the value of an expression. Operations on numbers only have `dtype`, others that of their operands.
    `element` returns the values of a Read or a Taken."""
    if isinstance(value, Read | Taken):
        return element(value)
    if isinstance(value, Number):
        return np.asarray(value.value).astype(dtype)[()]
    assert isinstance(value, Apply)
    dtype = compared_in(value, dtypes) if value.name in COMPARISONS else dtype
    found = OPERATORS[value.name](*(evaluated(child, element, dtypes, dtype) for child in value.of))
    if value.name in COMPARISONS or value.name in CONDITIONS:
        return found
    of = dtype_of(value, dtypes)
    return np.asarray(found).astype(of if of in DTYPES else dtype, copy=False)


def compared_in(value: Apply, dtypes: Mapping[str, str]) -> str:
    """Return the dtype in which a comparison compares: a 64-bit one if both operands are numbers."""
    left, right = (dtype_of(child, dtypes) for child in value.of)
    found = one_of(left, right, value)
    return {WHOLE: "int64", REAL: "float64"}.get(found, found)
