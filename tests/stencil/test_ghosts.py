"""Ghost rows at the ends of the grid: rows that no sweep computes, boundaries of several kinds, empty loops."""

import numpy as np
import pipeline_runs
import pytest
from stencil_runs import check, native, schedule

from dovetail import operator_of
from dovetail.core import OperatorError, PlanError
from dovetail.ir import verify
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
    """Updates in place; the ends of two axes are never computed."""
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
    """All kinds of boundaries; the periodic array is computed from the reflecting one."""
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
    operator = operator_of(made)(grid, steps=steps, dtype="float64")
    for cut in cuts:
        for depth, tile in ways:
            check(operator, schedule(cut, depth, tile is None and depth == 1, tile), run=run)


@pytest.mark.parametrize("name", ["fdtd2d", "red_black2d"])
def test_shipped_in_place_up_to_the_ends(name):
    """Ghost rows at an end of the grid, which no sweep computes, must be received."""
    check_ways(getattr(problems, name), "12x9", [(2,), (4,)])


def test_rows_in_place_that_no_sweep_computes():
    check_ways(down, "12x3", [(1,), (2,), (5,)])
    check_ways(inner_box, "7x6x2", [(2, 1), (1, 3), (2, 2)], ways=[(0, None), (2, None), (3, 2)])


@pytest.mark.parametrize(("made", "grid"), [(around, "8x3"), (one_axis_around, "8")])
def test_a_periodic_array_that_is_computed_from_others(made, grid):
    check_ways(made, grid, [(1,), (2,), (4,)])


def test_a_periodic_array_that_is_computed_from_a_mirrored_one():
    """Correct if ghosts are exchanged before every sweep; refused for several sweeps, as ghost rows of both differ."""
    check_ways(three_ends, "12", [(1,), (3,)], ways=[(0, None), (0, 2)])
    operator = operator_of(three_ends)("12", steps=5)
    with pytest.raises(PlanError, match="go around the ends, but those of u are mirrored there"):
        operator.program(schedule((2,), 2), 2)
    assert operator.serial(2)["depth"] == 0


@pytest.mark.needs("compiler")
@pytest.mark.parametrize(
    ("made", "grid"),
    [(wide, "8x5"), (wide, "8x1"), (wide, "3x9"), (wide, "2x2"), (wide_in_place, "4x5x12"), (wide_in_place, "4x9x3")],
)
def test_loops_without_iterations(made, grid):
    """Nothing is computed, and nothing is written beyond a row."""
    cuts = [(1,), (2,)] if made is wide else [(1, 1), (2, 1), (1, 3)]
    check_ways(made, grid, cuts, ways=[(0, None), (2, None), (2, 1)], run=native)


def test_a_loop_that_is_always_empty():
    """An empty loop may be beside others; a nest without any other loop is refused."""

    @nest(u=array("n", "m"), v=array("n", "m"))
    def upwards(u, v, steps):
        n, m = u.shape
        for _ in loop(steps):
            for i in loop(0):
                for j in loop(m):
                    v[i, j] = v[i, j]
            for i in loop(1, n):
                for j in loop(1, m):
                    u[i, j] = u[i, j - 1] + u[i - 1, j]

    operator = operator_of(upwards)("6x5", steps=2)
    how = operator.default_schedule(2)
    verify(operator.program(how, 2), against=operator.reference(how, 2)).raise_if_bad()

    def holds_nothing(u):
        for i in loop(u.shape[0]):
            for j in loop(0):
                u[i] = j

    with pytest.raises(OperatorError, match="a loop writes nothing"):
        nest(u=array("n"))(holds_nothing)


@nest(u=array("n", "m", time=True, boundary="fixed"), v=array("n", "m"))
def with_edges(u, v, steps):
    n, m = u.shape
    for t in loop(steps):
        for i in loop(1, n - 1):
            for j in loop(1, m - 1):
                u[t + 1, i, j] = u[t, i, j - 1] + u[t, i + 1, j] + v[i, j]
        for i in loop(2, 4):
            for j in loop(m):
                v[i, j] = v[i, j] + 1
        for j in loop(1, m - 1):
            v[n - 1, j] = u[t + 1, n - 2, j + 1] + v[n - 1, j]
        for i in loop(n - 1):
            v[i, 0] = u[t + 1, i, 1] + u[t, i, 2]
        v[3, 3] = u[t + 1, 2, 2]


@nest(u=array("n", "m", "k"))
def with_lines(u, steps):
    """Rows, columns and lines that read values that the same loops have just written."""
    n, m, k = u.shape
    for _ in loop(steps):
        for i in loop(1, n):
            for j in loop(1, m):
                for x in loop(1, k):
                    u[i, j, x] = u[i, j - 1, x] + u[i - 1, j, x]
        for i in loop(1, 2):
            for j in loop(1, m):
                for x in loop(1, k - 1):
                    u[i, j, x] = u[i + 1, j, x] + u[i, j - 1, x + 1]
        for i in loop(1, n):
            u[i, m - 1, 0] = u[i - 1, m - 1, 1]


