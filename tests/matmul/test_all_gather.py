"""all_gather_matmul: every schedule is proved and correct, on any ranks, shapes and dtypes; faults are refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from product_runs import agree, gathers, random, run, wide, wrong_in_some
from thorough import some

from dovetail.core import OperatorError, PlanError
from dovetail.ir import Kind, Schedule, verify
from dovetail.matmul import AllGatherMatmul, shard

WAYS = ("library", "messages", "ring", "two_rings")


def arguments(operator, ranks, seed):
    rng = np.random.default_rng(seed)
    rows, columns = shard(operator.m, ranks), shard(operator.n, ranks)
    a = [random(rng, (count, operator.k), operator.dtype) for count in rows]
    several = [[random(rng, (operator.k, count), operator.dtype) for _ in range(operator.several)] for count in columns]
    return [(mine, *others) for mine, others in zip(a, several, strict=True)]


def check(operator, schedule, ranks, seed):
    given = arguments(operator, ranks, seed)
    a = np.concatenate([mine for mine, *_ in given])
    for (_, *others), found in zip(given, run(operator, schedule, ranks, given, seed), strict=True):
        results = list(found) if isinstance(found, tuple) else [found]
        if operator.gathered:
            assert np.array_equal(results.pop(), a)
        for b, c in zip(others, results, strict=True):
            agree(c, wide(a) @ wide(b), operator.dtype, operator.k, terms=ranks)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8])
def test_every_family_is_proved_and_correct(ranks):
    operator = AllGatherMatmul(2 * ranks + 3, 9, 7, several=2, gathered=True)
    for schedule in gathers(operator, ranks, WAYS):
        check(operator, schedule, ranks, seed=ranks)


@settings(max_examples=some(60), deadline=None)
@given(
    ranks=st.integers(1, 6),
    sizes=st.tuples(st.integers(0, 20), st.integers(0, 12), st.integers(0, 9)),
    dtype=st.sampled_from(["float16", "bfloat16", "float32", "float64"]),
    several=st.integers(1, 2),
    gathered=st.booleans(),
    data=st.data(),
)
def test_any_shape(ranks, sizes, dtype, several, gathered, data):
    operator = AllGatherMatmul(*sizes, dtype, several, gathered)
    schedule = data.draw(st.sampled_from(gathers(operator, ranks, WAYS)))
    check(operator, schedule, ranks, seed=data.draw(st.integers(0, 99)))


class TestPlantedFaults:
    def program(self):
        return AllGatherMatmul(16, 8, 8).program(
            Schedule.of("any", tiles=(2, 2), by="messages", own_block="first", fused=False), 4
        )

    def test_a_part_used_before_it_arrived(self):
        program = self.program()
        late = np.flatnonzero((program.kind == Kind.compute) & (np.diff(program.columns["dep_start"]) > 0))[0]

        def forget(columns):
            at = int(columns["dep_start"][late])
            columns["dep"] = np.delete(columns["dep"], at)
            columns["dep_start"][late + 1 :] -= 1

        certificate = wrong_in_some(program, forget)
        assert not certificate.ok
        assert not certificate.checks["races"].ok

    def test_a_part_written_elsewhere(self):
        program = self.program()
        first = np.flatnonzero(program.kind == Kind.recv)[0]
        at = int(program.columns["write_start"][first])

        def move(columns):
            columns["write_offset"][at] += 2

        assert not wrong_in_some(program, move).ok

    def test_a_block_computed_twice(self):
        program = self.program()
        rows = np.flatnonzero(program.kind == Kind.compute)
        reads, other = (int(program.columns["read_start"][row]) for row in rows[1:3])

        def again(columns):
            columns["read_offset"][other] = columns["read_offset"][reads]

        certificate = wrong_in_some(program, again)
        assert not certificate.checks["result"].ok


@pytest.mark.parametrize(
    ("parameters", "what"),
    [
        ({"tiles": (3,), "by": "messages"}, "tiles do not add up to the 4 rows"),
        ({"tiles": (4,), "by": "pigeons"}, "cannot travel by 'pigeons'"),
        ({"tiles": (4, 0), "by": "ring"}, "a tile"),
    ],
)
def test_a_schedule_that_does_not_fit_is_reported(parameters, what):
    with pytest.raises((PlanError, OperatorError), match=what):
        AllGatherMatmul(8, 4, 4).program(Schedule.of("any", own_block="first", **parameters), 2)


def test_a_part_is_never_sent_twice():
    operator = AllGatherMatmul(24, 8, 8)
    for by in WAYS[1:]:
        program = operator.program(Schedule.of("any", tiles=(3, 3), by=by, own_block="first", fused=False), 4)
        received = program.columns["write_count"][program.columns["write_start"][:-1][program.kind == Kind.recv]]
        assert received.sum() == 4 * (24 - 6)
        assert verify(program).ok
