"""Products asked for, planned and tuned with invalid arguments: each error names the fault in one sentence."""

import re

import numpy as np
import pytest
from product_runs import costs

import dovetail as dt
from dovetail import call as comm
from dovetail.core import DovetailError, OperatorError
from dovetail.ir.registry import BUILT_IN, OPERATORS, operator_class
from dovetail.ir.signature import Signature
from dovetail.matmul import AllGatherMatmul, AllToAllMatmul, MatmulAllToAll

MACHINE = "shared-memory-2"


@pytest.mark.parametrize(
    ("operator", "what"),
    [
        (lambda: dt.AllGatherMatmul(np.ones((2, 2)), np.ones((2, 2)), 3), "takes sizes, but m is an array"),
        (lambda: dt.AllGatherMatmul(np.array([4]), 2, 2), "takes sizes, but m is an array"),
        (lambda: dt.AllGatherMatmul(2.5, 3, 4), "m must be a whole number"),
        (lambda: dt.AllGatherMatmul(10**12, 10**12, 10**12), "a matrix of 1000000000000"),
        (lambda: dt.AllGatherMatmul(4, 2, 2, rows=4), "shares of rows are a list"),
        (lambda: dt.AllGatherMatmul(4, 2, 2, rows=[1, 2]), "do not add up to 4"),
        (lambda: dt.AllGatherMatmul(4, 2, 2, rows=[5, -1]), "a share of rows must be at least 0"),
        (lambda: dt.AllGatherMatmul(4, 2, 2, gathered="no"), "gathered must be True or False"),
        (lambda: dt.AllGatherColumnsMatmul(4, 2, 2, gathered=1), "gathered must be True or False"),
        (lambda: dt.AllToAllMatmul(4, 2, 2, counts=4), "a row and a column for each rank"),
        (lambda: dt.AllToAllMatmul(4, 2, 2, counts=[2, 2]), "a row and a column for each rank"),
        (lambda: dt.MatmulAllToAll(4, 2, 2, counts=[[1, 1.5], [1, 1]]), "a count of rows must be a whole number"),
        (lambda: dt.plan("all_gather_matmul", MACHINE), "expected an operator, not str"),
        (lambda: dt.plan(dt.AllGatherMatmul, MACHINE), "expected an operator, not a class"),
        (lambda: dt.tune("all_gather_matmul", ranks=2), "expected an operator, not str"),
        (lambda: dt.tune(dt.AllGatherMatmul(4, 2, 2), ranks=0), "ranks must be at least 1"),
        (lambda: dt.tune(dt.AllGatherMatmul(0, 2, 2), ranks=2), "there is nothing to tune"),
        (lambda: dt.plan(dt.AllGatherMatmul(8, 8, 8), MACHINE, schedule="x"), "no schedule 'x'"),
        (lambda: dt.plan(dt.AllGatherMatmul(8, 8, 8), MACHINE, rnks=2), "has no option 'rnks'"),
        (lambda: dt.plan(dt.AllGatherMatmul(8, 8, 8), MACHINE, ficco_threshold_s=0), "threshold s must be at least"),
        (lambda: dt.plan(dt.AllGatherMatmul(8, 8, 8), MACHINE, ficco_threshold_s=float("nan")), "at least 1e-09"),
    ],
)
def test_is_reported(operator, what):
    with pytest.raises(DovetailError, match=what):
        operator()


@pytest.mark.parametrize("kind", [AllToAllMatmul, MatmulAllToAll])
def test_only_applicable_ways_are_offered(kind):
    (by,) = [option for option in kind.options if option.name == "by"]
    assert by.choices == ("auto", *kind.ways)
    with pytest.raises(DovetailError, match="'ring'"):
        dt.plan(kind(8, 8, 8), MACHINE, by="ring")


def test_very_many_rows_whose_slices_differ_are_not_counted_one_by_one():
    """K is not divisible by the ranks, and there are too many rows to store slices of unequal width."""
    for k, there in ((1024, True), (1025, False)):
        found = {schedule.family for schedule in AllGatherMatmul(1 << 24, k, 8).schedules(costs(2))}
        assert ("uniform-fused-2D" in found) is there


def test_a_transposed_b_raises_if_slices_differ():
    """With uneven slices of K arrays are flat internally, so any shape with as many elements might seem to fit."""
    operator = AllGatherMatmul(4, 5, 3)
    made = dt.plan(operator, MACHINE, ranks=1, schedule="serial", extrapolate=True)
    a, b = np.ones((4, 5), "f4"), np.ones((5, 3), "f4")
    assert made.run(a, b).shape == (4, 3)
    with pytest.raises(OperatorError, match=r"'B0' has shape \(3, 5\), but the plan needs \(5, 3\)"):
        made.run(a, b.T)
    sliced = dt.plan(operator, MACHINE, schedule="uniform-fused-2D", extrapolate=True).schedule
    with pytest.raises(OperatorError, match="'B0' has shape"):
        Signature.of(operator, sliced, 2).arguments(0, (a[:2], b[:, :2].T), None)


def test_results_are_written_to_out():
    made = dt.plan(dt.AllGatherMatmul(4, 6, 2, gathered=True), MACHINE, ranks=1, schedule="serial", extrapolate=True)
    rng = np.random.default_rng(3)
    a, b, c, kept = *(rng.random(s, "f4") for s in ((4, 6), (6, 2))), np.zeros((4, 2), "f4"), np.zeros((4, 6), "f4")
    found = made.run(a, b, out=(c, kept))
    assert found[0] is c
    assert np.array_equal(kept, a)
    for out, what in (((c,), "2 results"), ((c, a), "shares memory with 'A'"), ("x", "2 results")):
        with pytest.raises(OperatorError, match=what):
            made.run(a, b, out=out)


@pytest.mark.parametrize(
    ("name", "door"),
    [
        ("jacobi2d", "it is no product. Use `dovetail.bind(dovetail.Jacobi2d(…), comm)`"),
        ("gauss_seidel2d", "dovetail.bind(dovetail.GaussSeidel2d(…), comm)"),
        ("lcs", "dovetail.bind(dovetail.Lcs(…), comm)"),
        ("of_others", "dovetail.bind(dovetail.AllReduce(…), comm)"),
        ("wibble", "no attribute 'wibble'"),
    ],
)
def test_an_operator_that_is_no_product_names_bind(name, door, monkeypatch):
    """A nest, or an operator without a call on arrays, raises AttributeError, which `hasattr` needs."""
    monkeypatch.setattr(OPERATORS, "others", {"of_others": "dovetail.collective:AllReduce"})
    assert not hasattr(comm, name)
    with pytest.raises(AttributeError, match=re.escape(door)):
        getattr(comm, name)


def test_the_functions_that_errors_name_exist():
    for name in BUILT_IN:
        kind = operator_class(name)
        assert hasattr(comm, name) or getattr(dt, kind.__name__) is kind, name


def test_a_plan_explains_its_schedule():
    made = dt.plan(dt.MatmulAllReduce(64, 64, 64), MACHINE, schedule="serial", extrapolate=True)
    assert made.explain() == f"{made.schedule}: reduced by our own ring, messages of at most 8 rows"
