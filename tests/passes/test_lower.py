"""From a traced algorithm to a program on lanes: what every pass promises, and all of them in turn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from effort import ratio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from thorough import some
from traces import Trace, assert_good, kinds, random_trace, ring

from dovetail.collective import build, spec_of
from dovetail.core import ProgramError
from dovetail.ir import RECVS, SENDS, Kind, Program, Slot, Workload, verify
from dovetail.ir.op_lists import sent_slots
from dovetail.matmul import MatmulAllReduce
from dovetail.passes import (
    allocate_slots,
    assign_channels,
    assign_lanes,
    depend,
    drop_redundant,
    find_flows,
    fuse_flows,
    fuse_reduces,
    lower,
    replicate,
    split_slots,
)
from dovetail.passes.columns import NONE, OpColumns
from dovetail.run import execute, fresh_inputs

SLOW = settings(max_examples=some(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
RANDOM = st.randoms(use_true_random=False)


def assert_same(before: Program, after: Program, parts: int) -> None:
    """The same integers from the same inputs, in several interleavings; each slot of `before` is `parts` of `after`."""
    names = [b.name for b in before.buffers]
    work = Workload({name: (Slot((parts,), "int64"),) * before.num_ranks for name in names})
    inputs = fresh_inputs(before, work, seed=7)
    wanted = execute(before, inputs, workload=work).outputs
    fine = Workload({b.name: (Slot((1,), "int64"),) * before.num_ranks for b in after.buffers})
    shared = {name: [array.reshape(-1, 1) for array in arrays] for name, arrays in inputs.items()}
    for seed in (None, 1, 2):
        found = execute(after, shared, seed=seed, workload=fine).outputs
        for name, arrays in wanted.items():
            np.testing.assert_equal([a.ravel() for a in found[name]], [a.ravel() for a in arrays])


@pytest.mark.slow
@given(RANDOM, st.booleans(), st.sampled_from([1, 2, 32]))
@SLOW
def test_a_lowered_trace_means_the_same(rng, fuse, most):
    program, hints = random_trace(rng, operators=False)
    lowered = lower(program, hints, fuse=fuse, most=most)
    assert_good(lowered)
    assert max((c.id for c in lowered.channels), default=0) < most
    assert_same(program, lowered, 1)


@pytest.mark.slow
@given(RANDOM, st.integers(1, 3))
@SLOW
def test_a_trace_with_operators_lowered_in_instances_means_the_same(rng, instances):
    program, hints = random_trace(rng, operators=True)
    lowered = lower(program, hints, instances=instances)
    assert_good(lowered)
    parts = instances * int(np.lcm.reduce(hints.copies, initial=1))
    assert [b.slots[0] for b in lowered.buffers if b.role == "output"] == [parts * 4]
    assert_same(program, lowered, parts)


@pytest.mark.slow
@given(RANDOM)
@SLOW
def test_passes_one_by_one_give_programs_that_hold(rng):
    """Each result is proved by itself, with channels as deep as it takes before lanes are assigned."""
    program, hints = random_trace(rng)
    added, hints = fuse_reduces(program, hints)
    assert verify(added.with_depth(1000)).ok
    graph = depend(added)
    assert verify(graph.with_depth(1000)).ok
    forward = find_flows(graph, hints)
    hints, forward = assign_channels(graph, hints, forward)
    found = assign_lanes(graph, hints, forward)
    if found is None:
        return
    assert verify(found[0]).ok
    fused, hints = fuse_flows(*found)
    assert verify(fused).ok
    packed = allocate_slots(fused)
    assert verify(packed).ok
    less = drop_redundant(packed)
    assert verify(less).ok
    assert len(less.dep) <= len(packed.dep)
    assert drop_redundant(less) == less


def scattered(program: Program) -> Program:
    """Every op on a lane of its own, every message on a channel of its own: only dependencies are left."""
    n, sends = program.num_ops, np.flatnonzero(program.kind == Kind.send)
    lanes = tuple(program.lanes[0]._replace(name=f"lane{row}") for row in range(n))
    channels = tuple(program.channels[program.chan_out[row]]._replace(id=int(row)) for row in sends)
    columns = dict(program.columns) | {"lane": np.arange(n)}
    columns["chan_out"], columns["chan_in"] = np.full(n, -1), np.full(n, -1)
    columns["chan_out"][sends] = columns["chan_in"][sends + 1] = np.arange(len(sends))
    return replace(program, lanes=lanes, channels=channels).with_columns(columns)


def without_dep(program: Program, edge: int) -> Program:
    start = program.dep_start.copy()
    start[start > edge] -= 1
    return program.with_columns({**program.columns, "dep": np.delete(program.dep, edge), "dep_start": start})


@pytest.mark.slow
@given(RANDOM)
@SLOW
def test_dependencies_alone_order_a_trace(rng):
    program, _ = random_trace(rng)
    assert verify(scattered(depend(program))).ok


def test_each_dependency_counts():
    trace = Trace(2, {"input": ("input", 3), "t": ("scratch", 1)})
    trace.move((0, "input", 0), (0, "t", 0))
    trace.move((0, "t", 0), (1, "input", 0))
    trace.move((0, "t", 0), (0, "input", 1))
    trace.move((0, "input", 2), (0, "t", 0))
    trace.move((1, "input", 0), (0, "t", 0), add=True)
    graph = scattered(depend(trace.done()[0]))
    assert [graph.op(row).after for row in range(graph.num_ops)] == [(), (0,), (), (0,), (1, 3), (2,), (4,)]
    assert verify(graph).ok
    for edge in range(len(graph.dep)):
        assert not verify(without_dep(graph, edge)).checks["races"].ok


def test_a_lost_dependency_between_lanes_is_a_race():
    trace = Trace(4, {"input": ("input", 2), "t": ("scratch", 2)})
    for source in (0, 1):
        trace.move((source, "input", 0), (2, "t", source))
    trace.move((2, "t", 0), (3, "input", 0), 2)
    lowered = lower(*trace.done())
    assert_good(lowered)
    assert len(lowered.dep) == 1
    assert not verify(without_dep(lowered, 0)).checks["races"].ok


def test_a_lane_of_several_peers_is_not_good():
    trace = Trace(3, {"input": ("input", 1)})
    for target in (1, 2):
        trace.move((0, "input", 0), (target, "input", 0))
    with pytest.raises(AssertionError):
        assert_good(trace.done()[0])


@given(RANDOM)
@SLOW
def test_no_dependency_that_is_left_follows_from_the_others(rng):
    program = lower(*random_trace(rng))
    last: dict[tuple[int, int], int] = {}
    ended: list[set[int]] = []  # what has ended when each op has, within its rank
    for op in program.ops():
        lane = (op.rank, op.lane)
        causes = {*op.after, *([last[lane]] if lane in last else [])}
        for row in op.after:
            assert not any(row in ended[other] for other in causes - {row})
        ended.append({op.index}.union(*(ended[row] for row in causes)))
        last[lane] = op.index


def test_rings_run_step_by_step_though_written_chunk_by_chunk():
    lowered = lower(*ring(4, 2, depth=8))
    assert_good(lowered)
    assert kinds(lowered)[::4] == ["send"] * 2 + ["recv_reduce_send"] * 4 + ["recv_reduce_copy_send"] * 2 + [
        *["recv_copy_send"] * 4,
        *["recv"] * 2,
    ]
    sent = [op.reads or op.writes for op in lowered.ops() if op.rank == 0]
    assert [region.offset for (region,) in sent[:6]] == [0, 4, 3, 7, 2, 6]
    assert len(lowered.dep) == 0


@pytest.mark.parametrize("depth", [1, 2, 8])
def test_rings_of_more_chunks_than_channels_hold_complete_at_the_depth_declared(depth):
    lowered = lower(*ring(5, 6, depth=depth))
    assert_good(lowered)
    fused = sum(kind in SENDS & RECVS for kind in map(Kind, lowered.kind.tolist()))
    assert fused == 5 * 6 * 7 if depth > 1 else 0 < fused < 5 * 6 * 7


def test_fused_ops_that_fill_a_ring_are_refused_by_the_certificate():
    """The planted fault: the same ops, in an order that sends all chunks first, need a deeper channel."""
    lowered = lower(*ring(4, 4, depth=8)).with_depth(2)
    check = verify(lowered).checks["deadlock"]
    assert not check.ok
    assert verify(lower(*ring(4, 4, depth=2))).ok


def relay(*, ch=(-1, -1), lanes=((-1, -1), (-1, -1)), again=True):
    """Rank 0 sends to 1, which adds and sends on to 2; then rank 1 may receive the sum."""
    trace = Trace(3, {"input": ("input", 1)})
    for hop in (0, 1):
        trace.move((hop, "input", 0), (hop + 1, "input", 0), add=True, ch=ch[hop], lanes=lanes[hop])
    if again:
        trace.move((2, "input", 0), (1, "input", 0))
    return trace.done()


def test_a_sum_that_is_overwritten_unread_is_not_stored():
    assert "recv_reduce_send" in kinds(lower(*relay()))
    assert "recv_reduce_copy_send" in kinds(lower(*relay(again=False)))


@pytest.mark.parametrize("operator", [{"ch": (0, 1)}, {"lanes": ((0, 0), (1, 0))}])
def test_operators_for_other_channels_or_lanes_keep_ops_apart(operator):
    lowered = lower(*relay(again=False, **operator))
    assert_good(lowered)
    assert sorted(kinds(lowered)) == ["recv_reduce", "recv_reduce", "send", "send"]
    if "ch" in operator:
        assert [c[:3] for c in lowered.channels] == [(0, 1, 0), (1, 2, 1)]
    else:
        assert len({op.lane for op in lowered.ops() if op.rank == 1}) == 2


def test_lanes_asked_for_take_channels_of_their_own():
    trace = Trace(2, {"input": ("input", 4), "output": ("output", 4)})
    for slot, lane in enumerate([1, 0, 1, 0]):
        trace.move((0, "input", slot), (1, "output", slot), lanes=(lane, lane))
    lowered = lower(*trace.done())
    assert_good(lowered)
    assert [(op.lane, (op.reads or op.writes)[0].offset) for op in lowered.ops() if op.rank == 0] == [
        *[(1, 0), (0, 1)],
        *[(1, 2), (0, 3)],
    ]


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ((0, 1, 0), (0, 2, 0), "already has another peer"),
        ((0, 1, 0), (0, 1, 1), "on another lane"),
        ((1, 0, 0), (2, 0, 0), "already has another peer"),
    ],
)
def test_lanes_that_cannot_be_are_refused_with_the_line(first, second, why):
    trace = Trace(3, {"input": ("input", 1), "output": ("output", 2)})
    for slot, (source, target, lane) in enumerate((first, second)):
        trace.move((source, "input", 0), (target, "output", slot), ch=0, lanes=(lane, lane))
    with pytest.raises(ProgramError, match=why) as error:
        lower(*trace.done())
    assert "algorithm.py:" in str(error.value)


def test_flows_through_one_rank_take_channels_of_their_own_or_are_cut():
    """All of a star's leaves send to all others through the hub: as many pairings as there are shifts."""
    leaves = range(1, 6)
    trace = Trace(6, {"input": ("input", 6), "t": ("scratch", 36), "output": ("output", 6)})
    for a in leaves:
        for b in leaves:
            if a != b:
                trace.move((a, "input", b), (0, "t", 6 * a + b))
                trace.move((0, "t", 6 * a + b), (b, "output", a))
    program, hints = trace.done()
    for most, fused in ((32, 20), (2, 8)):
        lowered = lower(program, hints, most=most)
        assert_good(lowered)
        assert kinds(lowered).count("recv_copy_send") >= fused
        assert max(c.id for c in lowered.channels) < most


