"""all_to_all_matmul and matmul_all_to_all: uneven counts of rows; every schedule is proved and correct."""

from dataclasses import replace
from itertools import permutations

import collective_machine
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from product_runs import agree, gathers, random, run, scatters, wide, wrong_in_some
from thorough import some

from dovetail.core import OperatorError, PlanError
from dovetail.ir import Kind, Schedule
from dovetail.machine import Link
from dovetail.matmul import AllToAllMatmul, MatmulAllToAll
from dovetail.planner.costs import Costs

WAYS = ("library", "messages")


def cut(array, counts):
    return np.split(array, np.cumsum(counts)[:-1])


def check_dispatch(operator, schedule, ranks, seed):
    rng, counts = np.random.default_rng(seed), operator.blocks(ranks).counts
    given = [
        (
            random(rng, (sum(counts[q]), operator.k), operator.dtype),
            random(rng, (operator.k, operator.n), operator.dtype),
        )
        for q in range(ranks)
    ]
    for r, found in enumerate(run(operator, schedule, ranks, given, seed)):
        received = np.concatenate([cut(given[q][0], counts[q])[r] for q in range(ranks)])
        agree(found, wide(received) @ wide(given[r][1]), operator.dtype, operator.k, terms=ranks)


def check_combine(operator, schedule, ranks, seed):
    rng, counts = np.random.default_rng(seed), operator.blocks(ranks).counts
    given = [
        (
            random(rng, (sum(counts[q]), operator.k), operator.dtype),
            random(rng, (operator.k, operator.n), operator.dtype),
        )
        for q in range(ranks)
    ]
    made = [wide(a) @ wide(b) for a, b in given]
    for r, found in enumerate(run(operator, schedule, ranks, given, seed)):
        agree(found, np.concatenate([cut(made[q], counts[q])[r] for q in range(ranks)]), operator.dtype, operator.k)


BOTH = [(AllToAllMatmul, check_dispatch, gathers), (MatmulAllToAll, check_combine, scatters)]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "check", "schedules"), BOTH)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8])
def test_every_family_is_proved_and_correct(kind, check, schedules, ranks):
    counts = [[(3 * q + 5 * r) % 4 for r in range(ranks)] for q in range(ranks)]
    operator = kind(sum(map(sum, counts)), 9, 5, counts=counts)
    for schedule in schedules(operator, ranks, WAYS):
        check(operator, schedule, ranks, seed=ranks)


@settings(max_examples=some(60), deadline=None)
@given(which=st.sampled_from(BOTH), ranks=st.integers(1, 5), data=st.data())
def test_any_counts(which, ranks, data):
    kind, check, schedules = which
    row = st.lists(st.integers(0, 6), min_size=ranks, max_size=ranks)
    counts = data.draw(st.lists(row, min_size=ranks, max_size=ranks))
    dtype = data.draw(st.sampled_from(["float16", "float32", "float64"]))
    sizes = data.draw(st.tuples(st.integers(0, 9), st.integers(0, 6)))
    operator = kind(sum(map(sum, counts)), *sizes, dtype, counts)
    check(operator, data.draw(st.sampled_from(schedules(operator, ranks, WAYS))), ranks, data.draw(st.integers(0, 99)))


@pytest.mark.parametrize("kind", [AllToAllMatmul, MatmulAllToAll])
def test_messages_take_turns_on_a_shared_link(kind):
    """With a switch, messages of one rank are sent one after another; with a link for each pair, at the same time."""
    operator, ranks = kind(64, 8, 8), 4
    switch, pairs = collective_machine.star(ranks), tuple(permutations(range(ranks), 2))
    mesh = replace(switch, links=tuple(Link(a, b, switch.links[0].kind) for a, b in pairs))
    for machine, in_turn in ((switch, True), (mesh, False), (replace(switch, nodes=(0,) * ranks, links=()), False)):
        assert Costs(operator, machine, ranks).has_one_way_out() is in_turn
    schedule = Schedule.of("any", tiles=(2, 2), by="messages", own_block="together", fused=True)
    for each, count in ((schedule, 0), (schedule.with_parameters(in_turn=True), ranks * (2 * (ranks - 1) - 1))):
        program = operator.program(each, ranks)
        ops = list(program.ops())
        waits = [op for op in ops if op.kind == Kind.send and any(ops[row].kind == Kind.recv for row in op.after)]
        assert len(waits) == count


@pytest.mark.parametrize("kind", [AllToAllMatmul, MatmulAllToAll])
def test_rows_are_shared_evenly_unless_counts_are_given(kind):
    assert kind(10, 4, 4).blocks(3).counts == ((2, 1, 1), (1, 1, 1), (1, 1, 1))
    with pytest.raises(OperatorError, match="do not add up to m = 9"):
        kind(9, 4, 4, counts=[[1, 2], [3, 4]])
    with pytest.raises(OperatorError, match="a row and a column for each rank"):
        kind(6, 4, 4, counts=[[1, 2], [3]])
    with pytest.raises(OperatorError, match="the counts are for 2 ranks"):
        kind(10, 4, 4, counts=[[1, 2], [3, 4]]).blocks(3)


@pytest.mark.parametrize("kind", [AllToAllMatmul, MatmulAllToAll])
def test_planted_fault_blocks_of_two_ranks_swapped(kind):
    operator = kind(36, 4, 4)
    program = operator.program(
        Schedule.of("any", tiles=(operator.blocks(3).longest,), by="messages", own_block="first"), 3
    )
    first, second = np.flatnonzero((program.kind == Kind.recv) & (program.rank == 0))[:2]
    at, other = (int(program.columns["write_start"][row]) for row in (first, second))

    def swap(columns):
        places = columns["write_offset"]
        places[at], places[other] = places[other], places[at]

    assert not wrong_in_some(program, swap).ok


@pytest.mark.parametrize("kind", [AllToAllMatmul, MatmulAllToAll])
def test_no_schedule_uses_a_ring(kind):
    with pytest.raises(PlanError, match=r"ring|cannot travel"):
        kind(8, 4, 4).program(Schedule.of("any", tiles=(2,), by="ring", own_block="first"), 2)
