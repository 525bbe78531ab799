"""lcs: lengths of longest common subsequences of all prefixes of two texts, by dynamic programming."""

from __future__ import annotations

from typing import Any

from dovetail.loops.expressions import maximum, where
from dovetail.loops.nest import array, nest
from dovetail.loops.record import loop


@nest(length=array("n", "m", dtype="int32"), a=array("n", dtype="uint8"), b=array("m", dtype="uint8"))
def lcs(length: Any, a: Any, b: Any) -> None:
    n, m = length.shape
    for i in loop(1, n):
        for j in loop(1, m):
            longer = maximum(length[i - 1, j], length[i, j - 1])
            length[i, j] = where(a[i] == b[j], length[i - 1, j - 1] + 1, longer)