def test_rows_that_are_written_at_one_index():
    check_ways(with_edges, "8x7", [(1,), (2,)], ways=[(0, None), (2, None), (2, 1)])
    operator = operator_of(with_lines)("4x5x6", steps=2)
    for cut, mapped in ((1, 2, 1), 0), ((2, 1, 1), 1):
        pipeline_runs.check(operator, pipeline_runs.schedule(cut, mapped, 2, True))


@pytest.mark.needs("compiler")
def test_a_row_beyond_the_grid_whose_loop_is_empty():
    @nest(u=array("n", "m"))
    def far_row(u, steps):
        n, m = u.shape
        for _ in loop(steps):
            for i in loop(n):
                for j in loop(m):
                    u[i, j] = u[i, j] + 1
            for j in loop(2, m - 2):
                u[4, j] = u[4, j] * 2

    for grid in ("3x4", "5x4", "5x5"):
        check_ways(far_row, grid, [(1,), (2,)], ways=[(0, None), (2, None), (2, 1)], run=native)


def test_rows_that_are_written_at_one_index_far_from_their_reads():
    @nest(u=array("n", "m"), v=array("n", "m"))
    def far(u, v, steps):
        n, m = u.shape
        for _ in loop(steps):
            for i in loop(n):
                for j in loop(m):
                    v[i, j] = u[i, j]
            for j in loop(m):
                u[n - 1, j] = v[0, j]

    with pytest.raises(OperatorError, match=r"v\[0, j\]"):
        _ = operator_of(far)


def near_the_end(boundary):
    """Reads beyond an end by a loop that begins there: the distance is known although sizes are not."""

    @nest(u=array("m", "n", time=True, boundary=boundary), v=array("m", "n", time=True, boundary="fixed"))
    def ends(u, v, steps):
        m, n = u.shape
        for t in loop(steps):
            for i in loop(m):
                for j in loop(n):
                    u[t + 1, i, j] = v[t, i, j]
            for i in loop(m - 2, m):
                for j in loop(n - 4, n - 1):
                    v[t + 1, i, j] = u[t + 1, i + 1, j + 2] - u[t + 1, i, j - 3]

    return ends


@pytest.mark.parametrize("boundary", ["periodic", "reflecting"])
def test_reads_beyond_the_end_where_a_loop_begins(boundary):
    made, rng = near_the_end(boundary), np.random.default_rng(0)
    for shape in ((2, 4), (3, 5), (6, 7), (2, 8)):
        given = [rng.random(shape), rng.random(shape)]
        wanted = made.reference(*given, steps=3)
        for found in (made(*given, steps=3), made.numpy(*given, steps=3)):
            assert all(map(np.array_equal, found, wanted)), shape
    with pytest.raises(OperatorError, match="too small"):
        made(np.ones((2, 3)), np.ones((2, 3)), steps=1)
    check_ways(made, "8x5", [(1,), (2,)], steps=3, ways=[(0, None)])
    check_ways(made, "8x4", [(2,)], steps=3, ways=[(0, None), (0, 1)], run=native)


def test_reads_outside_at_a_distance_that_grows_with_the_arrays():
    def fold(u, steps):
        n = u.shape[0]
        for t in loop(steps):
            for i in loop(n):
                u[t + 1, i] = u[t, 2 * i]

    with pytest.raises(OperatorError, match=r"u\[t, 2 \* i\] lies n - 1 elements beyond n - 1, more with larger n"):
        nest(u=array("n", time=True, boundary="periodic"))(fold)


@nest(u=array("n", "m"), v=array("n", "m"))
def with_columns(u, v, steps):
    n, m = u.shape
    for _ in loop(steps):
        for i in loop(2, n - 1):
            for j in loop(1, m - 1):
                v[i, j] = u[i - 1, j] + u[i, j + 1]
        for i in loop(2, n):
            for j in loop(0, 2):
                u[i, j] = v[i, j + 1] * v[i - 1, j]


@nest(u=array("n", "m"), v=array("n", "m"))
def with_chained_columns(u, v, steps):
    """Row i reads values of v that row i - 1 has just written: computing columns one after another would be wrong."""
    n, m = u.shape
    for _ in loop(steps):
        for i in loop(1, n - 1):
            for j in loop(1, m - 1):
                u[i, j] = u[i - 1, j] + v[i, j + 1]
        for i in loop(2, n):
            for j in loop(1, 4):
                u[i, j] = u[i, j - 1] * v[i - 1, j]
                v[i, j] = v[i, j] + u[i, j]


def test_several_columns_within_a_loop():
    check_ways(with_columns, "8x7", [(1,), (3,)], steps=3, ways=[(0, None), (2, 1)])
    with pytest.raises(OperatorError, match=r"u\[i, 1\] is not the point of its loops"):
        _ = operator_of(with_chained_columns)


def test_the_error_for_a_loop_that_goes_back():
    """The error names the direction of the loop."""

    @nest(u=array("n", "m", time=True, boundary="reflecting"), v=array("n", "m"))
    def back(u, v, steps):
        n, m = u.shape
        for t in loop(steps):
            for i in loop(n):
                for j in loop(m):
                    u[t + 1, i, j] = u[t, i - 1, j]
            for i in loop(n - 1, 0, -1):
                for j in loop(m):
                    v[i, j] = v[i - 1, j] + u[t + 1, i, j]

    with pytest.raises(OperatorError, match="back is no pipeline: array u is reflecting"):
        _ = operator_of(back)
