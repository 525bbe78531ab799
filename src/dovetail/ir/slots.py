"""slots: Slot, the unit in which buffers are counted; and the bytes and rounding errors of each dtype."""

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
# For each floating-point type: greatest relative rounding error, and least positive number.
ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
TINIEST = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 2.0**-1074}


def dtype_bytes(dtype: str) -> int:
    """Return the bytes of one element.

    >>> dtype_bytes("bfloat16")
    2
    """
    if dtype not in DTYPE_BYTES:
        raise OperatorError(f"unknown dtype '{dtype}'", hint=f"one of {', '.join(DTYPE_BYTES)}")
    return DTYPE_BYTES[dtype]


class Slot(NamedTuple):
    """What one slot of a buffer is: an array of shape `shape` (a row, a block, () for a scalar) of dtype `dtype`.

    `signed`: whether random inputs for it may be negative.
    """

    shape: tuple[int, ...]
    dtype: str
    signed: bool = True

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * dtype_bytes(self.dtype)