def test_a_local_sum_of_what_was_exchanged_is_added_as_it_comes():
    trace = Trace(2, {"input": ("input", 1), "inbox": ("scratch", 1)})
    for rank in (0, 1):
        trace.move((rank, "input", 0), (1 - rank, "inbox", 0))
    for rank in (0, 1):
        trace.move((rank, "inbox", 0), (rank, "input", 0), add=True)
    lowered = lower(*trace.done())
    assert_good(lowered)
    assert kinds(lowered) == ["send", "send", "recv_reduce", "recv_reduce"]
    assert [b.name for b in lowered.buffers] == ["input"]


def all_to_next(nodes: int, size: int):
    """Seed 002, section 7.4: over a node's border all of its ranks send a part to their twins, by scratch."""
    trace = Trace.of(spec_of("all_to_next", nodes * size, chunks=size), scratch=size)
    for rank in range(nodes * size - 1):
        if (rank + 1) % size:
            trace.move((rank, "input", 0), (rank + 1, "output", 0), size)
            continue
        node = rank // size
        for part in range(size):
            here, there = node * size + part, (node + 1) * size + part
            source = (rank, "input", part)
            if here != rank:
                trace.move(source, (here, "scratch", 0))
                source = (here, "scratch", 0)
            target = (rank + 1, "output", part)
            if there != rank + 1:
                trace.move(source, (there, "scratch", part))
                source = (there, "scratch", part)
            trace.move(source, target)
    return trace.done()


