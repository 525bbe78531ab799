"""The best tile of a volume: as good as the best of all whole matrices, and what is called proved is the best."""

from itertools import product
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import some
from tilings import P2, SEED

from dovetail.core import OperatorError, PlanError
from dovetail.loops.matrices import Matrix, determinant, diagonal, dot, transposed
from dovetail.tiling.cone import cone_rays, determinants, edges_of, generators, skewing, vectors_in_cone
from dovetail.tiling.exact_search import cheaper_tiles
from dovetail.tiling.search import best_tile, continuous_bound, factorizations
from dovetail.tiling.spaces import Space
from dovetail.tiling.tile_points import traffic
from dovetail.tiling.tiling import Tiling

JACOBI = ((1, 1, 1), (-1, 0, 1))
UNITS = diagonal([1, 1, 1])


def all_tiles(deps: Matrix, volume: int, least: int, most: int) -> list[Tiling]:
    """Every legal tile of the volume whose sides have entries in this range: all whole matrices are looked at."""
    n = len(deps)
    axes = np.meshgrid(*[np.arange(least, most + 1)] * (n * n), indexing="ij")
    every = np.stack(axes, axis=-1).reshape(-1, n, n)
    fitting = every[np.abs(determinants(every)) == volume].tolist()
    tilings = (Tiling(deps, tuple(map(tuple, sides))) for sides in fitting)
    return [tiling for tiling in tilings if tiling.is_legal]


def test_the_example_of_the_source():
    found = best_tile(SEED, 20)
    assert (found.tiling.sides, found.cost, found.is_proved) == (P2, 20, True)
    exhaustive = all_tiles(SEED, 20, -8, 8)
    assert min(tiling.formula() for tiling in exhaustive) == 20
    assert {frozenset(tiling.edges) for tiling in exhaustive if tiling.formula() == 20} == {frozenset(((6, 2), (2, 4)))}


@pytest.mark.slow
@pytest.mark.parametrize("deps", [SEED, JACOBI, ((1, 0), (0, 1)), ((1, 0, 1), (0, 1, 1)), ((2, 1), (-1, 1))])
@pytest.mark.parametrize("volume", [1, 2, 6, 7, 12, 13])
def test_no_matrix_is_better_in_two_dimensions(deps, volume):
    found = best_tile(deps, volume)
    assert found.tiling.volume == volume
    assert found.tiling.is_legal
    assert found.cost == found.tiling.formula()
    exhaustive = min(tiling.formula() for tiling in all_tiles(deps, volume, -9, 9))
    assert found.is_proved
    assert found.cost <= exhaustive
    assert found.cost == exhaustive or max(abs(x) for row in found.tiling.sides for x in row) > 9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("deps", "volume"), [(UNITS, 4), (UNITS, 8), (UNITS, 5), (((1, 1, 0), (0, 1, 1), (1, 0, 1)), 4)]
)
def test_no_small_matrix_is_better_in_three_dimensions(deps, volume):
    found = best_tile(deps, volume)
    exhaustive = min(tiling.formula() for tiling in all_tiles(deps, volume, -1, 2))
    assert found.bound <= found.cost <= exhaustive


@pytest.mark.slow
@pytest.mark.parametrize("by", ["pairs", "values"])
@pytest.mark.parametrize(("deps", "volume"), [(SEED, 20), (JACOBI, 12), (((1, 0, 1), (0, 1, 1)), 12)])
def test_what_is_counted_is_least_too(by, deps, volume):
    found = best_tile(deps, volume, by=by)
    costs = [getattr(traffic(tiling), by) for tiling in all_tiles(deps, volume, -6, 6)]
    assert found.cost == getattr(traffic(found.tiling), by)
    assert found.cost <= min(costs)


