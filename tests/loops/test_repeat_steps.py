"""Programs of many steps, made from those of a few: op for op what writing them step by step gives."""

from math import prod

import pytest

from dovetail.ir import Schedule, verify
from dovetail.ir.registry import operator_class
from dovetail.loops.grid import repeat_steps as repeated
from dovetail.pipeline import operator as pipeline_operator
from dovetail.pipeline import pipeline_program
from dovetail.stencil import operator as operator
from dovetail.stencil import stencil_program as halo

STENCIL = [{"depth": 0}, {"depth": 0, "overlapped": True}, {"depth": 2}, {"depth": 2, "tile": 3}]
PIPELINE = [{"mapped": 0, "grain": 3}, {"mapped": 0, "grain": 5, "overlapped": True}, {"mapped": 0, "grain": 50}]
CASES = [
    *(("jacobi2d", "30x20", (2,), each) for each in STENCIL),
    ("acoustic3d", "13x12x6", (2, 1), {"depth": 0}),
    ("fdtd2d", "20x10", (3,), {"depth": 0}),
    ("heat3d", "12x11x5", (2, 2), {"depth": 1}),
    *(("sync_p2p", "20x12", (1, 2), each) for each in PIPELINE),
    *(("gauss_seidel2d", "20x12", (1, 3), each) for each in PIPELINE),
]


@pytest.fixture
def made(monkeypatch):
    """A program and the plain one, anew, by `repeated` or step by step; and how often something was put in again."""
    grown, calls = repeated._grown, []

    def counted(*about):
        found = grown(*about)
        calls.append(found is not None)
        return found

    monkeypatch.setattr(repeated, "_grown", counted)

    def make(asked, schedule, stepwise):
        for room in (operator, pipeline_operator):
            room._program.cache_clear()
        for room in (halo, pipeline_program) if stepwise else ():
            monkeypatch.setattr(room, "repeated", lambda make, steps, period=1: make(steps))
        ranks = prod(schedule["cut"])
        return asked.program(schedule, ranks), asked.reference(schedule, ranks), sum(calls)

    return make


@pytest.mark.slow
@pytest.mark.parametrize(("name", "grid", "cut", "about"), CASES)
def test_as_step_by_step(made, name, grid, cut, about):
    asked, how = operator_class(name)(grid, 63), Schedule.of("any", cut=cut, **about)
    program, plain, count = made(asked, how, stepwise=False)
    assert count == 4  # so that both were made so, and checked
    wanted, wanted_plain, _ = made(asked, how, stepwise=True)
    assert repeated.is_same(program, wanted)
    assert repeated.is_same(plain, wanted_plain)
    assert verify(program, against=plain).ok
    assert program.op(program.num_ops // 2).line.endswith("steps later")


def test_what_comes_round_otherwise_is_not_repeated(made):
    """Of two planes that take turns, a period of one step is refused."""
    asked, how = operator_class("jacobi2d")("30x20", 60), Schedule.of("any", cut=(2,), depth=0)
    wanted, _, _ = made(asked, how, stepwise=True)
    asked_of = lambda steps: operator_class("jacobi2d")("30x20", steps).program(how, 2)  # noqa: E731
    assert repeated.is_same(repeated.repeated(asked_of, 60, 1), wanted)
    short, longer, check = (asked_of(steps) for steps in (4, 5, 6))
    grown = repeated._grown(short, longer, 1, 1)
    assert grown is None or not repeated.is_same(grown, check)
    assert repeated._grown(*(asked_of(steps) for steps in (6, 8)), 1, 2) is not None
