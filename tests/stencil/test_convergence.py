"""Convergence tests of stencils: their values, their proof, and that no later step waits for them."""

import numpy as np
import pytest
from stencil_runs import arguments, native, part, results, schedule

from dovetail.core import OperatorError
from dovetail.ir import Kind, verify
from dovetail.ir.registry import operator_class
from dovetail.loops.grid.blocks import boxes

WAYS = [((1,), 0, None), ((3,), 0, None), ((2,), 2, None), ((2,), 3, 4)]


class TestConvergence:
    """A convergence test returns how much the step before it changed the grid."""

    @pytest.mark.parametrize(
        ("cut", "depth", "tile"), [((1,), 0, None), ((3,), 0, None), ((2,), 2, None), ((2,), 3, 4)]
    )
    @pytest.mark.parametrize("run", [None, native], ids=["reference", "native"])
    def test_changes(self, cut, depth, tile, run):
        operator = operator_class("laplace2d")("25x13", 7, "float32", 3)
        how, given = schedule(cut, depth, tile=tile), arguments(operator)
        program, wanted, grids = operator.program(how, cut[0]), [], [given[0]]
        verify(program, against=operator.reference(how, cut[0])).raise_if_bad()
        for _ in range(7):
            grids.append(operator.nest.numpy(grids[-1], steps=1))
        wanted = [np.linalg.norm((grids[step] - grids[step - 1]).astype("float64")) for step in (3, 6)]
        for rank, (found, changes) in enumerate(results(operator, program, how, given, run)):
            assert changes == pytest.approx(wanted, rel=1e-6)
            assert np.array_equal(found, part(operator, "u", grids[7], boxes(operator.rows, cut)[rank]))

    def test_sum_is_awaited_by_no_later_step(self):
        program = operator_class("laplace2d")("24x8", 8, "float32", 2).program(schedule((2,)), 2)
        sums = {op.index for op in program.ops() if op.kind == Kind.collective}
        assert len(sums) == 2 * 4
        assert not any(sums & set(op.after) for op in program.ops())

    def test_forgotten_part_is_caught(self):
        """Planted fault: the change leaves out a row."""
        operator, how = operator_class("laplace2d")("24x8", 2, "float32", 2), schedule((2,))
        program = operator.program(how, 2)
        columns = {name: column.copy() for name, column in program.columns.items()}
        row = next(op.index for op in program.ops() if "change" in op.line and op.kind == Kind.compute)
        columns["read_count"][columns["read_start"][row] : columns["read_start"][row + 1]] -= 1
        assert not verify(program.with_columns(columns), against=operator.reference(how, 2)).ok

    def test_only_with_time_levels(self):
        with pytest.raises(OperatorError, match="cannot be tested for convergence"):
            operator_class("fdtd2d")("16x8", 4, "float32", 2)
