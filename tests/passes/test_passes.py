"""Passes keep what a program means: the certificate stays good, and the same inputs give the same outputs."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from thorough import some

from dovetail.collective import family
from dovetail.core import OperatorError, ProgramError
from dovetail.ir import Builder, Kind, Program, Region, Slot, Workload, parse, to_text, verify
from dovetail.passes import fuse, inline_collectives, slice_messages
from dovetail.run import execute, fresh_inputs

BUFFERS = {"x": "input", "y": "scratch", "z": "output"}
SIZE = 8


class Ordered:
    """A Builder with two lanes a rank, whose ops run in the order in which they are added: no races."""

    def __init__(self, ranks):
        self.builder, self.last = Builder("random", ranks), {}
        for name, role in BUFFERS.items():
            self.builder.buffer(name, role, SIZE)
        self.lanes = self.builder.lane("net", "net"), self.builder.lane("other", "net")

    def add(self, kind, rank, lane=0, **rest):
        row, last_lane = self.last.get(rank, (None, lane))
        after = [] if last_lane == lane else [row]
        row = self.builder.add(kind, rank, self.lanes[lane], after=after, **rest)
        self.last[rank] = row, lane


@st.composite
def regions(draw, num_slots):
    """Offset, count, stride and blocks of some region of `num_slots` slots."""
    blocks = draw(st.sampled_from([b for b in range(1, num_slots + 1) if num_slots % b == 0] or [1]))
    count = num_slots // blocks
    stride = draw(st.integers(count, SIZE // blocks)) if blocks > 1 else 0
    return draw(st.integers(0, SIZE - stride * (blocks - 1) - count)), count, stride, blocks


@st.composite
def collective_programs(draw):
    """all_reduce calls on random groups and regions, some in place, with copies between them."""
    ranks = draw(st.integers(1, 4))
    program = Ordered(ranks)
    for _ in range(draw(st.integers(1, 6))):
        num_slots = draw(st.sampled_from([0, 1, 4, 5, 6]))
        source, target = draw(st.sampled_from([("x", "y"), ("x", "z"), ("y", "z"), ("z", "y"), ("y", "y")]))
        src = Region(source, *draw(regions(num_slots)))
        dst = src if source == target else Region(target, *draw(regions(num_slots)))
        if source == target or draw(st.booleans()):
            group = draw(st.permutations(range(ranks)))[: draw(st.integers(1, ranks))]
            call = program.builder.collective("all_reduce", group)
            for rank in group:
                program.add(Kind.collective, rank, reads=[src], writes=[dst], call=call)
        else:
            rank, lane = draw(st.integers(0, ranks - 1)), draw(st.integers(0, 1))
            program.add(Kind.copy, rank, lane, reads=[src], writes=[dst])
    return program.builder.build()


@st.composite
def messages(draw):
    """Messages that are passed on: from rank to rank, or round a ring by all ranks at once."""
    ranks = draw(st.integers(2, 4))
    program, depth = Ordered(ranks), draw(st.integers(1, 2))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.permutations(range(ranks)))[: draw(st.integers(2, ranks))]
        if draw(st.booleans()):
            relay(draw, program, path, depth)
        else:
            ring(draw, program, path, depth)
    return program.builder.build()


def relay(draw, program, path, depth):
    """One message along a path; after each hop a part of it goes on, on either lane, and may be looked at."""
    here = Region("x", *draw(regions(draw(st.integers(1, SIZE)))))
    for rank, into in pairwise(path):
        lane = draw(st.integers(0, 1))
        channel = program.builder.channel(rank, into, draw(st.sampled_from([0, lane])), depth)
        program.add(Kind.send, rank, lane, reads=[here], chan_out=channel)
        if here.buffer != "x" and draw(st.booleans()):
            seen = Region("y" if here.buffer == "z" else "z", *draw(regions(here.num_slots)))
            program.add(Kind.copy, rank, reads=[here], writes=[seen])
        here = receive(draw, program, into, channel, here.num_slots)
        if here.blocks == 1 and draw(st.booleans()):
            less = draw(st.integers(0, here.count - 1))
            here = here._replace(offset=here.offset + less, count=here.count - less)


def receive(draw, program, rank, channel, num_slots):
    """One of the ways to receive a message; returns where it, or its sum, is then."""
    place, other = (Region(draw(st.sampled_from("yz")), *draw(regions(num_slots))) for _ in range(2))
    way = draw(st.sampled_from([Kind.recv, Kind.recv_reduce, Kind.reduce]))
    if way == Kind.recv_reduce:
        src = Region("x", *draw(regions(num_slots)))
        program.add(way, rank, reads=[src], writes=[place], chan_in=channel)
        return place
    program.add(Kind.recv, rank, writes=[place], chan_in=channel)
    if way == Kind.recv or place.buffer == other.buffer:
        return place
    program.add(Kind.reduce, rank, reads=[place], writes=[other])
    return draw(st.sampled_from([place, other]))


def ring(draw, program, path, depth):
    """Every rank of the path sends to the next, then passes on what it receives; channels may be full at once."""
    region, sends = Region("y", *draw(regions(draw(st.integers(1, 5))))), draw(st.integers(1, 2))
    around = list(zip(path, path[1:] + path[:1], strict=True))
    channel = {rank: program.builder.channel(rank, into, 2, depth) for rank, into in around}
    for hop in range(1 + draw(st.integers(0, 2))):
        for rank in path:
            if hop == 0:
                src = Region("x", *draw(regions(region.num_slots)))
                for _ in range(min(sends, depth)):
                    program.add(Kind.send, rank, reads=[src], chan_out=channel[rank])
        for rank, into in around:
            program.add(Kind.recv, into, writes=[region], chan_in=channel[rank])
            program.add(Kind.send, into, reads=[region], chan_out=channel[into])
    for rank, into in around:
        for _ in range(min(sends, depth)):
            program.add(Kind.recv, into, writes=[region], chan_in=channel[rank])


def assert_same_meaning(before: Program, after: Program) -> None:
    """`after` is provably in order, and gives the same integers as `before`, in several interleavings."""
    assert verify(after).ok, verify(after)
    names = {buffer.name for buffer in after.buffers}.union(BUFFERS)
    workload = Workload({name: (Slot((2,), "int64"),) * before.num_ranks for name in names})
    inputs = fresh_inputs(before, workload, seed=3)
    wanted = execute(before, inputs, workload=workload).outputs
    for seed in (None, 1, 2):
        np.testing.assert_equal(execute(after, inputs, seed=seed, workload=workload).outputs, wanted)


@pytest.mark.slow
@given(collective_programs(), st.sampled_from(["exchange", "ring"]), st.integers(1, 3))
@settings(max_examples=some(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_inlined_collectives_mean_the_same(before, algorithm, max_slots):
    assert verify(before).ok
    after = inline_collectives(before, family(algorithm), depth=1)
    assert not np.any(after.kind == Kind.collective)
    assert_same_meaning(before, after)
    assert_same_meaning(before, slice_messages(after, max_slots))
    assert_same_meaning(before, fuse(after))


@pytest.mark.slow
@given(messages(), st.integers(1, 3))
@settings(max_examples=some(80), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_fused_and_sliced_messages_mean_the_same(before, max_slots):
    assert verify(before).ok
    fused = fuse(before)
    assert_same_meaning(before, fused)
    assert_same_meaning(before, slice_messages(before, max_slots))
    assert_same_meaning(before, slice_messages(fused, max_slots))
    assert fuse(fused) == fused


CALLS = """
program calls ranks 2
buffer x input 8
buffer y output 8
lane net net
lane more net
collective all_reduce 0 1
rank 0 lane net
  collective all_reduce x[0:4] -> y[0:4] group 0 1
