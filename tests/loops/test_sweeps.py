"""Sweeps: the box that statements write and the places that they read, beside every iteration of their loops."""

from itertools import product

import nest_cases as cases
import pytest
from nest_drawn import drawn

from dovetail.core import OperatorError
from dovetail.loops import array, loop, nest
from dovetail.loops.analysis.sweeps import Place, space, sweep_of
from dovetail.pipeline.sweeps import pipelined_of
from dovetail.stencil.sweeps import stencil_of


def sweeps_of(made):
    """The sweeps of a nest with the nest whose statements they have; none where it is neither."""
    try:
        return made, stencil_of(made).sweeps
    except OperatorError:
        try:
            found = pipelined_of(made)
        except OperatorError:
            return made, ()
        return found.nest, found.sweeps


def check(made, sweep, sizes):
    """Every point of the box is written once by each statement, and every read is where its places say."""
    box = set(product(*(range(low.at(sizes), high.at(sizes)) for low, high in zip(sweep.low, sweep.high, strict=True))))
    for statement in sweep.statements:
        loops, points = statement.loops[-len(sweep.order) :], []
        for at in product(*(range(each.low.at(sizes), each.high.at(sizes)) for each in loops)):
            values = {**sizes, **{each.index: value for each, value in zip(loops, at, strict=True)}}
            points.append(tuple(each.at(values) for each in space(made, statement.target)))
            for read in statement.reads:
                places = sweep.places[str(read)]
                want = [p.offset.at(sizes) + (0 if p.axis is None else points[-1][p.axis]) for p in places]
                assert [each.at(values) for each in space(made, read)] == want, (str(read), str(statement.target))
        signed = [tuple(sweep.signs[axis] * point[axis] for axis in sweep.order) for point in points]
        assert signed == sorted(signed)
        assert len(points) == len(box)
        assert {*points} == box


def test_every_iteration(tmp_path):
    count = 0
    for index in range(24):
        case = drawn(11, index, ("stencil", "pipeline", "stencil", "free")[index % 4])
        try:
            made, sweeps = sweeps_of(cases.made(case, tmp_path, f"case_{index}"))
        except OperatorError:
            continue
        for sweep in sweeps:
            check(made, sweep, {**dict(case.sizes), **case.parameters})
        count += len(sweeps)
    assert count > 20


@nest(u=array("n", "m"))
def flipped(u):
    n, m = u.shape
    for j in loop(1, m):
        for i in loop(2, n):
            u[n - 1 - i, j] = u[n - i, j - 1] + u[n + 1 - i, j]


def of_flipped():
    (statement,) = flipped.statements
    return sweep_of(flipped, "pipeline", [statement], statement.loops, ("n", "m"))


def test_loops_in_another_order_that_go_down():
    found = of_flipped()
    assert (found.order, found.signs, [str(each) for each in (*found.low, *found.high)]) == (
        (1, 0),
        (-1, 1),
        ["0", "1", "n - 2", "m"],
    )
    assert found.offsets("u") == [{0: 1, 1: -1}, {0: 2, 1: 0}]
    assert [found.reach(axis) for axis in (0, 1)] == [(0, 2), (-1, 0)]


def test_a_planted_place_is_seen():
    found = of_flipped()
    check(flipped, found, {"n": 7, "m": 5})
    first = next(iter(found.places))
    found.places[first] = tuple(Place(axis, offset + 1) for axis, offset in found.places[first])
    with pytest.raises(AssertionError):
        check(flipped, found, {"n": 7, "m": 5})
