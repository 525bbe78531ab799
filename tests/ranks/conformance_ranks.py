"""Run by the ranks of an MPI: every registered operator is bound and called, by its name, too, where it has a call."""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from any_ranks import WORLD as COMM
from registered import names_in, small

import dovetail as dt
from dovetail.ir.abilities import OnArrays
from dovetail.ir.registry import OPERATORS
from dovetail.run import execute, fresh_inputs


def check(name):
    """A call gives what NumPy makes of the same arrays; so does the function of that name."""
    operator = small(name, COMM.size)
    bound = dt.bind(operator, COMM)
    workload = operator.workload(bound.program, bound.schedule)
    inputs = fresh_inputs(bound.program, workload, seed=1)
    outputs = execute(bound.program, inputs, workload=workload).outputs
    given = [spec.from_slots(inputs[spec.buffer][COMM.rank], COMM.rank) for spec in bound.signature.inputs]
    wanted = [spec.from_slots(outputs[spec.buffer][COMM.rank], COMM.rank) for spec in bound.signature.outputs]
    same(name, bound(*given), wanted)
    if isinstance(operator, OnArrays):
        same(name, getattr(dt, name)(*given, COMM), wanted)


def same(name, found, wanted):
    found = found if isinstance(found, tuple) else (found,)
    for each, array in zip(found, wanted, strict=True):
        if not np.isnan(array).all():  # where nothing is asked for, the reference leaves poison
            np.testing.assert_allclose(each, array, rtol=1e-5, atol=1e-5, err_msg=name)


if __name__ == "__main__":
    for called in names_in(OPERATORS):
        check(called)
    if COMM.rank == 0:
        print(f"{len(names_in(OPERATORS))} called")
