"""acoustic3d: the wave equation, of second order in time and of order 2, 4, 6 or 8 in space; c is (speed·dt/dx)²."""

from __future__ import annotations

from functools import cache
from typing import Any

from dovetail.core import OperatorError
from dovetail.loops.nest import Nest, array, nest
from dovetail.loops.record import loop

# Weights of the second derivative: the point itself, then its neighbours outwards (Fornberg 1988).
WEIGHTS = {
    2: (-2.0, 1.0),
    4: (-5 / 2, 4 / 3, -1 / 12),
    6: (-49 / 18, 3 / 2, -3 / 20, 1 / 90),
    8: (-205 / 72, 8 / 5, -1 / 5, 8 / 315, -1 / 560),
}


@cache
def acoustic3d_of(order: int) -> Nest:
    """Return the nest of one order: `acoustic3d` for order 2, else `acoustic3d_4`, `_6` or `_8`."""
    if order not in WEIGHTS:
        raise OperatorError(f"no acoustic wave of order {order}", hint=f"one of {', '.join(map(str, WEIGHTS))}")
    own, *outward = WEIGHTS[order]
    r = len(outward)

    def acoustic3d(u: Any, c: Any, steps: int) -> None:
        n, m, l = u.shape  # noqa: E741
        for t in loop(1, steps + 1):
            for i in loop(r, n - r):
                for j in loop(r, m - r):
                    for k in loop(r, l - r):
                        around = 3 * own * u[t, i, j, k]
                        for d, weight in enumerate(outward, 1):
                            pairs = u[t, i - d, j, k] + u[t, i + d, j, k] + u[t, i, j - d, k] + u[t, i, j + d, k]
                            around = around + weight * (pairs + u[t, i, j, k - d] + u[t, i, j, k + d])
                        u[t + 1, i, j, k] = 2 * u[t, i, j, k] - u[t - 1, i, j, k] + c[i, j, k] * around

    acoustic3d.__name__ = _name(order)
    return nest(u=array("n", "m", "l", time=True, boundary="fixed"), c=array("n", "m", "l"))(acoustic3d)


def __getattr__(name: str) -> Nest:
    """Return `acoustic3d`, `acoustic3d_4`, `_6` or `_8`, which is recorded when it is first named."""
    for order in WEIGHTS:
        if name == _name(order):
            return acoustic3d_of(order)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _name(order: int) -> str:
    return "acoustic3d" if order == 2 else f"acoustic3d_{order}"
