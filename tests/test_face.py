"""The Python face: what users of NumPy, mpi4py and torch find where they look for it."""

from types import SimpleNamespace

import numpy as np
import pytest

import dovetail as dt
from dovetail.core import OperatorError


def test_a_grid_is_a_tuple_however_it_is_given_and_text_in_documents():
    operators = [dt.Jacobi2d(grid, 3) for grid in ((64, 32), [64, np.int64(32)], "64x32", "064X32")]
    assert {operator.grid for operator in operators} == {(64, 32)}
    assert len(set(operators)) == 1
    assert operators[0].to_json()["grid"] == "64x32"
    assert dt.Jacobi2d.from_json(operators[0].to_json()) == operators[0]
    assert dt.Lcs((8, 8)).title == dt.Lcs("8x8").title
    assert dt.Jacobi1d(64).grid == (64,)
    for wrong in ((64, 0), (), "64y32", (64.0, 32), None):
        with pytest.raises(OperatorError, match=r"grid|axis"):
            dt.Jacobi2d(wrong, 3)


# What is printed, and what a notebook shows


@pytest.fixture(scope="module")
def made():
    return dt.plan(dt.MatmulAllReduce(512, 512, 512), "shared-memory-2", extrapolate=True)


def test_print_explains_a_plan_and_repr_is_one_line(made):
    assert str(made) == dt.explain(made)
    assert str(made).splitlines()[0] == "matmul_all_reduce 512 × 512 × 512 float32 on 2 ranks of shared-memory-2"
    assert "Predicted" in str(made)
    assert repr(made).startswith("<Plan: matmul_all_reduce 512 × 512 × 512 float32 on 2 ranks of shared-memory-2: ")


def test_the_repr_of_each_type_is_one_line(made):
    machine = dt.Machine.load("atlas-a2-8")
    alone = dt.plan(dt.MatmulAllReduce(2, 1, 2), "shared-memory-2", ranks=1)
    assert (
        repr(alone._bound_to(None))
        == "<Bound: matmul_all_reduce 2 × 1 × 2 float32 on rank 0 of 1: serial, 1 tile, library>"
    )
    assert repr(machine) == f"<Machine 'atlas-a2-8': 8 ranks on {machine.num_nodes} node, {len(machine.costs)} costs>"
    assert repr(dt.Jacobi2d((8, 4), 2)) == "Jacobi2d(grid=(8, 4), steps=2, dtype='float32', test=0)"
    assert repr(made.operator).startswith("MatmulAllReduce(m=512, k=512, n=512")
    assert repr(made.program).startswith("<Program 'matmul_all_reduce': 2 ranks, ")
    assert repr(made.predicted).startswith("<Timeline: ")
    assert all("\n" not in repr(each) for each in (made, machine, made.operator, made.program, made.predicted))


def test_an_explanation_shows_a_table_and_a_timeline_in_a_notebook(made):
    shown = dt.explain(made)._repr_html_()
    assert "<th>predicted</th>" in shown
    assert shown.count("<tr>") == 3 + len(made.rivals)  # head, taken, rivals, ideal
    assert 'src="data:image/svg+xml;base64,' in shown
    assert "<table>" not in dt.explain(made.predicted)._repr_html_()


def test_the_notebook_extension_shows_each_type_by_itself(made):
    shown = {}

    formatter = SimpleNamespace(for_type_by_name=lambda module, name, show: shown.update({(module, name): show}))
    shell = SimpleNamespace(display_formatter=SimpleNamespace(formatters={"text/html": formatter}))
    dt.load_ipython_extension(shell)
    for what in (made, made.predicted):
        place = type(what).__module__, type(what).__qualname__
        assert "data:image/svg+xml" in shown[place](what)
    assert (dt.TuneResult.__module__, "TuneResult") in shown