rank 1 lane net
  collective all_reduce x[0:4] -> y[0:4] group 0 1
"""


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("rank 1 lane net\n  collective all_reduce x[0:4] -> y[0:4] group 0 1\n", "", "1 of its 2 members"),
        (
            "rank 1 lane net\n  collective all_reduce x[0:4]",
            "rank 1 lane net\n  collective all_reduce x[0:3]",
            "disagree on sizes",
        ),
        ("-> y[0:4]", "-> x[2:6]", "overlap in part"),
        ("x[0:4] -> y[0:4]", "x[6:10] -> y[6:10]", "buffer x has 8 slots"),
        (
            "group 0 1\nrank 1",
            "group 0 1\nrank 0 lane more\n  collective all_reduce x[0:4] -> y[0:4] group 0 1\nrank 1",
            "two lanes of rank 0",
        ),
    ],
)
def test_calls_that_cannot_be_inlined_are_named(old, new, why):
    assert CALLS.replace(old, new) != CALLS
    with pytest.raises(ProgramError, match=f"op . 'collective' on rank .*{why}"):
        inline_collectives(parse(CALLS.replace(old, new)), family("ring"))


def test_ranks_may_hold_different_numbers_of_slots():
    text = CALLS.replace("output 8", "output 4,8")
    head, tail = text.split("rank 1 lane net")
    text = f"{head}rank 1 lane net{tail.replace('y[0:4]', 'y[4:8]')}"
    assert verify(inline_collectives(parse(text), family("ring"))).ok


def test_programs_with_nothing_to_rewrite_are_returned_as_they_are():
    plain = parse(CALLS.replace("all_reduce", "broadcast"))
    assert inline_collectives(plain, family("ring")) is plain
    assert slice_messages(plain, 1) is plain
    assert fuse(plain) is plain


SHIFTED = """
program shifted ranks 2
buffer i input 12
buffer u scratch 4
buffer x output 5
lane a net
lane b net
lane c net
channel 1->0 0 depth 2
channel 1->0 1 depth 2
channel 1->0 2 depth 2
rank 0 lane a
  copy i[0:4] -> u[0:4]
  recv_reduce from 1 u[0:4] -> x[0:4]
