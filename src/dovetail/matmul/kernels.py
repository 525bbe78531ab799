"""The kernel `matmul`: its shape, its NumPy reference, its work, and how a product is checked without computing it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import isqrt, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.core import ProgramError
from dovetail.ir import Agreement, Gemm, KernelForm, Operand, Work, dtype_bytes
from dovetail.ir.slots import ROUNDOFF

Array = NDArray[Any]
Floats = NDArray[np.float64]
ROW_WEIGHT = 4  # of the error of a row that is checked as a whole: there errors average out
CHUNK = 1 << 18  # elements widened to float64 at a time


def matmul(reads: Sequence[Array], writes: Sequence[Array]) -> None:
    """C = A·B: reads A and B, writes C; each is a matrix whose rows follow one another (see `shape`).

    Half types accumulate in float32.

    >>> c = np.empty((2, 1)); matmul([np.eye(2), np.array([[[3.0], [4.0]]])], [c]); c.tolist()
    [[3.0], [4.0]]
    """
    (a, b), (c,) = reads, writes
    if not c.size:
        return
    m, k, n = shape(a.size, b.size, c.size)
    wide = np.dtype(np.float32) if c.dtype.itemsize == 2 else c.dtype
    left, right = a.reshape(m, k).astype(wide, copy=False), b.reshape(k, n).astype(wide, copy=False)
    c[...] = np.matmul(left, right).astype(c.dtype, copy=False).reshape(c.shape)


def shape(a: int, b: int, c: int, rows: int = 0) -> Gemm:
    """The shape (m, k, n) of a product, from numbers of elements: m·k = a, k·n = b and m·n = c have one solution.

    Where a matrix is empty they do not; then `rows` is m, where it may be. Raises ProgramError where there is no shape.

    >>> shape(6, 12, 8)
    Gemm(m=2, k=3, n=4)
    """
    if a and b and c:
        m = isqrt(a * c // b)
    elif b:
        m = 0
    else:
        m = rows if rows and c % rows == 0 and a % rows == 0 else max(a, c)
    found = Gemm(m, a // m, c // m) if m else Gemm(0, 0, 0)
    if found.m * found.k != a or found.m * found.n != c or (m and found.k * found.n != b):
        raise ProgramError("operands of matmul that are no matrices", found=f"{a} and {b} elements, {c} of the result")
    return found


def shape_of(reads: Sequence[Operand], writes: Sequence[Operand]) -> Gemm:
    """The shape of an op's product. Where slots have one, their last axis is a row or a part of it."""
    if (len(reads), len(writes)) != (2, 1):
        raise ProgramError("matmul reads two regions and writes one", found=f"{len(reads)} and {len(writes)}")
    (a, b), (c,) = reads, writes
    found = shape(a.elements, b.elements, c.elements, c.slots)
    for operand, length in ((a, found.k), (b, found.n), (c, found.n)):
        if all(found) and operand.slot.shape and length % operand.slot.shape[-1]:
            text = f"slots of {list(a.slot.shape)} and {list(b.slot.shape)}, {list(c.slot.shape)} of the result"
            raise ProgramError("operands of matmul whose shapes disagree", found=text)
    return found


def work(reads: Sequence[Operand], writes: Sequence[Operand]) -> Work:
    """Rows, on the curve of their k, n and dtype."""
    return work_of(shape_of(reads, writes), reads[0].slot.dtype)


def work_of(product: Gemm, dtype: str) -> Work:
    """The same from its shape; B is what is shared.

    >>> work_of(Gemm(2, 3, 4), "float32")
    Work(key='matmul:k=3:n=4:float32', units=2, flops=48.0, num_bytes=56, shared_bytes=48)
    """
    (m, k, n), each = product, dtype_bytes(dtype)
    return Work(f"matmul:k={k}:n={n}:{dtype}", m, 2.0 * m * k * n, m * (k + n) * each, k * n * each)


def native(reads: Sequence[Operand], writes: Sequence[Operand]) -> Gemm | None:
    """The native form of a product of floats of one dtype, on any regions; None for integers and mixed dtypes."""
    dtypes = {operand.slot.dtype for operand in (*reads, *writes)}
    return shape_of(reads, writes) if len(dtypes) == 1 and dtypes <= ROUNDOFF.keys() else None


