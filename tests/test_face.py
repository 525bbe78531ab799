"""The Python face: what users of NumPy, mpi4py and torch find where they look for it."""

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