@pytest.mark.parametrize(("nodes", "size", "instances"), [(2, 3, 1), (3, 8, 1), (4, 8, 3), (6, 4, 2)])
def test_all_to_next_that_others_miscompile(nodes, size, instances):
    """references/collectives.md, fact 2: there a forwarding op writes where the next rank has scratch."""
    program, hints = all_to_next(nodes, size)
    lowered = lower(program, hints, instances=instances)
    assert_good(lowered)
    assert "recv_copy_send" in kinds(lowered)


@pytest.mark.parametrize("how", ["interleaved", "batched"])
def test_reduces_between_unequal_places_and_mixed_counts_in_instances(how):
    """references/collectives.md, facts 3 and 4."""
    trace = Trace.of(spec_of("all_reduce", 2, chunks=4), t=8)
    for rank in (0, 1):
        trace.move((rank, "input", 0), (rank, "output", 0), 4)
        trace.move((rank, "input", 0), (rank, "t", 4), 4)
    trace.move((0, "t", 5), (1, "output", 1), 3, add=True)
    trace.move((0, "t", 4), (1, "output", 0), add=True)
    trace.move((1, "t", 4), (0, "output", 0), 2, add=True)
    trace.move((1, "t", 6), (0, "output", 2), 2, add=True)
    lowered = lower(*trace.done(), instances=3, how=how)
    assert_good(lowered)
    strided = any(op.writes and op.writes[0].blocks > 1 for op in lowered.ops())
    assert strided == (how == "interleaved")


