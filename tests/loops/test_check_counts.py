"""The plain program, against which others are proved, computes every point of the user's loops once."""

from dataclasses import replace

import pytest
from stencil_runs import schedule

from dovetail import operator_of
from dovetail.core import ProgramError
from dovetail.ir import verify
from dovetail.loops import array, loop, nest, problems
from dovetail.loops.analysis import check_counts as counts
from dovetail.loops.analysis.check_counts import iterations
from dovetail.loops.grid.blocks import replaced
from dovetail.pipeline.decomposition import Cutting
from dovetail.stencil.operator import StencilOperator

TWICE = "leaves out iterations of its loops, or executes some twice"


def test_iterations_are_those_of_the_loops():
    @nest(a=array("n", "m", "l"))
    def prism(a):
        n, m, l = a.shape  # noqa: E741
        for i in loop(1, n):
            for j in loop(i, m - 2):
                for k in loop(2, l):
                    a[i, j, k] = 1.0

    for n, m, length in ((7, 9, 5), (7, 3, 5), (1, 9, 5), (4, 40, 1), (1000, 2000, 10**6)):
        each = sum(max(m - 2 - i, 0) for i in range(1, n))
        assert iterations(prism.statements[0].loops, {"n": n, "m": m, "l": length}) == each * max(length - 2, 0)


def test_rows_that_both_programs_leave_out_are_seen(monkeypatch):
    operator, how = operator_of(problems.jacobi2d)("16x9", steps=3), schedule((2,), 2)
    boxes = StencilOperator._boxes

    def fewer(self):
        (box,) = boxes(self).values()
        return {"jacobi2d_S0": replaced(box, 0, (box[0][0] + 1, box[0][1]))}

    monkeypatch.setattr(StencilOperator, "_boxes", fewer)
    with pytest.raises(ProgramError, match=TWICE):
        operator.reference(how, 2)
    monkeypatch.setattr(counts, "iterations", lambda *_: 13 * 7 * 3)  # as many as they do: then nothing else sees it
    assert verify(operator.program(how, 2), against=operator.reference(how, 2)).ok


def test_tests_of_convergence_are_not_counted():
    operator = replace(operator_of(problems.laplace2d)("16x9", steps=6), test=2)
    assert verify(operator.program(schedule((2,)), 2), against=operator.reference(schedule((2,)), 2)).ok


def test_columns_that_kernels_leave_out_are_seen(monkeypatch):
    kernel = StencilOperator._kernel
    monkeypatch.setattr(StencilOperator, "_kernel", lambda *about: replace(kernel(*about), low=2))
    with pytest.raises(ProgramError, match=TWICE):
        operator_of(problems.jacobi2d)("17x9", steps=3).reference(schedule((2,), 2), 2)


@pytest.mark.parametrize("name", ["gauss_seidel2d", "seidel2d", "seidel1d", "ssor2d"])
def test_points_of_pipelines(monkeypatch, name):
    """Upright tiles, leaning ones, bands of a line, two sweeps."""
    operator = operator_of(getattr(problems, name))("200" if name == "seidel1d" else "19x23", steps=4)
    how = operator.default_schedule(2)
    assert verify(operator.program(how, 2), against=operator.reference(how, 2)).ok
    box = Cutting.sweep_box

    def fewer(*about):
        *others, (low, high) = box(*about)
        return (*others, (low + 1, high))

    monkeypatch.setattr(Cutting, "sweep_box", fewer)
    other = replace(operator, grid="210" if name == "seidel1d" else "21x25")
    with pytest.raises(ProgramError, match=TWICE):
        other.reference(other.default_schedule(2), 2)
