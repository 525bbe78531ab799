"""Random legal tilings and spaces, and slow counts of what leaves a tile, for the tests of tiles."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import floor

from hypothesis import assume
from hypothesis import strategies as st

from dovetail.loops.matrices import determinant, dot, transposed
from dovetail.tiling.spaces import Space
from dovetail.tiling.tiling import Tiling

SEED = ((3, 1), (1, 2))
P1, P2 = ((4, 0), (0, 5)), ((6, 2), (2, 4))


@st.composite
def legal_tilings(draw: st.DrawFn) -> Tiling:
    """Tiles of one to three loops, oblique ones too, with up to four dependences that they allow, long ones too."""
    n = draw(st.integers(1, 3))
    edges = [draw(st.tuples(*[st.integers(-2, 4 if n < 3 else 3)] * n)) for _ in range(n)]
    edges = [edge if edge > (0,) * n else tuple(-entry for entry in edge) for edge in edges]
    assume(determinant(transposed(tuple(edges))))
    bare = Tiling(transposed((edges[0],)), transposed(tuple(edges)))
    allowed = [vector for vector in product(range(-2, 4), repeat=n) if is_allowed(bare, vector)]
    vectors = draw(st.lists(st.sampled_from([*edges, *allowed]), min_size=1, max_size=4))
    return Tiling(transposed(tuple(vectors)), bare.sides)


def is_allowed(tiling: Tiling, vector: tuple[int, ...]) -> bool:
    """Whether these tiles are legal with this dependence."""
    return vector > (0,) * len(vector) and all(dot(normal, vector) >= 0 for normal in tiling.normals)


@st.composite
def boxes(draw: st.DrawFn, num_loops: int) -> Space:
    """Small boxes, anywhere."""
    low = [draw(st.integers(-6, 6)) for _ in range(num_loops)]
    return Space.box([(at, at + draw(st.integers(1, 8))) for at in low])


def tile_by_definition(tiling: Tiling, point: tuple[int, ...]) -> tuple[int, ...]:
    """⌊Hj⌋ in fractions."""
    return tuple(floor(sum((x * y for x, y in zip(row, point, strict=True)), Fraction(0))) for row in tiling.h)


def points_by_definition(tiling: Tiling) -> list[tuple[int, ...]]:
    """All points whose tile is the one at the origin, looked for in a box that surely holds them."""
    reach = [sum(map(abs, row)) for row in tiling.sides]
    everywhere = product(*(range(-most, most + 1) for most in reach))
    return [point for point in everywhere if not any(tile_by_definition(tiling, point))]


def departures(tiling: Tiling, mapped: int | None = None) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Every (point, where to) of the tile at the origin that leaves it: one for each dependence."""
    found = []
    for point in points_by_definition(tiling):
        for vector in tiling.vectors:
            end = tile_by_definition(tiling, tuple(a + b for a, b in zip(point, vector, strict=True)))
            to = tuple(0 if k == mapped else entry for k, entry in enumerate(end))
            if any(to):
                found.append((point, to))
    return found
