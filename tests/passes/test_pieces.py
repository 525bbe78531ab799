"""Messages cut into pieces: right, and simulated as chains as if piece by piece."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from thorough import some

from dovetail import plan
from dovetail.core import PlanError
from dovetail.ir import Schedule, parse, to_text, verify
from dovetail.ir.op_lists import sent_slots
from dovetail.machine import load
from dovetail.matmul import (
    AllGatherColumnsMatmul,
    AllGatherMatmul,
    AllToAllMatmul,
    MatmulAllToAll,
    MatmulReduceScatter,
)
from dovetail.passes import slice_messages
from dovetail.passes.pieces import collapse_repeats, expand_repeats, in_pieces
from dovetail.planner import costs as plan_costs
from dovetail.planner.costs import Costs
from dovetail.sim import simulate
from dovetail.tuner.choices import NOISE, probed_machine
from dovetail.tuner.scenarios import drawn, published

KINDS = (AllGatherMatmul, AllGatherColumnsMatmul, AllToAllMatmul, MatmulAllToAll, MatmulReduceScatter)


@st.composite
def operators(draw, most_ranks=4):
    """An operator, where it can be with uneven shares, and so many ranks."""
    kind, ranks = draw(st.sampled_from(KINDS)), draw(st.integers(1, most_ranks))
    rows = st.integers(0, 9)
    if kind is AllGatherMatmul:
        shares = tuple(draw(st.lists(rows, min_size=ranks, max_size=ranks)))
        return kind(sum(shares), 6, 8, rows=shares), ranks
    if kind in (AllToAllMatmul, MatmulAllToAll):
        counts = draw(st.lists(st.tuples(*[rows] * ranks), min_size=ranks, max_size=ranks))
        return kind(sum(map(sum, counts)), 6, 8, counts=tuple(counts)), ranks
    return kind(draw(st.integers(1, 30)), 6, 8), ranks


@st.composite
def schedules(draw, operator, ranks, by=("messages", "ring", "two_rings")):
    """A schedule of the operator by messages of our own, tiles of any lengths, uncut."""
    longest, tiles = operator.blocks(ranks).longest, []
    while sum(tiles) < longest:
        tiles.append(draw(st.integers(1, longest - sum(tiles))))
    own, fused = draw(st.sampled_from(("first", "together", "last"))), draw(st.booleans())
    parameters = {"tiles": tuple(tiles), "by": draw(st.sampled_from(by)), "own_block": own, "fused": fused}
    if draw(st.integers(0, 3)) == 0 and longest and isinstance(operator, AllGatherMatmul | AllToAllMatmul):
        parameters = {**parameters, "tiles": (), "slices": draw(st.integers(2, 4))}
    return Schedule.of("given", **parameters)


def g15():
    """FiCCO's scenario, in which many short messages slow compute least."""
    return next(each for each in published(AllGatherMatmul) if each.name == "g15")


@cache
def probed_g15():
    probed = probed_machine(g15(), NOISE, 20261122)
    return replace(probed, costs={**load("mi300x-8").costs, **probed.costs})  # of other products, too