@pytest.mark.slow
@settings(max_examples=some(40), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-3, 3)), min_size=1, max_size=4), st.integers(1, 60))
def test_any_volume_has_a_legal_tile_that_keeps_the_bound(vectors, volume):
    deps = transposed(tuple(vector if vector > (0, 0) else (1, vector[1]) for vector in vectors))
    found = best_tile(deps, volume)
    assert found.tiling.volume == volume
    assert found.tiling.is_legal
    assert found.cost >= continuous_bound(deps, volume)


@pytest.mark.parametrize(
    ("deps", "volume", "most"),
    [(SEED, 99991, 1.01), (SEED, 10000, 1.01), (UNITS, 97, 1.4), (UNITS, 4096, 1.0), (JACOBI, 4999, 1.01)],
)
def test_large_and_prime_volumes_come_near_the_bound(deps, volume, most):
    assert best_tile(deps, volume).cost <= most * continuous_bound(deps, volume)


def test_a_mapped_dimension_sends_nothing():
    """The source's own shape, 4 x 4 x 444, is the best of its volume for 16 chains along the longest loop."""
    found = best_tile(UNITS, 7104, mapped=2, space=Space.parse("16x16x16384"), ranks=16)
    assert found.tiling.sides == diagonal([4, 4, 444])
    assert found.cost == found.tiling.formula(2) == 2 * 4 * 444
    assert not found.is_free
    free = best_tile(UNITS, 7104, mapped=2)
    assert free.is_free
    assert free.cost < found.cost


def test_what_cannot_be_searched_is_refused():
    with pytest.raises(OperatorError, match="no criterion 'bytes'"):
        best_tile(SEED, 20, by="bytes")
    with pytest.raises(OperatorError, match="need a space and a mapped dimension"):
        best_tile(SEED, 20, ranks=4)
    with pytest.raises(OperatorError, match="no dimension 2"):
        best_tile(SEED, 20, mapped=2)
    with pytest.raises(OperatorError, match="differ in their number of loops"):
        best_tile(SEED, 20, mapped=0, space=Space.parse("4x4x4"), ranks=2)
    with pytest.raises(OperatorError, match="volume must be at least 1"):
        best_tile(SEED, 0)
    with pytest.raises(PlanError, match="no legal tile of 400 points was found"):
        best_tile(SEED, 400, mapped=0, space=Space.parse("20x20"), ranks=1000)


# The tiling cone


@settings(max_examples=some(60), deadline=None)
@given(st.integers(1, 3).flatmap(lambda n: st.lists(st.tuples(*[st.integers(-2, 3)] * n), min_size=1, max_size=5)))
def test_the_cone_is_that_of_its_rays(vectors):
    """A whole vector lies in the cone iff no dependence goes against it; every such vector is a sum of rays."""
    n = len(vectors[0])
    vectors = [vector if vector > (0,) * n else (1, *vector[1:]) for vector in vectors]
    deps = transposed(tuple(vectors))
    rays = cone_rays(deps)
    for found in (rays, generators(deps), skewing(deps)):
        assert all(dot(row, vector) >= 0 for row in found for vector in vectors)
    assert abs(determinant(skewing(deps))) == 1
    if rays and n == 2:
        one, other = rays
        size = determinant(rays)
        for h in product(range(-4, 5), repeat=2):
            parts = determinant((h, other)) / size, determinant((one, h)) / size
            assert all(dot(h, vector) >= 0 for vector in vectors) == (min(parts) >= 0)


def test_vectors_of_the_cone_are_all_that_cost_so_much():
    found, whole = vectors_in_cone(SEED, 20, 1000)
    assert whole
    costs = [2 * dot(h, (2, 1.5)) for h in found]
    assert costs == sorted(costs)
    expected = {
        h
        for h in product(range(-20, 21), repeat=2)
        if np.gcd(*h) == 1 and all(dot(h, d) >= 0 for d in transposed(SEED)) and dot(h, (4, 3)) <= 20
    }
    assert expected == {h for h in found if dot(h, (4, 3)) <= 20}
    assert len(vectors_in_cone(SEED, 20, 3)[0]) < len(found)
    assert not vectors_in_cone(SEED, 20, 3)[1]


