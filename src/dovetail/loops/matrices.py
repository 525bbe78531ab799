"""matrices: exact integer matrices: determinant, adjugate, Hermite normal form, and their text form."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import gcd

from dovetail.core import OperatorError

Vector = tuple[int, ...]
Matrix = tuple[Vector, ...]  # its rows


def parse_matrix(text: str, name: str) -> Matrix:
    """Parse a matrix of integers, row by row; `4x5` is the diagonal matrix of 4 and 5.

    >>> parse_matrix("6,2;2,4", "tile"), parse_matrix("4x5", "tile")  # or "[6 2; 2 4]", as matrices are printed
    (((6, 2), (2, 4)), ((4, 0), (0, 5)))
    """
    if re.fullmatch(r"\s*\d+(\s*x\s*\d+)*\s*", text):
        return parse_matrix(";".join(_diagonal_row(text.split("x"), k) for k in range(text.count("x") + 1)), name)
    rows = [re.split(r"[,\s]+", row.strip(" ,")) for row in text.strip(" ;[]").split(";")]
    wrong = [word for row in rows for word in row if not re.fullmatch(r"[+-]?\d{1,18}", word)]
    if wrong:
        if re.fullmatch(r"[+-]?\d+", wrong[0]):
            raise OperatorError(f"{name} has an entry of more than 18 digits", found=wrong[0], hint="smaller entries")
        hint = 'write rows like "6,2;2,4": columns are vectors, entries are whole numbers'
        raise OperatorError(f"{name} '{text}' is not a matrix of whole numbers", found=f"'{wrong[0]}'", hint=hint)
    return as_matrix([[int(word) for word in row] for row in rows], name)


def _diagonal_row(entries: Sequence[str], row: int) -> str:
    return ",".join(entry.strip() if k == row else "0" for k, entry in enumerate(entries))


def as_matrix(rows: Iterable[Iterable[int]], name: str) -> Matrix:
    """Return rows of one length as tuples of Python integers. Raises OperatorError if they are no matrix.

    >>> as_matrix([[1, 0], [2]], "deps")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.OperatorError: the rows of deps differ in length
      found       2 and 1 entries
      try         write 0 where a vector has no part in a dimension
    """
    try:
        whole = tuple(tuple(entry.__index__() for entry in row) for row in rows)
    except (TypeError, AttributeError):
        raise OperatorError(f"{name} is not a matrix of whole numbers", found=str(rows)) from None
    lengths = dict.fromkeys(map(len, whole))
    if not whole or 0 in lengths:
        raise OperatorError(f"{name} is empty", hint="write a row for each loop")
    if len(lengths) > 1:
        found = f"{' and '.join(map(str, lengths))} entries"
        raise OperatorError(
            f"the rows of {name} differ in length",
            found=found,
            hint="write 0 where a vector has no part in a dimension",
        )
    return whole


def diagonal(entries: Sequence[int]) -> Matrix:
    """Return the square matrix with these entries on its diagonal, and 0 elsewhere."""
    return tuple(tuple(entry if i == k else 0 for k in range(len(entries))) for i, entry in enumerate(entries))


def transposed(matrix: Matrix) -> Matrix:
    """Return the transposed matrix."""
    return tuple(zip(*matrix, strict=True))


def dot(a: Vector, b: Vector) -> int:
    """Return the scalar product."""
    return sum(x * y for x, y in zip(a, b, strict=True))


def product(a: Matrix, b: Matrix) -> Matrix:
    """Return the matrix product.

    >>> product(((1, 2), (3, 4)), ((1, 0), (1, 1)))
    ((3, 2), (7, 4))
    """
    columns = transposed(b)
    return tuple(tuple(dot(row, column) for column in columns) for row in a)


def determinant(matrix: Matrix) -> int:
    """Return the determinant, by Bareiss' fraction-free elimination.

    >>> determinant(((6, 2), (2, 4)))
    20
    """
    rows, sign, before = [list(row) for row in matrix], 1, 1
    for k in range(len(rows) - 1):
        pivot = next((i for i in range(k, len(rows)) if rows[i][k]), None)
        if pivot is None:
            return 0
        if pivot != k:
            rows[k], rows[pivot], sign = rows[pivot], rows[k], -sign
        for i in range(k + 1, len(rows)):
            for j in range(k + 1, len(rows)):
                rows[i][j] = (rows[i][j] * rows[k][k] - rows[i][k] * rows[k][j]) // before
        before = rows[k][k]
    return sign * rows[-1][-1]


def adjugate(matrix: Matrix) -> Matrix:
    """Return the matrix whose product with `matrix` is its determinant times the identity.

    >>> adjugate(((6, 2), (2, 4)))
    ((4, -2), (-2, 6))
    """
    n = len(matrix)
    if n == 1:
        return ((1,),)

    def minor(i: int, k: int) -> int:
        return determinant(tuple(row[:k] + row[k + 1 :] for r, row in enumerate(matrix) if r != i))

    return tuple(tuple((-1) ** (i + k) * minor(k, i) for k in range(n)) for i in range(n))


def primitive(vector: Vector) -> Vector:
    """Return the shortest integer vector of the same direction.

    >>> primitive((4, -2))
    (2, -1)
    """
    common = gcd(*vector)
    return tuple(entry // common for entry in vector)


def normal_to(vectors: Sequence[Vector]) -> Vector:
    """Return the vector orthogonal to n - 1 vectors of length n (their cross product); zero if these are dependent.

    >>> normal_to([(1, 0, 0), (0, 1, 0)])
    (0, 0, 1)
    """
    n = len(vectors) + 1
    if n == 1:
        return (1,)
    kept = (tuple(vector[:k] + vector[k + 1 :] for vector in vectors) for k in range(n))
    return tuple((-1) ** (n - 1 + k) * determinant(rows) for k, rows in enumerate(kept))


def rank(vectors: Sequence[Vector]) -> int:
    """Return the rank: how many of the vectors are linearly independent."""
    rows, found = [list(vector) for vector in vectors], 0
    for k in range(len(rows[0]) if rows else 0):
        pivot = next((i for i in range(found, len(rows)) if rows[i][k]), None)
        if pivot is None:
            continue
        rows[found], rows[pivot] = rows[pivot], rows[found]
        for i in range(found + 1, len(rows)):
            rows[i] = [rows[i][j] * rows[found][k] - rows[i][k] * rows[found][j] for j in range(len(rows[i]))]
        found += 1
    return found


def hermite(matrix: Matrix) -> Matrix:
    """Return the column Hermite normal form: the lower triangular basis of the lattice that the columns span.

    Diagonal entries are positive, and every entry to the left of one is at least 0 and less than it.

    >>> hermite(((6, 2), (2, 4)))
    ((2, 0), (4, 10))
    """
    columns = [list(column) for column in transposed(matrix)]
    for i in range(len(matrix)):
        while others := [k for k in range(i + 1, len(columns)) if columns[k][i]]:
            least = min([i, *others], key=lambda k: abs(columns[k][i]) or float("inf"))
            columns[i], columns[least] = columns[least], columns[i]
            for k in range(i + 1, len(columns)):
                _subtract(columns[k], columns[i], columns[k][i] // columns[i][i])
        if columns[i][i] < 0:
            columns[i] = [-entry for entry in columns[i]]
        for k in range(i):
            _subtract(columns[k], columns[i], columns[k][i] // columns[i][i])
    return transposed(tuple(map(tuple, columns)))


def _subtract(column: list[int], other: list[int], times: int) -> None:
    column[:] = [a - times * b for a, b in zip(column, other, strict=True)]
