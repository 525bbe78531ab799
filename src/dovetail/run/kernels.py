"""The kernel registry of the NumPy executor: name -> callable(reads, writes) on array views."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
KernelCall = Callable[[Sequence[Array], Sequence[Array]], None]
"""Fills every array of `writes` from `reads`; axis 0 of each is the slots of its region, in order.

A kernel overwrites its results; where the Program says `accumulate`, the executor adds them to what was there.
"""


def matmul(reads: Sequence[Array], writes: Sequence[Array]) -> None:
    """C = A·B: reads A (rows, k) and B (1, k, n), writes C (rows, n). Half types accumulate in float32.

    >>> c = np.empty((2, 1)); matmul([np.eye(2), np.array([[[3.0], [4.0]]])], [c]); c.tolist()
    [[3.0], [4.0]]
    """
    (a, b), (c,) = reads, writes
    wide = np.float32 if c.dtype.itemsize == 2 else c.dtype
    c[...] = np.matmul(a.astype(wide, copy=False), b[0].astype(wide, copy=False)).astype(c.dtype, copy=False)


def pause(reads: Sequence[Array], writes: Sequence[Array]) -> None:
    """Sleeps 10 ms and touches nothing: a rank that is busy elsewhere, for probes."""
    time.sleep(0.01)


def builtin_kernels() -> dict[str, KernelCall]:
    """The kernels that Dovetail's own front doors name, in a new dict."""
    return {"matmul": matmul, "pause": pause}
