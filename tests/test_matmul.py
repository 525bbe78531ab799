"""The matmul front door: wishes are checked, and every schedule computes the product."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dovetail.core import DovetailError, PlanError, WishError
from dovetail.ir import Kind, Program
from dovetail.matmul import DTYPES, MatmulAllReduce, program, shard_k
from dovetail.run import execute, fresh_inputs


@st.composite
def tilings(draw, m):
    """Positive tiles that add up to m."""
    cuts = draw(st.lists(st.integers(1, m - 1), unique=True, max_size=5)) if m > 1 else []
    edges = [0, *sorted(cuts), m]
    return [stop - start for start, stop in pairwise(edges)] if m else []


@st.composite
def schedules(draw, dtypes=DTYPES):
    """A wish of any sizes, ranks, tiles, all-reduce and messages: the wish and its program."""
    m, k, n = draw(st.tuples(st.integers(0, 12), st.integers(0, 9), st.integers(0, 4)))
    wish, ranks = MatmulAllReduce(m, k, n, draw(st.sampled_from(dtypes))), draw(st.integers(1, 5))
    how = draw(st.sampled_from(["library", "exchange", "ring"]))
    rows = None if how == "library" else draw(st.none() | st.integers(1, 4))
    return wish, program(wish, ranks, draw(tilings(m)), how, rows)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(schedules(), st.none() | st.integers(0, 3))
def test_every_schedule_computes_the_product_on_every_rank(schedule, seed):
    wish, prog = schedule
    workload = wish.workload(prog.num_ranks)
    inputs = fresh_inputs(prog, workload, seed=7)
    c = execute(prog, inputs, seed=seed, workload=workload).outputs["C"]
    a = np.concatenate([part.astype(np.float64) for part in inputs["A"]], axis=1)
    b = np.concatenate([part[0].astype(np.float64) for part in inputs["B"]], axis=0)
    unit = {"float64": 1e-15, "float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}[wish.dtype]
    for rank in range(prog.num_ranks):
        np.testing.assert_allclose(c[rank].astype(np.float64), a @ b, rtol=0, atol=unit * 20 * prog.num_ranks)
        np.testing.assert_array_equal(c[rank], c[0], err_msg="ranks disagree in some bits")


def test_shards_differ_by_one_column_at_most():
    assert shard_k(3072, 2) == (1536, 1536)
    assert shard_k(2, 3) == (1, 1, 0)
    with pytest.raises(WishError, match="ranks must be at least 1"):
        shard_k(4, 0)


@pytest.mark.parametrize("sizes", [(-1, 1, 1), (1, 1.5, 1), (1, 1, True), ("4", 1, 1)])
def test_wishes_of_impossible_sizes_are_refused(sizes):
    with pytest.raises(WishError, match="must be"):
        MatmulAllReduce(*sizes)


def test_wishes_of_unknown_dtype_are_refused_with_the_known_ones():
    with pytest.raises(WishError, match="bfloat16"):
        MatmulAllReduce(1, 1, 1, "int8")


def test_a_wish_survives_json():
    wish = MatmulAllReduce(np.int64(5), 3, 2, "bfloat16")
    assert MatmulAllReduce.from_json(wish.to_json()) == wish
    with pytest.raises(WishError, match="'n' is missing"):
        MatmulAllReduce.from_json({"schema": wish.to_json()["schema"], "m": 1, "k": 1})
    with pytest.raises(DovetailError, match="schema"):
        MatmulAllReduce.from_json({})


def test_workload_says_what_a_slot_is():
    workload = MatmulAllReduce(4096, 3072, 8192, "float16").workload(2)
    assert workload.slot_bytes("A", 0) == 1536 * 2
    assert workload.slot_bytes("B", 1) == 1536 * 8192 * 2
    assert workload.slot_bytes("P", 1) == workload.slot_bytes("C", 0) == 8192 * 2
    assert workload.kernels["matmul"][0] == ("matmul:k=1536:n=8192:float16", 2.0 * 1536 * 8192)


@pytest.mark.parametrize("tiles", [[4, 4], [], [11], [10, 0], [12, -2]])
def test_tiles_must_be_positive_and_add_up(tiles):
    with pytest.raises((PlanError, WishError), match=r"do not add up to m = 10|a tile must be"):
        program(MatmulAllReduce(10, 4, 4), 2, tiles)


def test_unknown_choices_are_refused():
    wish = MatmulAllReduce(10, 4, 4)
    with pytest.raises(PlanError, match="no all-reduce 'tree'"):
        program(wish, 2, [10], "tree")
    with pytest.raises(PlanError, match="its own messages"):
        program(wish, 2, [10], "library", rows_per_message=2)
    with pytest.raises(WishError, match="at least one slot"):
        program(wish, 2, [10], "ring", rows_per_message=0)


def test_every_op_says_which_tile_it_belongs_to():
    prog = program(MatmulAllReduce(4096, 64, 8), 2, [512, 896, 896, 896, 896], "exchange", 128)
    lines = {op.line for op in prog.ops()}
    assert lines == {f"tile {tile} of 5 ({512 if tile == 1 else 896} rows)" for tile in range(1, 6)}


def sizes(prog: Program, kind: Kind) -> set[int]:
    return {region.num_slots for op in prog.ops() if op.kind == kind for region in op.reads}


def test_messages_are_no_longer_than_asked():
    prog = program(MatmulAllReduce(100, 8, 8), 4, [40, 60], "ring", 7)
    assert max(sizes(prog, Kind.send)) <= 7
    assert sizes(prog, Kind.compute) == {40, 60, 1}
