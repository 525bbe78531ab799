"""loops: new levels read beyond their ends, before and after they are written; levels of which a step writes a part."""

import numpy as np
import pytest

from dovetail import operator_of
from dovetail.core import OperatorError
from dovetail.loops import array, loop, nest

WRAPPING = ("periodic", "reflecting")


def made(function, boundary, shape=("n", "m")):
    return nest(u=array(*shape, time=True, boundary=boundary), v=array(*shape))(function)


def alike(found, shape, steps):
    """The results of C and NumPy are those of the reference."""
    given = [np.random.default_rng(seed).random(shape) for seed in range(len(found.arrays))]
    want = found.reference(*given, steps=steps)
    for have in (found(*given, steps=steps), found.numpy(*given, steps=steps)):
        np.testing.assert_equal(have, want)


def row(u, v, steps):
    n, m = u.shape
    for t in loop(1, steps):
        for i in loop(n):
            for j in loop(1):
                v[i, j] = u[t, i, j - 1]
        for i in loop(n):
            for j in loop(m):
                u[t, i, j] = u[t - 1, i, j] + 1


def two_columns(u, v, steps):
    n, m = u.shape
    for t in loop(1, steps):
        for i in loop(2):
            for j in loop(m):
                v[i, j] = u[t, i - 2, j]
        for i in loop(n - 1, -1, -1):
            for j in loop(m):
                u[t, i, j] = u[t - 1, i, j] + 1


def beyond(u, v, steps):
    n, m = u.shape
    for t in loop(1, steps):
        v[0, 0] = u[t, n, m]
        for i in loop(n):
            for j in loop(m):
                u[t, i, j] = u[t - 1, i, j] + 1


@pytest.mark.parametrize("function", [row, two_columns, beyond], ids=lambda function: function.__name__)
@pytest.mark.parametrize("boundary", WRAPPING)
def test_reads_beyond_the_ends_of_a_level_to_be_written(boundary, function):
    with pytest.raises(
        OperatorError, match=r"cyclic statements: v\[.* needs u\[t, .* before that is computed"
    ) as error:
        made(function, boundary)
    assert "wraps around, and u[t" in str(error.value)


def kept(u, v, steps):
    n, m = u.shape
    for t in loop(1, steps):
        corner = u[t, 0, -1]
        for i in loop(n):
            for j in loop(m):
                u[t, i, j] = u[t - 1, i, j] + 1
        for i in loop(n):
            for j in loop(m):
                v[i, j] = corner


@pytest.mark.parametrize("boundary", WRAPPING)
def test_local_variables_beyond_the_ends_of_a_level_to_be_written(boundary):
    with pytest.raises(OperatorError, match=r"u\[t, 0, -1\] is read before its step writes it, and used afterwards"):
        made(kept, boundary)


def in_the_same_loop(u, v, steps):
    n, m = u.shape
    for t in loop(1, steps):
        for i in loop(n):
            for j in loop(m):
                u[t, i, j] = u[t - 1, i, j] + 1
            for j in loop(m):
                v[i, j] = u[t, i, j - 1]


@pytest.mark.parametrize("boundary", WRAPPING)
def test_reads_beyond_the_ends_of_a_level_within_the_loop_that_writes_it(boundary):
    """The elements are there, what lies beyond the ends is derived after the loop: that is no cycle."""
    with pytest.raises(OperatorError) as error:
        made(in_the_same_loop, boundary)
    assert str(error.value).startswith("u[t, i, j - 1] wraps around while the same loop over i writes that level")
    assert "write another loop over i" in str(error.value)


def afterwards(u, v, steps):
    n, m = u.shape
    for t in loop(1, steps):
        for i in loop(n):
            for j in loop(m):
                u[t, i, j] = u[t - 1, i, j] + v[i, j]
        last = u[t, -1, m]
        for i in loop(1):
            for j in loop(m):
                v[i, j] = u[t, i - 1, j + 1] + last


@pytest.mark.needs("compiler")
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("boundary", WRAPPING)
def test_reads_beyond_the_ends_of_a_written_level(boundary):
    alike(made(afterwards, boundary), (4, 5), 4)


@pytest.mark.needs("compiler")
@pytest.mark.usefixtures("own_cache")
def test_elements_are_written_one_by_one():
    """Statements outside of all loops are no loop that is still writing."""

    @nest(u=array(3, time=True, boundary="periodic"), v=array(3))
    def one_by_one(u, v, steps):
        for t in loop(steps):
            for i in range(3):
                u[t + 1, i] = u[t, i - 1] + v[i]
            v[0] = u[t + 1, -1]

    alike(one_by_one, (3,), 4)


# ---- a part of a level


def later_and_later(u, v, steps):
    for t in loop(steps):
        for i in loop(t, u.shape[0]):
            u[t + 1, i] = u[t, i] + v[i]


def one_element(u, v, steps):
    for t in loop(steps):
        u[t + 1, t] = u[t, t] + v[t]


@pytest.mark.needs("compiler")
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("function", [later_and_later, one_element], ids=lambda function: function.__name__)
def test_steps_that_write_other_elements_than_those_before(function):
    """What a step leaves unwritten is as the level before has it, which some step wrote."""
    found = made(function, "fixed", ("n",))
    alike(found, (6,), 5)
    for asked in (lambda: operator_of(found), found.dependences):
        with pytest.raises(OperatorError, match="the elements of u that a step writes change with t"):
            asked()


def test_arrays_in_place_whose_loops_change_with_the_step():
    @nest(u=array("n", time=True, boundary="fixed"), v=array("n"))
    def partly(u, v, steps):
        n = u.shape[0]
        for t in loop(steps):
            for i in loop(t, n):
                v[i] = u[t, i]
            for i in loop(n):
                u[t + 1, i] = v[i]

    with pytest.raises(OperatorError, match="the bounds of i change with other loops"):
        operator_of(partly)


def test_reads_as_far_outside_as_the_step_says():
    def outside(u, v, steps):
        for t in loop(steps):
            for i in loop(u.shape[0]):
                u[t + 1, i] = v[i]
            for i in loop(t):
                v[i] = u[t, i + 1]

    with pytest.raises(OperatorError, match="elements beyond n - 1, more with larger steps"):
        made(outside, "periodic", ("n",))
