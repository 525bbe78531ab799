"""product: checks C = A·B against float64: sampled rows element by element, all rows times a random vector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dovetail.run.arrays import Array

ROW_WEIGHT = 4
CHUNK = 1024  # rows widened to float64 at a time
ACCUMULATOR_EPS = {"float64": 2.0**-53}
OUTPUT_EPS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
Sum = Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]


def product_error(
    a: Array, b: Array, c: Array, total: Sum, ranks: int = 1, num_rows: int = 48, seed: int | None = None
) -> tuple[float, float]:
    """Largest error of C = sum over ranks of A·B, over the root mean square of the reference; and its tolerance.

    `a` (m, k_r) and `b` (k_r, n) are this rank's, `c` (m, n) its result; `total` sums a float64 array over ranks.
    Rows 0 and m-1 and random others are compared element by element; all rows through C·x for a random x of ±1
    (Freivalds), where errors average out, so that they weigh ROW_WEIGHT times as much. NaN anywhere gives infinity.
    The tolerance is the rounding of `ranks` partial results, a random walk of k additions, and that of the reference.

    >>> a, b = np.ones((2, 3)), np.ones((3, 2))
    >>> product_error(a, b, a @ b, lambda x: x)[0], product_error(a, b, a @ b + 1, lambda x: x)[0] > 0.1
    (0.0, True)
    """
    (m, k), n = a.shape, b.shape[1]
    all_k = int(total(np.array([float(k)]))[0])
    tolerance = tolerance_of(c.dtype.name, all_k, ranks) + 8 * ROW_WEIGHT * float(np.sqrt(n)) * OUTPUT_EPS["float64"]
    if m == 0 or n == 0:
        return 0.0, tolerance
    rng = np.random.default_rng(seed if seed is not None else [m, n, all_k])
    rows = np.unique(np.append(rng.integers(0, m, num_rows), [0, m - 1]))
    exact = total(a[rows].astype(float) @ b.astype(float))
    scale = float(np.sqrt(np.mean(exact**2))) or 1.0
    sign = rng.choice([-1.0, 1.0], n)
    with np.errstate(all="ignore"):
        worst = np.abs(c[rows].astype(float) - exact).max() / scale
        expected, found = total(_times(a, b.astype(float) @ sign)), _times(c, sign)
        by_row = np.abs(found - expected).max() / (scale * np.sqrt(n))
    worst = np.maximum(worst, ROW_WEIGHT * by_row)  # keeps NaN
    return float(worst) if np.isfinite(worst) else float("inf"), tolerance


def tolerance_of(dtype: str, k: int, ranks: int) -> float:
    """Error to be expected of an honest product, over the root mean square of its elements."""
    accumulator = ACCUMULATOR_EPS.get(dtype, 2.0**-24)
    return 8 * (ranks + 1) * OUTPUT_EPS[dtype] + 8 * float(np.sqrt(k)) * accumulator


def _times(matrix: Array, vector: Array) -> Array:
    parts = [matrix[i : i + CHUNK].astype(float) @ vector for i in range(0, len(matrix), CHUNK)]
    return np.concatenate(parts)
