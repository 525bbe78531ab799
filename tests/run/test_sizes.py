"""Slots that differ in size: the native engine against the reference, refusals, and no padding anywhere."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from run_programs import DTYPES, all_to_all, assert_same, uneven_of
from run_strategies import movers
from thorough import some

from dovetail.core import RunError
from dovetail.ir import Builder, Kind, Region, Slot, Workload, uneven
from dovetail.ir.shapes import ring_all_reduce
from dovetail.run import execute, fresh_inputs
from dovetail.run.engine import moved_bytes
from dovetail.run.local import execute_local
from dovetail.run.options import RunOptions

FLOATS = DTYPES[:4]


def check(asked, workload, how=None, seed=0):
    inputs, how = fresh_inputs(asked, workload, seed), how or RunOptions(stall_s=60)
    with np.errstate(all="ignore"):
        found, timeline = execute_local(asked, workload, inputs, options=how)
        assert_same(found, execute(asked, inputs, workload=workload, reduce_op=how.reduce_op).outputs)
    return inputs, found, timeline


@pytest.mark.slow
@settings(max_examples=some(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(movers(), st.sampled_from(DTYPES), st.integers(0, 99), st.sampled_from(["sum", "max", "avg"]))
def test_random_programs(asked, dtype, seed, op):
    op = "sum" if op == "avg" and dtype not in FLOATS else op
    check(asked, uneven_of(asked, dtype, seed), RunOptions(reduce_op=op, stall_s=60))


@pytest.mark.parametrize("op", ["sum", "avg"])
@pytest.mark.parametrize("count", [0, 1, 7, 1000])
def test_ring_of_any_number_of_elements(count, op):
    ring = ring_all_reduce(4, 2).with_depth(2)
    sizes = np.array([len(part) for part in np.array_split(np.zeros(count), 8)])
    workload = uneven(ring, {"x": (sizes,) * 4}, "float64")
    inputs, found, timeline = check(ring, workload, RunOptions(reduce_op=op))
    total = np.sum(inputs["x"], axis=0) / (4 if op == "avg" else 1)
    assert all(part.shape == (count,) for part in found["x"])
    np.testing.assert_allclose(found["x"][3], total, rtol=1e-14, atol=1e-14)
    assert timeline.columns["num_bytes"].sum() == moved_bytes(ring, workload).sum() == 2 * 2 * 3 * 8 * count


def test_all_to_all_with_counts_of_each_pair():
    spec, asked = all_to_all(3)
    counts = np.array([[1, 0, 5], [2, 2, 0], [0, 4, 3]])
    workload = uneven(asked, spec.sizes(counts), "int32")
    inputs, found, _ = check(asked, workload)
    parts = [np.split(inputs["input"][rank], np.cumsum(counts[rank])[:-1]) for rank in range(3)]
    for rank in range(3):
        np.testing.assert_array_equal(found["output"][rank], np.concatenate([part[rank] for part in parts]))


def test_sizes_that_the_reference_is_not_reported_are_noticed():
    """Planted: the engine runs with two slots of each rank one element shorter or longer."""
    spec, asked = all_to_all(2)
    right = uneven(asked, spec.sizes([[1, 3], [3, 1]]), "int32")
    wrong = uneven(asked, spec.sizes([[2, 2], [2, 2]]), "int32")
    inputs = fresh_inputs(asked, right, 0)
    found, _ = execute_local(asked, wrong, inputs)
    expected = execute(asked, inputs, workload=right).outputs
    with pytest.raises(AssertionError, match="of rank"):
        assert_same(found, expected)


class TestRefusals:
    def test_of_sizes_that_do_not_agree(self):
        """A Workload made by hand, past `slot_sizes`: within a rank and between ranks."""
        b = Builder("shift", 1)
        b.buffer("x", "input", 2)
        b.add(Kind.copy, 0, b.lane("net", "net"), reads=[Region("x", 0, 1)], writes=[Region("x", 1, 1)])
        asked = b.build()
        workload = Workload({"x": (Slot((), "int8"),)}, sizes={"x": (np.array([5, 3]),)})
        with pytest.raises(RunError, match="into others of another size"):
            execute_local(asked, workload, fresh_inputs(asked, workload, 0))
        ring = ring_all_reduce(2, 1)
        apart = Workload({"x": (Slot((), "int8"),) * 2}, sizes={"x": (np.array([2, 3]), np.array([3, 2]))})
        with pytest.raises(RunError, match="the two sides of a message"):
            execute_local(ring, apart, fresh_inputs(ring, apart, 0))

    def test_of_arrays_of_another_length(self):
        ring = ring_all_reduce(2, 1)
        workload = uneven(ring, {"x": (np.array([2, 3]),) * 2}, "int8")
        with pytest.raises(RunError, match="another size or dtype"):
            execute_local(ring, workload, {"x": [np.zeros(4, "int8")] * 2})
        with pytest.raises(RunError, match="of \\[5, 5\\] elements"):
            execute(ring, {"x": [np.zeros(4, "int8")] * 2}, workload=workload)