rank 0 lane b
  recv from 1:1 -> u[0:4] after a.1
rank 0 lane c
  recv_reduce from 1:2 u[0:4] -> x[1:5] after b.0
rank 1 lane a
  send i[0:4] to 0
rank 1 lane b
  send i[4:8] to 0:1
rank 1 lane c
  send i[8:12] to 0:2
"""


def test_slices_that_would_race_are_not_made():
    """Slice by slice, lane c would come to x[2] by way of u while lane a has still to write it."""
    shifted, alike = parse(SHIFTED), parse(SHIFTED.replace("x[1:5]", "x[0:4]"))
    assert slice_messages(shifted, 2) is shifted
    sliced = slice_messages(alike, 2)
    assert sliced.num_ops > alike.num_ops
    assert verify(sliced).ok


def test_messages_need_room():
    with pytest.raises(OperatorError, match="at least one slot"):
        slice_messages(parse(CALLS), 0)


def test_new_lanes_keep_clear_of_old_ones():
    """A lane `send` exists already, and a second lane calls another collective: each gets lanes of its own."""
    text = CALLS.replace("more", "send").replace(
        "collective all_reduce 0 1", "collective all_reduce 0 1\ncollective all_reduce 1 0"
    )
    for rank in "01":
        text += f"rank {rank} lane send\n  collective all_reduce x[4:8] -> y[4:8] group 1 0\n"
    program = inline_collectives(parse(text), family("ring"))
    assert [lane.name for lane in program.lanes] == ["send_net", "recv_net", "send_send", "recv_send"]
    assert {channel.id for channel in program.channels} == {0, 1}
    assert verify(program).ok


def test_strided_regions_are_cut_between_their_blocks():
    program = parse("""
program strided ranks 2
buffer x input 12
buffer y output 12
lane net net
channel 0->1 0 depth 1
rank 0 lane net
  send x[0:2; 4 x 3] to 1
rank 1 lane net
  recv from 0 -> y[0:8]
""")
    sliced = slice_messages(program, 3)
    assert [str(op.reads[0]) for op in sliced.ops() if op.reads] == ["x[0:2]", "x[3:5]", "x[6:8]", "x[9:11]"]
    assert [str(op.writes[0]) for op in sliced.ops() if op.writes] == ["y[0:2]", "y[2:4]", "y[4:6]", "y[6:8]"]
    assert {op.reads[0].num_slots for op in slice_messages(program, 4).ops() if op.reads} == {4}


def test_fusing_finds_every_kind():
    """One lane in the middle of three ranks: what it does with its messages becomes one op for each."""
    ops = {
        "recv_copy_send": ["recv from 0 -> z[0:2]", "send z[0:2] to 2"],
        "recv_reduce_copy_send": ["recv_reduce from 0 x[2:4] -> z[2:4]", "send z[2:4] to 2"],
        "recv_reduce_send": ["recv_reduce from 0 x[4:6] -> y[4:6]", "send y[4:6] to 2"],
        "recv_reduce": ["recv from 0 -> y[0:2]", "reduce y[0:2] -> z[0:2]"],
        "recv_reduce_copy_send, because of": ["recv_reduce from 0 x[6:8] -> y[6:8]", "send y[6:8] to 2"],
        "copy": ["copy y[6:8] -> z[6:8]"],
    }
    lines = "\n".join(f"  {line}" for pair in ops.values() for line in pair)
    sends = "\n".join(f"  send x[{i}:{i + 2}] to 1" for i in [0, 2, 4, 6, 0])
    text = f"""
