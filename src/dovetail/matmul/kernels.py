"""kernels: the kernel `matmul`: its NumPy reference, its shape and work, and how a product is checked."""

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
ROW_WEIGHT = 4  # factor on the error of a row checked as a whole, in which errors of elements partly cancel
CHUNK = 1 << 18  # elements converted to float64 at a time


def matmul(reads: Sequence[Array], writes: Sequence[Array]) -> None:
    """Compute C = A·B: reads are A and B, writes is C, each a matrix stored by rows (see `shape`).

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
    """Return the shape (m, k, n) of a product from numbers of elements: the solution of m·k = a, k·n = b, m·n = c.

    If a matrix is empty, there are several solutions; m is then `rows` if possible. Raises ProgramError if there is
    none.

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
    """Return the shape of an op's product. Raises ProgramError if slots do not divide the rows of a matrix."""
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
    """Return the work of a product: its rows, on the cost curve of its k, n and dtype."""
    return work_of(shape_of(reads, writes), reads[0].slot.dtype)


def work_of(product: Gemm, dtype: str) -> Work:
    """Return the work of a product of this shape; `shared_bytes` are those of B.

    >>> work_of(Gemm(2, 3, 4), "float32")
    Work(key='matmul:k=3:n=4:float32', units=2, flops=48.0, num_bytes=56, shared_bytes=48)
    """
    (m, k, n), each = product, dtype_bytes(dtype)
    return Work(f"matmul:k={k}:n={n}:{dtype}", m, 2.0 * m * k * n, m * (k + n) * each, k * n * each)


def native(reads: Sequence[Operand], writes: Sequence[Operand]) -> Gemm | None:
    """Return the native form of a product; None for integers and mixed dtypes."""
    dtypes = {operand.slot.dtype for operand in (*reads, *writes)}
    return shape_of(reads, writes) if len(dtypes) == 1 and dtypes <= ROUNDOFF.keys() else None


def check_product(terms: Iterable[Sequence[Array]], found: Array, rows: int = 48, seed: int = 0) -> Agreement:
    """Check whether `found` is the sum of the products A·B of all terms (A, B); `terms` may be an iterator.

    The first and last row and `rows` random others are compared element by element, in float64. All rows are checked by
    C·x for a random vector x of ±1 (Freivalds); since errors of elements partly cancel there, they count ROW_WEIGHT
    times as much. Errors are relative to the root mean square of the result; NaN is wrong. The tolerance allows for
    rounding one partial result per term, a random walk of k additions, and the rounding of the reference.

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
    """Return the error that a correct product may have, relative to the root mean square of its elements."""
    accumulator = min(ROUNDOFF[dtype], ROUNDOFF["float32"])
    return 8 * (terms + 1) * ROUNDOFF[dtype] + 8 * sqrt(k) * accumulator


class _Sums:
    """Exact values of a result of m rows and n elements: some whole rows, and the sum of each row with random signs."""

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
        num_wrong = max(num_wrong, int(worst > tolerance))  # counts a sampled row that is wrong only as a whole
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
    """Yield the rows of a matrix in float64, some at a time."""
    step = max(CHUNK // max(matrix.shape[1], 1), 1)
    for start in range(0, len(matrix), step):
        yield slice(start, start + step), matrix[start : start + step].astype(np.float64)


MATMUL = KernelForm("matmul", matmul, work, native, check_product)
