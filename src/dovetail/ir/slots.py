"""slots: Slot, an element of a buffer as an array of a shape and dtype; and the bytes and rounding of each dtype."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from dovetail.core import OperatorError

DTYPE_BYTES = {
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "int64": 8,
    "int16": 2,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
}
# Of floating types: the greatest relative error of rounding to one, and its least positive number.
ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
TINIEST = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 2.0**-1074}


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element.

    >>> dtype_bytes("bfloat16")
    2
    """
    if dtype not in DTYPE_BYTES:
        raise OperatorError(f"unknown dtype '{dtype}'", hint=f"one of {', '.join(DTYPE_BYTES)}")
    return DTYPE_BYTES[dtype]


class Slot(NamedTuple):
    """One slot of a buffer: an array of `shape` elements of `dtype` (a row, a block, a scalar).

    `signed`: whether inputs that are drawn for it may be negative.
    """

    shape: tuple[int, ...]
    dtype: str
    signed: bool = True

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * dtype_bytes(self.dtype)