program middle ranks 3
buffer x input 8
buffer y scratch 8
buffer z output 8
lane net net
channel 0->1 0 depth 1
channel 1->2 0 depth 8
rank 0 lane net
{sends}
rank 1 lane net
{lines}
rank 2 lane net
  recv from 1 -> z[0:2]
  recv from 1 -> z[2:4]
  recv from 1 -> z[4:6]
  recv from 1 -> z[6:8]
"""
    before = parse(text)
    after = fuse(before)
    assert [op.kind.name for op in after.ops() if op.rank == 1] == [name.partition(",")[0] for name in ops]
    assert_same_meaning(before, after)


HELD_UP = """
program held_up ranks 3
buffer x input 4
buffer y output 4
lane net net
lane other net
channel 0->1 0 depth 1
channel 0->1 1 depth 1
channel 1->0 0 depth 1
rank 0 lane net
  send x[0:1] to 1
  recv from 1 -> y[0:1]
  send y[0:1] to 1
rank 0 lane other
  send x[1:2] to 1:1 after net.1
rank 1 lane net
  send x[0:1] to 0
  recv from 0:1 -> y[0:1]
  recv from 0 -> y[1:2]
  recv from 0 -> y[2:3]
"""

WAITS = """
program waits ranks 2
buffer x input 4
buffer y scratch 4
buffer z output 4
lane net net
lane other copy
channel 0->1 0 depth 1
rank 0 lane net
  send x[0:2] to 1
rank 1 lane net
  recv from 0 -> y[0:2]
  reduce y[0:2] -> z[0:2] after other.0
rank 1 lane other
  copy x[0:2] -> z[0:2]
"""


def forward(receive: str, send: str, last: str = "y[0:4]") -> Program:
    """Rank 1 receives on one lane and sends on another."""
    count = receive.split(":")[1].rstrip("]")
    return parse(f"""
program forward ranks 3
buffer x input 8
buffer y output 9
lane recv net
lane send net
channel 0->1 0 depth 1
channel 1->2 0 depth 1
rank 0 lane send
  send x[0:{count}] to 1
rank 1 lane recv
  recv from 0 -> {receive}
rank 1 lane send
  send {send} to 2 after recv.0
rank 2 lane recv
  recv from 1 -> {last}
""")


def test_sends_of_a_pipeline_wait_for_their_own_slice_only():
    """Slice i leaves as soon as it has come."""
    after = slice_messages(forward("y[0:4]", "y[0:4]"), 2)
    assert "  send y[0:2] to 2 after recv.0\n  send y[2:4] to 2 after recv.1\n" in to_text(after)
    assert verify(after).ok


def test_slices_that_do_not_match_wait_for_the_whole():
    """Other slots of the same buffer; the same slots, cut at other places because the last receive is strided."""
    for before in (forward("y[0:4]", "y[1:5]"), forward("y[0:6]", "y[0:6]", "y[0:2; 3 x 3]")):
        after = slice_messages(before, before.op(1).writes[0].num_slots - 2)
        assert after.num_ops == 2 * before.num_ops
        assert verify(after).ok


def test_messages_of_a_channel_that_two_lanes_use_stay_whole():
    text = to_text(forward("y[0:4]", "y[0:4]")).replace("after recv.0", "after recv.0\n  send y[0:4] to 2")
    text = text.replace(
        "rank 2 lane recv\n", "rank 2 lane send\n  recv from 1 -> y[4:8] after recv.0\nrank 2 lane recv\n"
    )
    before = parse(text)
    assert verify(before).ok
    after = slice_messages(before, 2)
    assert [str(op.writes[0]) for op in after.ops() if op.writes] == ["y[0:2]", "y[2:4]", "y[4:8]", "y[0:4]"]
    assert verify(after).ok


def test_a_receive_that_others_wait_for_stays_alone():
    """Fused with its send it would end too late: the send waits for room that is made only after the other lane's."""
    before = parse(HELD_UP)
    assert verify(before).ok
    assert fuse(before) is before


def test_a_reduce_that_waits_for_more_than_its_message_stays_alone():
    """The receive may come first, and need not wait for the other lane."""
    before = parse(WAITS)
    assert verify(before).ok
    assert fuse(before) is before