SPECS = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter"]


@pytest.mark.parametrize("kind", [*SPECS, "all_to_next"])
@pytest.mark.parametrize("in_place", [False, True])
def test_instances_ask_for_the_collective_of_so_many_chunks(kind, in_place):
    if in_place and kind in ("gather", "scatter"):
        return
    spec, fine = (spec_of(kind, 3, chunks=c, in_place=in_place) for c in (2, 6))
    trace = Trace.of(spec)
    trace.move((0, "input", 0), (1, spec.buffers[-1].name, 0))
    program, hints = trace.done()
    program = replace(program, buffers=spec.buffers)
    assert replicate(program, hints, 3).posts == fine.posts
    if kind in ("all_reduce", "broadcast", "reduce", "all_to_next"):
        assert replicate(program, hints, 3, "batched").posts == fine.posts
    else:
        with pytest.raises(ProgramError, match="use interleaved"):
            replicate(program, hints, 3, "batched")


def test_regions_that_are_replicated_as_one_stay_whole():
    trace = Trace.of(spec_of("all_gather", 2, chunks=4))
    for rank in (0, 1):
        trace.move((rank, "input", 0), (rank, "output", 4 * rank), 4)
        for half in (0, 2):
            trace.move((rank, "input", half), (1 - rank, "output", 4 * rank + half), 2, copies=2)
    lowered = lower(*trace.done(), instances=2)
    assert_good(lowered)
    assert {region.blocks for op in lowered.ops() for region in op.writes if op.kind == Kind.recv} == {1}


def test_fragments_and_instances_have_lanes_and_channels_of_their_own():
    trace = Trace.of(spec_of("all_to_next", 2, chunks=2))
    trace.move((0, "input", 0), (1, "output", 0), copies=3, ch=1)
    trace.move((0, "input", 1), (1, "output", 1), ch=1)
    lowered = lower(*trace.done(), instances=2)
    assert_good(lowered)
    assert [c.id for c in lowered.channels] == [1, 3, 5, 7, 9, 11]
    sent = [(op.lane, *op.reads[0][1:3]) for op in lowered.ops() if op.kind == Kind.send]
    assert sent == [(0, 0, 1), (2, 1, 1), (4, 2, 1), (1, 3, 1), (3, 4, 1), (5, 5, 1), (0, 6, 3), (1, 9, 3)]


def test_a_trace_whose_receives_do_not_follow_their_sends_is_refused():
    program, hints = ring(2)
    rows = np.arange(program.num_ops)[::-1]
    with pytest.raises(ProgramError, match="is not a trace"):
        lower(OpColumns.of(program).take(rows).into(program, NONE, NONE), hints)


def test_nothing_and_one_rank_are_lowered_too():
    empty, hints = Trace(2, {"input": ("input", 1)}).done()
    assert lower(empty, hints, instances=2).num_ops == 0
    trace = Trace(1, {"input": ("input", 2), "t": ("scratch", 3)})
    trace.move((0, "input", 0), (0, "t", 2))
    trace.move((0, "t", 2), (0, "input", 1), add=True)
    lowered = lower(*trace.done())
    assert_good(lowered)
    assert lowered.slots_of("scratch", 0) == 1


def test_lowering_takes_time_in_proportion_to_ops():
    small, large = ring(16, 2), ring(64, 2)
    most = 3 * large[0].num_ops / small[0].num_ops
    assert ratio(lambda: lower(*large), lambda: lower(*small), most) < most


@pytest.mark.parametrize("name", ["ring_all_reduce", "recursive_doubling_all_gather", "direct_all_to_all"])
def test_split_slots_hold_what_the_whole_ones_did(name):
    program = build(name, 4, instances=2)
    split = split_slots(program, 3)
    assert verify(split).ok
    assert verify(split).collective_found == verify(program).collective_found
    assert split.num_ops == program.num_ops
    assert sent_slots(split) == [3 * slots for slots in sent_slots(program)]
    assert split.fingerprint() != program.fingerprint() == build(name, 4, instances=2).fingerprint()


def test_what_a_kernel_takes_whole_is_not_split():
    operator = MatmulAllReduce(4, 4, 4)
    with pytest.raises(ProgramError, match="computes"):
        split_slots(operator.program(operator.serial(2), 2), 2)
