"""Workload: what one slot of each buffer is, and what each kernel does, when a Program meets real sizes."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from dovetail.core import WishError

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


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element.

    >>> dtype_bytes("bfloat16")
    2
    """
    if dtype not in DTYPE_BYTES:
        raise WishError(f"unknown dtype '{dtype}'", hint=f"one of {', '.join(DTYPE_BYTES)}")
    return DTYPE_BYTES[dtype]


class Slot(NamedTuple):
    """One slot of a buffer: an array of `shape` elements of `dtype` (a row, a block, a scalar)."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * dtype_bytes(self.dtype)


class Work(NamedTuple):
    """What a kernel does on one rank: the key of its cost curve, and FLOP for each slot it writes."""

    key: str
    flops: float


@dataclass(frozen=True)
class Workload:
    """Sizes for a Program: for each buffer its Slot on each rank, for each kernel its Work on each rank."""

    slots: dict[str, tuple[Slot, ...]]
    kernels: dict[str, tuple[Work, ...]]

    def slot_bytes(self, buffer: str, rank: int) -> int:
        return self.slots[buffer][rank].num_bytes
