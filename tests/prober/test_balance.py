"""Balanced sizes: on simulated machines with known speeds, computation and communication take about equally long."""

import pytest
from sim_executor import SimExecutor

from dovetail.core import OperatorError
from dovetail.cost import Curve, Segment
from dovetail.machine import load
from dovetail.matmul import MatmulAllReduce, balanced_sizes
from dovetail.prober import balance


def machine(bytes_per_s: float, flop_per_s: float):
    """Return a machine of two hosts with these speeds."""
    line = lambda unit, slope: Curve(unit, (Segment(0.0, 1e-5, 1 / slope),), label="prior").to_json()  # noqa: E731
    costs = {"all_reduce:2": line("bytes", bytes_per_s), "flops:matmul:float32": line("flop", flop_per_s)}
    return load("two-hosts-1gbit").with_costs(costs)


@pytest.mark.parametrize("bytes_per_s", [11.8e6, 118e6, 3e9])
@pytest.mark.parametrize("flop_per_s", [20e9, 110e9])
def test_both_sides_take_equally_long(bytes_per_s, flop_per_s):
    found = balance.balanced(SimExecutor(machine(bytes_per_s, flop_per_s)), MatmulAllReduce, 2)
    operator = found.operator
    compute_s = 2 * operator.m * operator.n * operator.k / 2 / flop_per_s
    comm_s = 4 * operator.m * operator.n / bytes_per_s
    assert compute_s == pytest.approx(comm_s, rel=0.35)  # sizes are multiples of 8 columns
    assert comm_s == pytest.approx(min(balanced_sizes.SIDE_S, balanced_sizes.MOST_BYTES / bytes_per_s), rel=0.1)
    assert (found.compute_s, found.comm_s) == pytest.approx((compute_s, comm_s), rel=0.05)
    assert (found.flops, found.num_bytes) == (operator.flops / 2, 4 * operator.m * operator.n)


def test_a_link_of_half_the_speed_gets_a_larger_product():
    fast, slow = (
        balance.balanced(SimExecutor(machine(speed, 110e9)), MatmulAllReduce, 2).operator for speed in (118e6, 59e6)
    )
    assert slow.k > 1.8 * fast.k


def test_one_rank_has_nothing_to_balance():
    with pytest.raises(OperatorError, match="one rank has no communication"):
        balance.balanced(SimExecutor(machine(1e9, 1e9)), MatmulAllReduce, 1)
