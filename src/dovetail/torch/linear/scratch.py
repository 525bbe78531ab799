"""scratch: memory that operators use again in later calls. New memory costs a page fault every 4 KiB."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

LEAST = 1 << 15  # elements: less is new memory each time, which the C library has at hand
MOST_KEPT = 2  # of each dtype: a call may run inside another one's backward
_spare: dict[Any, list[Any]] = {}


class Scratch:
    """Matrices for the time of one call, uninitialised.

    Parameters
    ----------
    dtype : torch.dtype
        Of their elements.
    shapes : sequence of (rows, columns)
        Their shapes.

    Attributes
    ----------
    matrices : list of Tensor
        If they are large, they lie in one piece of memory.
    """

    def __init__(self, dtype: Any, shapes: Sequence[tuple[int, int]]) -> None:
        lengths = [rows * columns for rows, columns in shapes]
        self._whole: Any = None
        if sum(lengths) < LEAST:
            self.matrices = [torch.empty(shape, dtype=dtype) for shape in shapes]
            return
        self._whole = _taken(dtype, sum(lengths))
        self.matrices, begin = [], 0
        for (rows, columns), length in zip(shapes, lengths, strict=True):
            self.matrices.append(self._whole.as_strided((rows, columns), (columns, 1), begin))
            begin += length

    def give_back(self) -> None:
        """Let later calls use the memory. Not after a failure: messages may still come to it."""
        if self._whole is None:
            return
        spare = _spare.setdefault(self._whole.dtype, [])
        spare.append(self._whole)
        if len(spare) > MOST_KEPT:
            del spare[min(range(len(spare)), key=lambda place: len(spare[place]))]


def _taken(dtype: Any, count: int) -> Any:
    spare = _spare.get(dtype, [])
    for place, each in enumerate(spare):
        if len(each) >= count:
            del spare[place]
            return each
    with torch.inference_mode(False):  # else only calls in inference mode could write there
        return torch.empty(count, dtype=dtype)
