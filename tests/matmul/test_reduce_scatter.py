"""matmul_reduce_scatter: every schedule is proved and correct, on any ranks, shapes and dtypes; faults are refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from product_runs import agree, random, run, scatters, wide, wrong_in_some
from thorough import some

from dovetail.core import PlanError
from dovetail.ir import Kind, Schedule
from dovetail.matmul import MatmulReduceScatter, shard

WAYS = ("library", "messages", "ring", "two_rings")


def check(operator, schedule, ranks, seed):
    rng = np.random.default_rng(seed)
    depths = shard(operator.k, ranks)
    given = [
        (random(rng, (operator.m, k), operator.dtype), random(rng, (k, operator.n), operator.dtype)) for k in depths
    ]
    exact = sum((wide(a) @ wide(b) for a, b in given), np.zeros((operator.m, operator.n)))
    start = 0
    for rows, found in zip(shard(operator.m, ranks), run(operator, schedule, ranks, given, seed), strict=True):
        agree(found, exact[start : start + rows], operator.dtype, operator.k, terms=ranks)
        start += rows


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8])
def test_every_family_is_proved_and_correct(ranks):
    operator = MatmulReduceScatter(2 * ranks + 3, 9, 7)
    for schedule in scatters(operator, ranks, WAYS):
        check(operator, schedule, ranks, seed=ranks)


@settings(max_examples=some(60), deadline=None)
@given(
    ranks=st.integers(1, 6),
    sizes=st.tuples(st.integers(0, 20), st.integers(0, 12), st.integers(0, 9)),
    dtype=st.sampled_from(["float16", "bfloat16", "float32", "float64"]),
    data=st.data(),
)
def test_any_shape(ranks, sizes, dtype, data):
    operator = MatmulReduceScatter(*sizes, dtype)
    schedule = data.draw(st.sampled_from(scatters(operator, ranks, WAYS)))
    check(operator, schedule, ranks, seed=data.draw(st.integers(0, 99)))


@pytest.mark.parametrize("by", ["messages", "ring", "two_rings"])
def test_planted_fault_a_product_left_out(by):
    schedule = Schedule.of("any", tiles=(2, 2), by=by, own_block="last", fused=False)
    program = MatmulReduceScatter(16, 8, 8).program(schedule, 4)
    kind = Kind.reduce if by == "messages" else Kind.recv_reduce
    row = np.flatnonzero(program.kind == kind)[0]

    def forget(columns):
        columns["kind"][row] = Kind.nop if kind == Kind.reduce else Kind.recv

    assert not wrong_in_some(program, forget).ok


def test_only_sums_use_a_ring():
    with pytest.raises(PlanError, match="do not add up"):
        MatmulReduceScatter(8, 4, 4).program(Schedule.of("any", tiles=(3,), by="ring"), 2)