@pytest.mark.slow
@settings(max_examples=some(150), deadline=None)
@given(st.data(), st.integers(1, 5))
def test_cut_products_are_right(data, most):
    operator, ranks = data.draw(operators())
    schedule = data.draw(schedules(operator, ranks))
    try:
        whole = operator.program(schedule, ranks)
    except PlanError:
        assume(False)
    cut = operator.program(schedule.with_parameters(rows_per_message=most), ranks)
    assert verify(cut).ok
    assert sum(sent_slots(cut)) == sum(sent_slots(whole))
    assert len(sent_slots(cut)) == sum(-(-slots // most) for slots in sent_slots(whole))
    assert max(sent_slots(cut), default=0) <= most


FORWARDED = """
program forwarded ranks 3
buffer x input 40
buffer y output 40
lane net net
channel 0->1 0 depth 1
channel 1->2 0 depth 2
rank 0 lane net
  send x[0:4; 3 x 10] to 1
  send x[30:31] to 1
rank 1 lane net
  recv_copy_send from 0 -> y[0:12] to 2
  recv_copy_send from 0 -> y[12:13] to 2
rank 2 lane net
  recv from 1 -> y[0:6; 2 x 20]
  recv from 1 -> y[39:40]
"""


def test_all_ops_of_a_message_are_cut_alike():
    """12 slots in blocks of 4 on one rank and of 6 on another can be cut nowhere; in blocks of 4 and of 2 they can."""
    whole = parse(FORWARDED)
    assert slice_messages(whole, 4) is whole
    cut = slice_messages(parse(FORWARDED.replace("y[0:6; 2 x 20]", "y[0:2; 6 x 5]")), 5)
    assert [channel.depth for channel in cut.channels] == [3, 6]
    sent = [str(region) for op in cut.ops() if op.rank != 1 for region in (*op.reads, *op.writes)]
    assert sent[:4] == ["x[0:4]", "x[10:14]", "x[20:24]", "x[30:31]"]
    assert sent[4:] == ["y[0:2; 2 x 5]", "y[10:12; 2 x 5]", "y[20:22; 2 x 5]", "y[39:40]"]
    assert verify(cut).ok


def test_chains_of_strided_messages_are_expanded_where_they_lay():
    whole = parse(FORWARDED.replace("y[0:6; 2 x 20]", "y[0:2; 6 x 5]"))
    for most in (1, 5, 9):
        assert to_text(expand_repeats(*collapse_repeats(whole, most))) == to_text(in_pieces(whole, most))


@pytest.mark.parametrize("kind", [AllGatherMatmul, AllToAllMatmul, MatmulAllToAll, MatmulReduceScatter])
def test_pieces_of_a_message_take_turns_with_their_receives(kind):
    """As they were made, message by message: `sim` lets the first of ops that begin at once go first."""
    schedule = Schedule.of("given", tiles=(5,), by="messages", own_block="last", fused=False, rows_per_message=2)
    program = kind(10 if kind in (AllGatherMatmul, MatmulReduceScatter) else 20, 4, 4).program(schedule, 2)
    sends = np.flatnonzero(program.chan_out >= 0)
    assert len(sends) == 6
    assert (program.chan_in[sends + 1] == program.chan_out[sends]).all()
    assert program.channels[0].depth == 16 * 3


SWAP = """
program swap ranks 2
buffer x input 3
buffer y output 3
lane net net
channel 0->1 0 depth 1
channel 1->0 0 depth 1
post 0 y[0:3] = x@1[0:3]
post 1 y[0:3] = x@0[0:3]
rank 0 lane net
  send x[0:3] to 1
  recv from 1 -> y[0:3]
rank 1 lane net
  send x[0:3] to 0
  recv from 0 -> y[0:3]
"""


@pytest.mark.parametrize("cut", [in_pieces, slice_messages])
def test_channels_hold_as_many_messages_however_many_pieces_each_is(cut):
    """Both ranks send first: three pieces must fit where one message did."""
    whole = parse(SWAP)
    pieces = cut(whole, 1)
    assert [channel.depth for channel in pieces.channels] == [3, 3]
    found = verify(pieces)
    assert found.ok
    assert found.min_fifo_depth == 3
    assert verify(whole).min_fifo_depth == 1
    assert not verify(pieces.with_depth(2)).ok


def test_a_channel_is_as_deep_as_its_own_messages_ask():
    schedule = Schedule.of("given", tiles=(7,), by="messages", own_block="first", fused=False, rows_per_message=2)
    program = AllGatherMatmul(11, 4, 4, rows=(7, 3, 1)).program(schedule, 3)
    assert {(channel.src, channel.depth) for channel in program.channels} == {(0, 16 * 4), (1, 16 * 2), (2, 16)}
    model, _, _ = AllGatherMatmul(11, 4, 4, rows=(7, 3, 1)).prediction_model(schedule, 3)
    assert model.channels == program.channels


def test_chains_hold_all_pieces():
    schedule = Schedule.of("given", tiles=(7, 10), by="messages", own_block="first", fused=False)
    whole = AllGatherMatmul(34, 4, 4).program(schedule, 2)
    program, times = collapse_repeats(whole, 4)
    assert sorted(set(times.tolist())) == [1, 2]
    assert program.num_ops < times.sum() == expand_repeats(program, times).num_ops


@pytest.mark.slow
@settings(max_examples=some(60), deadline=None)
@given(st.data(), st.booleans(), st.integers(1, 5))
def test_chains_take_as_long_as_their_pieces(data, eager, most):
    """Where messages are sent before they are asked for, and where not."""
    machine, dtype = (probed_g15(), "bfloat16") if eager else (load("two-hosts-1gbit"), "float32")
    operator, ranks = data.draw(operators(most_ranks=min(machine.ranks, 4)))
    operator = replace(operator, k=61440, n=61440, dtype=dtype)  # long rows: slow-downs differ
    schedule = data.draw(schedules(operator, ranks, by=("messages",))).with_parameters(rows_per_message=most)
    costs, _ = Costs.of(operator, machine, ranks, extrapolate=True)
    try:
        program = operator.program(schedule, ranks)
    except PlanError:
        assume(False)
    found = costs.scored(schedule)
    assert found.num_ops == program.num_ops
    assert found.predicted_s == pytest.approx(costs.exactly(found, program).predicted_s, rel=1e-9)


def test_chains_that_share_a_link_are_simulated_piece_by_piece():
    torus = next(each for each in drawn(AllGatherMatmul, 9, 20261122) if each.name.startswith("torus"))
    longest = torus.operator.blocks(torus.ranks).longest
    schedule = Schedule.of(
        "given", tiles=(longest,), by="messages", own_block="first", rows_per_message=-(-longest // 100)
    )
    costs, _ = Costs.of(torus.operator, torus.machine, torus.ranks, extrapolate=True)
    assert costs.scored(schedule).program.num_ops == costs.scored(schedule).num_ops
    alone, _ = Costs.of(torus.operator, load("mi300x-8"), min(torus.ranks, 8), extrapolate=True)
    alone = replace(alone, operator=replace(torus.operator, dtype="bfloat16"))
    schedule = schedule.with_parameters(tiles=(alone.operator.blocks(alone.ranks).longest,))
    assert 30 * alone.scored(schedule).program.num_ops < alone.scored(schedule).num_ops


@pytest.mark.slow
def test_planning_simulates_few_ops(monkeypatch):
    """In all it simulates less than the largest schedule alone that it weighs has."""
    simulated, weighed, scored = [], [], Costs.scored

    def counted(program, *about):
        simulated.append(program.num_ops)
        return simulate(program, *about)

    def noted(costs, schedule):
        made = scored(costs, schedule)
        weighed.append(made.num_ops)
        return made

    monkeypatch.setattr(plan_costs, "simulate", counted)
    monkeypatch.setattr(Costs, "scored", noted)
    g16 = next(each for each in published(AllToAllMatmul) if each.name == "g16")
    found = plan(g16.operator, probed_machine(g16, NOISE, 20261122), extrapolate=True)
    *search, taken = simulated
    assert taken == found.program.num_ops
    assert sum(search) < max(weighed)
    assert sum(weighed) > 1_000_000
