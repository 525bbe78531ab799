"""Programs of many steps are proved by induction from a few steps; programs with a fault in one or all steps are
not."""

from dataclasses import replace
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import some

from dovetail.ir import Builder, Kind, Region, Schedule, verify, verify_reference
from dovetail.ir.posts import Posts
from dovetail.ir.proof.native import judge
from dovetail.ir.registry import operator_class

CASES = {
    "jacobi1d": ("14", (2,), {"depth": 0}),
    "jacobi2d": ("11x5", (3,), {"depth": 0, "overlapped": True}),
    "laplace2d": ("16x5", (2,), {"depth": 2}),
    "jacobi3d": ("12x7x3", (2, 2), {"depth": 2, "tile": 3}),
    "fdtd2d": ("10x5", (2,), {"depth": 0}),
    "acoustic3d": ("12x12x12", (2, 1), {"depth": 0}),
    "sync_p2p": ("9x8", (1, 2), {"mapped": 0, "grain": 4, "overlapped": True}),
    "gauss_seidel2d": ("7x8", (1, 2), {"mapped": 0, "grain": 4, "overlapped": True}),
    "ssor2d": ("9x8", (1, 2), {"mapped": 0, "grain": 3}),
    "seidel2d": ("8x7", (3, 1), {"mapped": 1, "grain": 5}),
    "seidel1d": ("17", (2,), {"depth": 1, "grain": 6}),
}


def programs(name, steps=60):
    grid, cut, about = CASES[name]
    operator, how = operator_class(name)(grid, steps), Schedule.of("any", cut=cut, **about)
    return operator.program(how, prod(cut)), operator.reference(how, prod(cut))


def is_reported(program, plain):
    return judge(program, [Posts.of(())], plain)["by_induction"]


@pytest.mark.parametrize("name", CASES)
def test_is_reported(name):
    assert is_reported(*programs(name))
    assert verify(*programs(name)[:1], against=programs(name)[1]).ok


@pytest.mark.parametrize("name", CASES)
def test_twice_as_many_steps_are_no_more_work(name):
    works = [judge(program, [Posts.of(())], plain)["work"] for program, plain in (programs(name), programs(name, 120))]
    assert works[0] == works[1]


@pytest.mark.parametrize("name", CASES)
def test_few_steps_are_executed_without_induction(name):
    assert not is_reported(*programs(name, 5))


def changed(program, rows, column, by):
    """Return the program with the first region of the ops in `rows` moved."""
    values = program.columns[column].copy()
    values[program.columns[f"{column.partition('_')[0]}_start"][rows]] += by
    return replace(program, columns=program.columns | {column: values})


def _what(op):
    return op._replace(index=0, line=None, after=())


def same_ops(program, row):
    """Return all ops equal to the op in `row`, of any step."""
    wanted = _what(program.op(row))
    return [each.index for each in program.ops() if _what(each) == wanted]


@settings(max_examples=some(15), deadline=None)
@given(st.data())
def test_no_fault_is_overlooked(data):
    """The verdict equals that of the Python reference, which runs every step."""
    name = data.draw(st.sampled_from(["jacobi1d", "jacobi2d", "fdtd2d", "sync_p2p", "gauss_seidel2d", "seidel1d"]))
    program, plain = programs(name, 30)
    kinds = program.columns["kind"]
    rows = np.flatnonzero(np.isin(kinds, (Kind.send, Kind.recv, Kind.compute, Kind.copy)))
    row = int(data.draw(st.sampled_from(rows.tolist())))
    column = data.draw(st.sampled_from(["read_offset", "write_offset"]))
    side = program.columns[f"{column.partition('_')[0]}_start"]
    if side[row] == side[row + 1]:
        return
    every = same_ops(program, row) if data.draw(st.booleans()) else [row]
    wrong = changed(program, np.array(every), column, data.draw(st.sampled_from([-1, 1])))
    found, wanted = (check(wrong, against=plain) for check in (verify, verify_reference))
    assert {name: check.ok for name, check in found.checks.items()} == {n: c.ok for n, c in wanted.checks.items()}


@pytest.mark.parametrize(
    ("name", "where"),
    [
        *product(["jacobi1d", "fdtd2d", "sync_p2p"], [0.0, 0.3, 0.5, 0.9, 1.0]),
        *product(["gauss_seidel2d", "seidel2d", "seidel1d"], [0.5]),
    ],
)
def test_a_message_left_out(name, where):
    """A receive that writes its message elsewhere, in an early, a late, or every step."""
    program, plain = programs(name)
    receives = np.flatnonzero(program.columns["kind"] == Kind.recv)
    row = int(receives[min(int(where * len(receives)), len(receives) - 1)])
    region = program.op(row).writes[0]
    for rows in ([row], same_ops(program, row)):
        wrong = changed(program, np.array(rows), "write_offset", -1 if region.offset else 1)
        assert not verify(wrong, against=plain).ok


def chain(taken, steps):
    """Values move by one slot per step, and reach the output many steps later."""
    b = Builder("chain", 1)
    lane = b.lane("compute", "compute")
    for name, role, slots in (("x", "input", 14), ("r", "scratch", 12), ("t", "scratch", 12), ("y", "output", 1)):
        b.buffer(name, role, slots)
    moves = [("r", 0, "t", 0, 11), ("t", 0, "r", 1, 11), ("x", taken, "r", 0, 1)]
    for here, low, there, at, count in [("x", 2, "r", 0, 12), *moves * steps, ("r", 11, "y", 0, 1)]:
        b.add(Kind.copy, 0, lane, reads=[Region(here, low, count)], writes=[Region(there, at, count)])
    return b.build()


def test_a_late_difference_is_not_overlooked():
    """All places hold equal values at first, and one place fewer after each step."""
    assert not verify(chain(0, 64), against=chain(1, 64)).ok
    assert is_reported(chain(0, 64), chain(0, 64))
    assert not is_reported(chain(0, 64), chain(1, 64))
