"""tiling: a tiling of an iteration space by parallelepipeds: H, P, HD, legality, and V_comm by its formula.

Source: Goumas, Sotiropoulos, Koziris, "Minimizing completion time for loop tiling with computation and communication
overlapping", IPDPS 2001 (seed 003): tiles, their cost, V_comm.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from dovetail.core import OperatorError, PlanError
from dovetail.loops.matrices import Matrix, Vector, adjugate, determinant, dot, product, transposed

Fractions = tuple[tuple[Fraction, ...], ...]


@dataclass(frozen=True)
class Tiling:
    """Tiles with the columns of `sides` (P) as edges, of a nest with the columns of `deps` (D) as dependence vectors.

    Both have a row for each loop. The tile of point j is ⌊Hj⌋ with H = P⁻¹; the rows of H are normal to its faces.
    Raises OperatorError if P is singular, or if a dependence does not point from an earlier iteration to a later one.

    >>> tiling = Tiling(((3, 1), (1, 2)), ((6, 2), (2, 4)))
    >>> tiling.volume, tiling.tile_of((7, 3)), tiling.offset((7, 3)), tiling.is_legal, tiling.formula()
    (20, (1, 0), (1, 1), True, 20)
    >>> [[str(entry) for entry in row] for row in tiling.h]
    [['1/5', '-1/10'], ['-1/10', '3/10']]
    """

    deps: Matrix
    sides: Matrix

    def __post_init__(self) -> None:
        check_deps(self.deps)
        n = len(self.deps)
        if len(self.sides) != n or len(self.sides[0]) != n:
            found = f"{len(self.sides)} x {len(self.sides[0])}, and dependence vectors of {n} loops"
            raise OperatorError(
                "a tile has as many sides as there are loops", found=found, hint="columns are sides, rows are loops"
            )
        if not determinant(self.sides):
            raise OperatorError(
                "this tile is flat: its sides are dependent, so that it has no volume",
                found=f"columns {_listed(transposed(self.sides))}, determinant 0",
                hint="take sides of which none is a combination of the others",
            )

    @property
    def num_loops(self) -> int:
        return len(self.deps)

    @property
    def vectors(self) -> tuple[Vector, ...]:
        """The dependence vectors: the columns of D."""
        return transposed(self.deps)

    @property
    def edges(self) -> tuple[Vector, ...]:
        """The sides of a tile: the columns of P."""
        return transposed(self.sides)

    @cached_property
    def volume(self) -> int:
        """V_comp = |det P|: the points of a tile."""
        return abs(determinant(self.sides))

    @cached_property
    def normals(self) -> Matrix:
        """V·H, an integer matrix: row i is normal to the faces of kind i and points inwards."""
        sign = 1 if determinant(self.sides) > 0 else -1
        return tuple(tuple(sign * entry for entry in row) for row in adjugate(self.sides))

    @property
    def h(self) -> Fractions:
        """H = P⁻¹."""
        return _over(self.normals, self.volume)

    @cached_property
    def flow(self) -> Matrix:
        """V·HD, an integer matrix: number of points whose dependence (column) crosses a face (row)."""
        return product(self.normals, self.deps)

    @property
    def hd(self) -> Fractions:
        """HD: the length, in tiles, of each dependence (column) along each dimension (row)."""
        return _over(self.flow, self.volume)

    @property
    def is_legal(self) -> bool:
        """Whether tiles can be executed one after another: HD ≥ 0."""
        return all(entry >= 0 for row in self.flow for entry in row)

    @property
    def contains_dependences(self) -> bool:
        """Whether no dependence is longer than the tile, |HD| ≤ 1: each ends in the tile itself or in a neighbour."""
        return all(abs(entry) <= self.volume for row in self.flow for entry in row)

    def broken(self) -> tuple[Vector, ...]:
        """Return the dependences that go backwards through a face: those with a negative entry in HD."""
        columns = zip(self.vectors, transposed(self.flow), strict=True)
        return tuple(vector for vector, flow in columns if min(flow) < 0)

    def check_legal(self, hint: str = "turn its sides along the dependences; --volume finds such a tile") -> None:
        """Raise PlanError, naming dependence and face, if HD has a negative entry."""
        for vector, flow in zip(self.vectors, transposed(self.flow), strict=True):
            row = min(range(self.num_loops), key=lambda i: flow[i])
            if flow[row] < 0:
                what = f"this tile is illegal: the dependence {vector} goes backwards along its dimension {row}"
                found = f"row {row} of H times it is {Fraction(flow[row], self.volume)}; all of HD must be at least 0"
                raise PlanError(what, found=found, hint=hint)

    def tile_of(self, point: Vector) -> Vector:
        """⌊Hj⌋: the tile of a point."""
        return tuple(dot(row, point) // self.volume for row in self.normals)

    def origin(self, tile: Vector) -> Vector:
        """P·t: the first corner of a tile."""
        return tuple(dot(row, tile) for row in self.sides)

    def offset(self, point: Vector) -> Vector:
        """j − P⌊Hj⌋: the offset of a point in its tile."""
        return tuple(a - b for a, b in zip(point, self.origin(self.tile_of(point)), strict=True))

    def formula(self, mapped: int | None = None) -> int:
        """V_comm = |det P|·Σ HD, the source's formula; without the faces along the dimension `mapped` to one processor.

        A (point, dependence) pair that leaves through a corner is counted for each face there.
        """
        return sum(sum(row) for i, row in enumerate(self.flow) if i != mapped)


def check_deps(deps: Matrix) -> None:
    """Raise OperatorError if a column of D does not point from an earlier iteration to a later one."""
    for vector in transposed(deps):
        first = next((entry for entry in vector if entry), 0)
        if first <= 0:
            what = f"the dependence {vector} does not point to a later iteration"
            found = f"its first entry that is not 0 is {first}" if first else "only zeros: a point that needs itself"
            hint = "a column of D is the distance from the iteration that makes a value to one that needs it"
            raise OperatorError(what, found=found, hint=hint)


def _over(matrix: Matrix, divisor: int) -> Fractions:
    return tuple(tuple(Fraction(entry, divisor) for entry in row) for row in matrix)


def _listed(vectors: tuple[Vector, ...]) -> str:
    return ", ".join(map(str, vectors))