def test_edges_belong_to_their_faces():
    assert edges_of(((2, -1), (-1, 3))) == ((3, 1), (1, 2))
    rows = ((1, 0, 0), (1, 1, 0), (1, 0, 1))
    edges = edges_of(rows)
    for i, row in enumerate(rows):
        for k, edge in enumerate(transposed(edges)):
            assert (dot(row, edge) > 0) == (i == k)
            assert (dot(row, edge) == 0) == (i != k)


@given(st.integers(1, 400), st.integers(1, 3))
def test_factorizations_are_all_of_them(number, parts):
    found = list(factorizations(number, parts))
    assert len(found) == len(set(found))
    assert all(np.prod(each) == number for each in found)
    divisors = [k for k in range(1, number + 1) if number % k == 0]
    ways = {1: 1, 2: len(divisors), 3: sum(sum(d % k == 0 for k in divisors) for d in divisors)}
    assert len(found) == ways[parts]


def test_the_bound_is_the_inequality_of_the_means():
    for volume in range(1, 60):
        assert continuous_bound(((1, 0), (0, 1)), volume) == ceil(2 * volume**0.5 - 1e-9)
        assert continuous_bound(UNITS, volume) == ceil(3 * volume ** (2 / 3) - 1e-9)


EXACT = [  # dependences, volume, the least V_comm by looking at all whole sides in a box
    (((1, 1, 0), (0, -1, 1), (-1, 0, 0)), 4),
    (((0, 1, 1), (1, -1, -1), (-1, 1, 0)), 5),
    (((1, 0, 1), (0, 1, 0), (-1, 0, 1)), 6),
    (((5, 2), (-3, 7)), 13),
]


@pytest.mark.parametrize(("deps", "volume"), EXACT)
def test_small_volumes_are_proved_least(deps, volume) -> None:
    """Against all sides in a box, with no use of the cone, its directions or lattices."""
    n, found = len(deps), best_tile(deps, volume)
    assert found.is_proved
    reach = 7 if n == 2 else 2
    entries = np.arange(-reach, reach + 1)
    columns = np.stack(np.meshgrid(*[entries] * n, indexing="ij"), axis=-1).reshape(-1, n)
    rows = np.cross(columns[:, None], columns[None]) if n == 3 else np.stack([columns[:, 1], -columns[:, 0]], axis=-1)
    flows = rows @ np.array(deps)
    least = [np.inf]
    if n == 2:
        sizes = columns[:, :1] * columns[None, :, 1] - columns[:, 1:] * columns[None, :, 0]
        legal = np.all(flows >= 0, axis=1)[None] & np.all(flows <= 0, axis=1)[:, None]
        cost = flows.sum(axis=1)[None] - flows.sum(axis=1)[:, None]
        least.append(cost[legal & (sizes == volume)].min())
    else:
        legal, cost = np.all(flows >= 0, axis=2), flows.sum(axis=2)
        for c, column in enumerate(columns):
            whole = (rows @ column == volume) & legal & legal[:, c][None] & legal[c][:, None]
            total = cost + cost[:, c][None] + cost[c][:, None]
            least.append(total[whole].min(initial=10**9))
    assert found.cost <= min(least) < 10**9
    assert found.cost == found.tiling.formula()


def test_planted_fault_a_worse_tile_is_bettered() -> None:
    """The exact search finds the least tile from any worse start, and nothing below the least."""
    for deps, volume in EXACT:
        least = best_tile(deps, volume).cost
        *_, (cost, sides) = cheaper_tiles(deps, volume, least + 9)
        assert (cost, Tiling(deps, sides).is_legal, Tiling(deps, sides).formula()) == (least, True, least)
        assert list(cheaper_tiles(deps, volume, least)) == []