def check_product(terms: Iterable[Sequence[Array]], found: Array, rows: int = 48, seed: int = 0) -> Agreement:
    """Is `found` the sum of the products of all terms (A, B), which may be given one at a time?

    The first and last row and `rows` random others are compared element by element, in float64; all through C·x for a
    random x of ±1 (Freivalds), where errors average out, so that they weigh ROW_WEIGHT times as much. Errors are over
    the root mean square of the result; NaN is wrong. The tolerance is the rounding of one partial result for each
    term, a random walk of k additions, and that of the reference.

    >>> a, b = np.ones((2, 3)), np.ones((3, 2))
    >>> check_product([(a, b)], a @ b).ok, check_product([(a, b)], a @ b + 1).worst
    (True, 'row 0, column 0: 4 instead of 3')
    """
    if not found.size:
        return Agreement()
    sums, all_k, num_terms = None, 0, 0
    for a, b in terms:
        num_terms += 1
        if b.size:
            m, k, n = shape(a.size, b.size, found.size)
            sums, all_k = sums or _Sums(m, n, rows, seed), all_k + k
            sums.add(a.reshape(m, k), b.reshape(k, n))
    sums = sums or _Sums(1, found.size, rows, seed)
    n = len(sums.signs)
    tolerance = tolerance_of(found.dtype.name, all_k, num_terms) + 8 * ROW_WEIGHT * sqrt(n) * ROUNDOFF["float64"]
    return sums.compare(found.reshape(-1, n), tolerance)


def tolerance_of(dtype: str, k: int, terms: int) -> float:
    """Error to be expected of an honest product, over the root mean square of its elements."""
    accumulator = min(ROUNDOFF[dtype], ROUNDOFF["float32"])
    return 8 * (terms + 1) * ROUNDOFF[dtype] + 8 * sqrt(k) * accumulator


class _Sums:
    """What m rows of n elements must hold: some rows whole, and of each the sum with random signs."""

    def __init__(self, m: int, n: int, rows: int, seed: int) -> None:
        rng = np.random.default_rng([m, n, seed])
        self.rows = np.unique(np.append(rng.integers(0, m, rows), [0, m - 1]))
        self.signs: Floats = rng.choice([-1.0, 1.0], n)
        self.exact, self.signed = np.zeros((len(self.rows), n)), np.zeros(m)

    def add(self, a: Array, b: Array) -> None:
        """Add the product of a (m, k) and b (k, n)."""
        times_signs = np.empty(len(b))
        sampled = a[self.rows].astype(np.float64)
        for part, wide in _widened(b):
            self.exact += sampled[:, part] @ wide
            times_signs[part] = wide @ self.signs
        for part, wide in _widened(a):
            self.signed[part] += wide @ times_signs

    def compare(self, c: Array, tolerance: float) -> Agreement:
        scale = float(np.sqrt(np.mean(self.exact**2))) or 1.0
        signed = np.empty(len(c))
        with np.errstate(all="ignore"):
            for part, wide in _widened(c):
                signed[part] = wide @ self.signs
            by_element = np.abs(c[self.rows].astype(np.float64) - self.exact) / scale
            by_row = ROW_WEIGHT * np.abs(signed - self.signed) / (scale * sqrt(len(self.signs)))
        for errors in (by_element, by_row):
            errors[~np.isfinite(errors)] = np.inf
        others = np.delete(by_row, self.rows)
        num_wrong = int(np.count_nonzero(by_element > tolerance) + np.count_nonzero(others > tolerance))
        worst = float(max(by_element.max(), by_row.max()))
        num_wrong = max(num_wrong, int(worst > tolerance))  # at least the sampled row that is wrong as a whole only
        only_row = by_element.max() <= tolerance < by_row.max()
        return Agreement(worst, tolerance, num_wrong, self._worst(c, by_element, by_row, only_row))

    def _worst(self, c: Array, by_element: Floats, by_row: Floats, only_row: bool) -> str:
        if only_row:
            most = int(by_row.argmax())
            return f"row {most}, whose sum with random signs is off by {by_row[most] / ROW_WEIGHT:.2g} of its own size"
        place, column = divmod(int(by_element.argmax()), by_element.shape[1])
        row = int(self.rows[place])
        return f"row {row}, column {column}: {float(c[row, column]):.9g} instead of {self.exact[place, column]:.9g}"


def _widened(matrix: Array) -> Iterator[tuple[slice, Floats]]:
    """The rows of a matrix in float64, some at a time."""
    step = max(CHUNK // max(matrix.shape[1], 1), 1)
    for start in range(0, len(matrix), step):
        yield slice(start, start + step), matrix[start : start + step].astype(np.float64)


MATMUL = KernelForm("matmul", matmul, work, native, check_product)
