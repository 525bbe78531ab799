"""Stencils whose ghost rows reach the ends of the grid: rows that no sweep computes, ends of several kinds, no rows."""

import pytest
from stencil_runs import check, native, schedule

from dovetail.core import PlanError
from dovetail.loops import array, loop, nest, problems


@nest(u=array("n", "m"), v=array("n", "m"))
def down(u, v, steps):
    n, m = u.shape
    for _ in loop(steps):
        for i in loop(n - 1):
            for j in loop(m):
                u[i, j] = v[i + 1, j]
        for i in loop(n - 1):
            for j in loop(m):
                v[i, j] = u[i + 1, j]


@nest(u=array("n", "m", "k"), v=array("n", "m", "k", time=True, boundary="fixed"))
def inner_box(u, v, steps):
    """In place, and never computed at either end of two axes."""
    n, m, k = u.shape
    for t in loop(steps):
        for i in loop(2, n - 1):
            for j in loop(1, m - 2):
                for x in loop(k):
                    u[i, j, x] = v[t, i - 2, j + 1, x] + v[t, i + 1, j - 1, x]
        for i in loop(1, n - 1):
            for j in loop(m - 1):
                for x in loop(k):
                    v[t + 1, i, j, x] = u[i - 1, j + 1, x]


@nest(
    u=array("n", "m", time=True, boundary="periodic"),
    v=array("n", "m"),
    w=array("n", "m", time=True, boundary="fixed"),
)
def around(u, v, w, steps):
    n, m = u.shape
    for t in loop(steps):
        for i in loop(1, n):
            for j in loop(m):
                v[i, j] = w[t, i - 1, j]
        for i in loop(n):
            for j in loop(m):
                u[t + 1, i, j] = v[i, j] + u[t, i - 1, j]
        for i in loop(n):
            for j in loop(m):
                w[t + 1, i, j] = u[t + 1, i, j]


@nest(u=array("n", time=True, boundary="fixed"), v=array("n"), w=array("n", time=True, boundary="periodic"))
def one_axis_around(u, v, w, steps):
    for t in loop(steps):
        for i in loop(1, u.shape[0] - 1):
            u[t + 1, i] = v[i + 1]
        for i in loop(u.shape[0]):
            w[t + 1, i] = u[t + 1, i] + w[t, i + 1]


@nest(
    u=array("n", time=True, boundary="reflecting"),
    v=array("n", time=True, boundary="fixed"),
    w=array("n", time=True, boundary="periodic"),
)
def three_ends(u, v, w, steps):
    """All kinds of ends; the periodic array is computed from the reflecting one."""
    n = u.shape[0]
    for t in loop(steps):
        for i in loop(n):
            u[t + 1, i] = v[t, i] + w[t, i + 2]
        for i in loop(n):
            w[t + 1, i] = u[t, i] - w[t, i + 1]
        for i in loop(n - 2):
            v[t + 1, i] = u[t, i - 1] - v[t, i + 2]


@nest(u=array("n", "m", time=True, boundary="fixed"))
def wide(u, steps):
    n, m = u.shape
    for t in loop(steps):
        for i in loop(2, n - 2):
            for j in loop(3, m - 3):
                u[t + 1, i, j] = u[t, i - 2, j - 3] + u[t, i + 2, j + 3]


@nest(u=array("n", "m", "k", dtype="float32"))
def wide_in_place(u, steps):
    n, m, k = u.shape
    for _ in loop(steps):
        for i in loop(1, n - 1):
            for j in loop(4, m - 4):
                for x in loop(10, k - 2):
                    u[i, j, x] = u[i, j, x] + 1


WAYS = [(depth, tile) for depth in (0, 1, 2, 4, 8) for tile in (None, 1, 3)]


def check_ways(made, grid, cuts, steps=5, ways=WAYS, run=None):
    wish = made.wish(grid, steps=steps, dtype="float64")
    for cut in cuts:
        for depth, tile in ways:
            check(wish, schedule(cut, depth, tile is None and depth == 1, tile), run=run)


@pytest.mark.parametrize("name", ["fdtd2d", "red_black2d"])
def test_shipped_in_place_up_to_the_ends(name):
    """Ghost rows at an end of the grid, which no sweep computes, must be received: they are never written here."""
    check_ways(getattr(problems, name), "12x9", [(2,), (4,)])


def test_rows_in_place_that_no_sweep_computes():
    check_ways(down, "12x3", [(1,), (2,), (5,)])
    check_ways(inner_box, "7x6x2", [(2, 1), (1, 3), (2, 2)], ways=[(0, None), (2, None), (3, 2)])


@pytest.mark.parametrize(("made", "grid"), [(around, "8x3"), (one_axis_around, "8")])
def test_a_periodic_array_that_is_computed_from_others(made, grid):
    check_ways(made, grid, [(1,), (2,), (4,)])


def test_a_periodic_array_that_is_computed_from_a_mirrored_one():
    """Right before every sweep; refused for several sweeps, for ghost rows of both differ."""
    check_ways(three_ends, "12", [(1,), (3,)], ways=[(0, None), (0, 2)])
    wish = three_ends.wish("12", steps=5)
    with pytest.raises(PlanError, match="go around the ends, and those of u are mirrored there"):
        wish.program(schedule((2,), 2), 2)
    assert wish.serial(2)["depth"] == 0


@pytest.mark.needs("compiler")
@pytest.mark.parametrize(
    ("made", "grid"),
    [(wide, "8x5"), (wide, "8x1"), (wide, "3x9"), (wide, "2x2"), (wide_in_place, "4x5x12"), (wide_in_place, "4x9x3")],
)
def test_loops_without_iterations(made, grid):
    """Nothing is computed, and nothing is written beyond a row."""
    cuts = [(1,), (2,)] if made is wide else [(1, 1), (2, 1), (1, 3)]
    check_ways(made, grid, cuts, ways=[(0, None), (2, None), (2, 1)], run=native)
