"""Tiles: H, P and HD, what leaves a tile counted exactly, tiles of a space, and their time steps."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import some
from tilings import P1, P2, SEED, boxes, departures, legal_tilings, points_by_definition, tile_by_definition

from dovetail.core import OperatorError, PlanError
from dovetail.loops.matrices import adjugate, determinant, diagonal, hermite, parse_matrix
from dovetail.loops.matrices import product as times
from dovetail.tiling.facts import tile_facts
from dovetail.tiling.hyperplanes import best_mapping, non_overlapping, num_processors, overlapping, step_of
from dovetail.tiling.spaces import Space, tiles_of
from dovetail.tiling.tile_loops import tiles
from dovetail.tiling.tile_points import Traffic, messages, tile_dependences, tile_points, traffic
from dovetail.tiling.tiling import Tiling

UNITS = diagonal([1, 1, 1])


# The source's example


@pytest.mark.parametrize(
    ("sides", "formula", "counted", "along_0", "along_1"),
    [
        (P1, 32, Traffic(27, 22, 17), (12, 8), (20, 15)),
        (P2, 20, Traffic(20, 20, 15), (10, 10), (10, 10)),
        (((5, 0), (0, 4)), 31, Traffic(26, 21, 16), (15, 10), (16, 12)),
    ],
    ids=["P1", "P2", "P1 with its sides swapped"],
)
def test_the_example_of_the_source(sides, formula, counted, along_0, along_1):
    tiling = Tiling(SEED, sides)
    assert (tiling.volume, tiling.formula(), traffic(tiling)) == (20, formula, counted)
    for mapped, (by_formula, values) in enumerate((along_0, along_1)):
        assert (tiling.formula(mapped), traffic(tiling, mapped).values) == (by_formula, values)


@pytest.mark.parametrize(
    ("space", "sides", "steps", "overlapped", "from_1"),
    [
        ("16x16x16384", (4, 4, 444), 43, 49, 53),
        ("16x16x32768", (4, 4, 538), 67, 73, 77),
        ("32x32x4096", (8, 8, 164), 31, 37, 41),
    ],
)
def test_hyperplanes_of_the_three_spaces(space, sides, steps, overlapped, from_1):
    tiling, bounds = Tiling(UNITS, diagonal(sides)), Space.parse(space)
    assert best_mapping(tiling, bounds) == 2
    found = overlapping(tiling, bounds, 2)
    assert (non_overlapping(tiling, bounds).steps, found.steps, found.steps_from_1) == (steps, overlapped, from_1)
    assert num_processors(tiling, bounds, 2) == 16


# Against the definitions


@pytest.mark.slow
@settings(max_examples=some(60), deadline=None)
@given(legal_tilings(), st.data())
def test_counts_are_those_of_the_definition(tiling, data):
    mapped = data.draw(st.sampled_from([None, *range(tiling.num_loops)]))
    left = departures(tiling, mapped)
    assert [tuple(point) for point in tile_points(tiling).tolist()] == points_by_definition(tiling)
    assert traffic(tiling, mapped) == Traffic(len(left), len(set(left)), len({point for point, _ in left}))
    found = messages(tiling, mapped)
    assert [each.to for each in found] == sorted({to for _, to in left})
    for each in found:
        assert [tuple(point) for point in each.points.tolist()] == sorted(
            {point for point, to in left if to == each.to}
        )
        assert each.num_pairs == sum(to == each.to for _, to in left)
    if mapped is None:
        assert tile_dependences(tiling) == tuple(each.to for each in found)
        assert tiling.formula() == sum(each.num_pairs * sum(each.to) for each in found), "a pair for each face"


@settings(max_examples=some(60), deadline=None)
@given(legal_tilings())
def test_tiles_that_contain_dependences_have_neighbours_next_to_them_only(tiling):
    near = all(entry in (0, 1) for to in tile_dependences(tiling) for entry in to)
    assert near or not tiling.contains_dependences


@settings(max_examples=some(60), deadline=None)
@given(legal_tilings(), st.tuples(*[st.integers(-50, 50)] * 3))
def test_every_point_has_a_tile_and_an_offset(tiling, numbers):
    point = numbers[: tiling.num_loops]
    tile = tiling.tile_of(point)
    assert tile == tile_by_definition(tiling, point)
    offset = tiling.offset(point)
    assert tuple(a + b for a, b in zip(tiling.origin(tile), offset, strict=True)) == point
    assert list(offset) in tile_points(tiling).tolist()


@settings(max_examples=some(80), deadline=None)
@given(st.integers(1, 4).flatmap(lambda n: st.lists(st.tuples(*[st.integers(-6, 6)] * n), min_size=n, max_size=n)))
def test_matrices_are_exact(rows):
    matrix = tuple(rows)
    size = determinant(matrix)
    assert size == round(float(np.linalg.det(np.array(rows, dtype=float))))
    if size:
        assert times(matrix, adjugate(matrix)) == diagonal([size] * len(rows))
        basis = hermite(matrix)
        assert abs(determinant(basis)) == abs(size)
        whole = times(
            adjugate(basis), matrix
        )  # both have the same columns' lattice: one is whole in terms of the other
        assert all(entry % determinant(basis) == 0 for row in whole for entry in row)
        for i, row in enumerate(basis):
            assert row[i] > 0
            assert all(0 <= entry < row[i] for entry in row[:i])
            assert not any(row[i + 1 :])


# Spaces


@pytest.mark.slow
@settings(max_examples=some(60), deadline=None)
@given(legal_tilings(), st.data())
def test_tiled_iteration_visits_every_point_once_in_a_legal_order(tiling, data):
    space = data.draw(boxes(tiling.num_loops))
    found = list(tiles(tiling, space))
    order = [tuple(point) for _, points in found for point in points.tolist()]
    assert sorted(order) == list(product(*(range(low, high + 1) for low, high in space.ranges)))
    when = {point: k for k, point in enumerate(order)}
    for point, k in when.items():
        for vector in tiling.vectors:
            assert when.get(tuple(a - b for a, b in zip(point, vector, strict=True)), -1) < k
    counted = tiles_of(tiling, space)
    assert (counted.num_tiles, counted.num_whole) == (len(found), sum(len(p) == tiling.volume for _, p in found))
    numbers = np.array([tile for tile, _ in found])
    assert counted.ranges == tuple(zip(numbers.min(axis=0).tolist(), numbers.max(axis=0).tolist(), strict=True))


@settings(max_examples=some(40), deadline=None)
@given(legal_tilings(), st.data())
def test_schedules_put_every_tile_after_those_it_needs(tiling, data):
    space = data.draw(boxes(tiling.num_loops))
    mapped = best_mapping(tiling, space)
    one, two = non_overlapping(tiling, space), overlapping(tiling, space, mapped)
    all_tiles = [tile for tile, _ in tiles(tiling, space)]
    for schedule in (one, two):
        times_of = [step_of(schedule.pi, tile) for tile in all_tiles]
        assert schedule.steps == max(times_of) - min(times_of) + 1
    for to in tile_dependences(tiling):
        assert step_of(one.pi, to) >= 1
        elsewhere = any(entry for k, entry in enumerate(to) if k != mapped)
        assert step_of(two.pi, to) >= (2 if elsewhere else 1), "a message takes a step of its own"
    chains = {tile[:mapped] + tile[mapped + 1 :] for tile in all_tiles}
    assert num_processors(tiling, space, mapped) == len(chains)


def earliest(extents, mapped):
    """The steps that a grid of tiles takes at least, where a message to another processor takes a step of its own."""
    when = {}
    for tile in product(*map(range, extents)):
        steps = [0]
        for k, entry in enumerate(tile):
            if entry:
                before = (*tile[:k], entry - 1, *tile[k + 1 :])
                steps.append(when[before] + (1 if mapped is None or k == mapped else 2))
        when[tile] = max(steps)
    return max(when.values()) + 1


@pytest.mark.parametrize("extents", [(4, 4, 7), (3, 5), (5, 3), (4, 7, 2), (1, 6), (3, 3, 3)])
def test_both_schedules_are_the_shortest_for_their_grid(extents):
    tiling = Tiling(diagonal([1] * len(extents)), diagonal([3] * len(extents)))
    space = Space.parse("x".join(str(3 * n - 1) for n in extents))
    assert tiles_of(tiling, space).extents == extents
    assert non_overlapping(tiling, space).steps == earliest(extents, None)
    for mapped in range(len(extents)):
        assert overlapping(tiling, space, mapped).steps == earliest(extents, mapped)
    best = best_mapping(tiling, space)
    assert extents[best] == max(extents)


def test_spaces_of_any_shape():
    tiling = Tiling(((1, 1), (0, 1)), ((3, 1), (0, 2)))
    space = Space.parse("[N] -> { S[i, j] : 0 <= i < N and i <= j < N }").with_sizes({"N": 9})
    order = [tuple(point) for _, points in tiles(tiling, space) for point in points.tolist()]
    assert sorted(order) == [(i, j) for i in range(9) for j in range(i, 9)]
    assert tiles_of(tiling, space).num_tiles == len(list(tiles(tiling, space)))
    apart = Space.parse("{ [i] : 0 <= i < 3 or 7 <= i < 9 }")
    assert [points.ravel().tolist() for _, points in tiles(Tiling(((1,),), ((2,),)), apart)] == [[0, 1], [2], [7], [8]]


# What is refused


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1,x;2,3", "'x'"),
        ("1.5,0;0,1", "'1.5'"),
        ("1,2;3", "2 and 1 entries"),
        ("", "''"),
        ("1,,2;3,4", None),
        ("99999999999999999999,0;0,1", "99999999999999999999"),
    ],
)
def test_what_is_no_matrix_is_refused(text, found):
    if found is None:
        assert parse_matrix(text, "deps") == ((1, 2), (3, 4))
        return
    with pytest.raises(OperatorError) as error:
        parse_matrix(text, "deps")
    assert error.value.found == found


@pytest.mark.parametrize(
    ("deps", "sides", "what"),
    [
        (SEED, ((1, 2), (2, 4)), "this tile is flat"),
        (SEED, ((1, 0, 0), (0, 1, 0), (0, 0, 1)), "as many sides as there are loops"),
        (SEED, ((1, 0),), "as many sides as there are loops"),
        (((0, 1), (0, 1)), P2, r"the dependence \(0, 0\) does not point to a later iteration"),
        (((1, 0), (0, -1)), P2, r"the dependence \(0, -1\) does not point to a later iteration"),
    ],
    ids=["flat", "too many sides", "too few", "zero", "backwards"],
)
def test_what_is_no_tiling_is_refused(deps, sides, what):
    with pytest.raises(OperatorError, match=what):
        Tiling(deps, sides)


def test_an_illegal_tile_names_the_dependence():
    tiling = Tiling(((1, 1, 1), (-1, 0, 1)), ((4, 0), (0, 5)))
    assert not tiling.is_legal
    assert tiling.broken() == ((1, -1),)
    with pytest.raises(PlanError, match=r"the dependence \(1, -1\) goes backwards along its dimension 1"):
        tiling.check_legal()
    with pytest.raises(PlanError, match="illegal"):
        non_overlapping(tiling, Space.parse("9x9"))
    facts = tile_facts(tiling, Space.parse("9x9"))
    assert (facts.counts, facts.bounded) == (None, None)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("0x4", "has no points"),
        ("4x", "no iteration space"),
        ("4:2,1:3", "has no points"),
        ("a,b", "no iteration space"),
        ("{ [i] : i >= 0 }", "is unbounded"),
        ("{ [i] : i * i < 4 }", "no iteration space"),
        ("{ [i : 0 <= i < 4 }", "no iteration space"),
        ("{ [] : }", "has no points"),
        ("1:2:3", "no iteration space"),
    ],
)
def test_what_is_no_space_is_refused(text, what):
    with pytest.raises(OperatorError, match=what):
        Space.parse(text)


def test_counting_needs_sizes_dense_spaces_and_as_many_loops():
    tiling = Tiling(SEED, P2)
    with pytest.raises(OperatorError, match="known sizes"):
        tile_facts(tiling, Space.parse("[N] -> { [i, j] : 0 <= i < N and 0 <= j < N }"))
    with pytest.raises(OperatorError, match="differ in their number of loops"):
        tile_facts(tiling, Space.parse("4x4x4"))
    with pytest.raises(OperatorError, match="no dimension 2"):
        tile_facts(tiling, mapped=2)
    with pytest.raises(OperatorError, match="has holes"):
        list(tiles(Tiling(((1,),), ((2,),)), Space.parse("{ [i] : exists k : i = 2k and 0 <= i < 9 }")))
    with pytest.raises(OperatorError, match="no parameter 'M'"):
        Space.parse("[N] -> { [i] : 0 <= i < N }").with_sizes({"M": 3})


def test_tiles_too_large_to_be_listed_are_described_without_counts():
    facts = tile_facts(Tiling(SEED, ((60000, 0), (0, 60000))), Space.parse("100000x100000"))
    assert facts.counts is None
    assert "too large to have its points counted" in facts.notes[0]
    assert facts.bounded.tiles.num_tiles == 4
    thin = Tiling(((1,), (0,)), ((10**15, 10**15 - 1), (1, 1)))
    with pytest.raises(PlanError, match="too long for their volume"):
        traffic(thin)
