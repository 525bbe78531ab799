"""all_gather_columns_matmul: every schedule is proved and correct, on any ranks, shapes and dtypes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from product_runs import agree, random, run, wide, wrong_in_some
from thorough import some

from dovetail.core import PlanError
from dovetail.ir import Kind, Schedule, verify
from dovetail.matmul import AllGatherColumnsMatmul
from dovetail.matmul.gather import even_tiles

WAYS = ("library", "messages", "ring", "two_rings")


def check(operator, schedule, ranks, seed):
    rng = np.random.default_rng(seed)
    parts = [random(rng, (operator.m, depth), operator.dtype) for depth in operator.heights(ranks)]
    several = [
        [random(rng, (operator.k, n), operator.dtype) for _ in range(operator.several)] for n in operator.widths(ranks)
    ]
    given, a = [(part, *bs) for part, bs in zip(parts, several, strict=True)], np.concatenate(parts, axis=1)
    for (_, *others), found in zip(given, run(operator, schedule, ranks, given, seed), strict=True):
        results = list(found) if isinstance(found, tuple) else [found]
        if operator.gathered:
            assert np.array_equal(results.pop(), a)
        for b, c in zip(others, results, strict=True):
            agree(c, wide(a) @ wide(b), operator.dtype, operator.k, terms=2 * ranks)


@pytest.mark.slow
@settings(max_examples=some(80), deadline=None)
@given(
    ranks=st.integers(1, 6),
    m=st.integers(0, 20),
    dtype=st.sampled_from(["float16", "bfloat16", "float32", "float64"]),
    several=st.integers(1, 2),
    gathered=st.booleans(),
    data=st.data(),
)
def test_any_shape(ranks, m, dtype, several, gathered, data):
    shares = st.none() | st.lists(st.integers(0, 5), min_size=ranks, max_size=ranks).map(tuple)
    depths, columns = data.draw(shares), data.draw(shares)
    k, n = (data.draw(st.integers(0, 12)) if each is None else sum(each) for each in (depths, columns))
    operator = AllGatherColumnsMatmul(m, k, n, dtype, several, gathered, depths, columns)
    by, own = data.draw(st.sampled_from(WAYS)), data.draw(st.sampled_from(["first", "together"]))
    tiles = even_tiles(m, data.draw(st.integers(1, 4)))
    check(
        operator,
        Schedule.of("any", tiles=tiles, by=by, own_block=own, fused=False),
        ranks,
        data.draw(st.integers(0, 99)),
    )


class TestPlantedFaults:
    def program(self):
        schedule = Schedule.of("any", tiles=(2, 2), by="messages", own_block="first", fused=False)
        return AllGatherColumnsMatmul(4, 8, 8).program(schedule, 4)

    def test_columns_multiplied_by_wrong_rows_of_b(self):
        program = self.program()
        last = np.flatnonzero(program.kind == Kind.compute)[-1]
        at = int(program.columns["read_start"][last]) + 1

        def move(columns):
            columns["read_offset"][at] = (columns["read_offset"][at] + 1) % 4

        assert not wrong_in_some(program, move).checks["result"].ok

    def test_a_product_that_overwrites_the_sum(self):
        program = self.program()
        last = np.flatnonzero(program.kind == Kind.compute)[-1]
        own = int(program.columns["call"][np.flatnonzero(program.kind == Kind.compute)[0]])

        def overwrite(columns):
            columns["call"][last] = own

        assert not wrong_in_some(program, overwrite).checks["result"].ok


def test_columns_are_sent_once():
    operator = AllGatherColumnsMatmul(24, 8, 8)
    for by in WAYS[1:]:
        program = operator.program(Schedule.of("any", tiles=(12, 12), by=by, own_block="first", fused=False), 4)
        received = program.columns["write_count"][program.columns["write_start"][:-1][program.kind == Kind.recv]]
        assert received.sum() == 4 * 3 * 24
        assert verify(program).ok


@pytest.mark.parametrize("more", [{"fused": True}, {"slices": 2}])
def test_options_that_do_not_apply_are_refused(more):
    with pytest.raises(PlanError, match="one rank's at a time"):
        AllGatherColumnsMatmul(8, 4, 4).program(Schedule.of("any", tiles=(8,), by="ring", own_block="first", **more), 2)
