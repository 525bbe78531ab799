"""triple_nest: one statement in three loops, with a dependence along each (Goumas, Sotiropoulos, Koziris 2001)."""

from __future__ import annotations

from typing import Any

from dovetail.loops.expressions import sqrt
from dovetail.loops.nest import array, nest
from dovetail.loops.record import loop


@nest(a=array("n", "m", "l"))
def triple_nest(a: Any) -> None:
    n, m, l = a.shape  # noqa: E741
    for i in loop(1, n):
        for j in loop(1, m):
            for k in loop(1, l):
                a[i, j, k] = sqrt(a[i - 1, j, k]) + sqrt(a[i, j - 1, k]) + sqrt(a[i, j, k - 1])
