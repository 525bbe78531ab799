"""Which slots must have equal sizes, and their sizes for given counts: against an oracle, and collectives by hand."""

import random
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_programs import Mover, all_to_all, uneven_of
from thorough import some

from dovetail.core import OperatorError, ProgramError
from dovetail.ir import Builder, Kind, Region, Slot, Workload, region_bytes, sizes_fault, slot_classes, slot_sizes
from dovetail.ir.op_lists import OpLists, slots
from dovetail.ir.proof.greedy import Greedy
from dovetail.ir.proof.sizes import matches
from dovetail.ir.shapes import ring_all_reduce


def classes_by_hand(program):
    """Return the sets of slots of equal size, joined pair by pair over all ops."""
    lists, joined = OpLists(program), {}
    run = Greedy(lists)()

    def find(slot):
        while joined.get(slot, slot) != slot:
            slot = joined[slot]
        return slot

    def join(one, other):
        for a, b in zip(one, other, strict=True):
            joined[find(a)] = find(b)

    def places(op, regions):
        return [(op.rank, region.buffer, slot) for region in regions for slot in slots(region)]

    for op in lists.ops:
        if op.kind == Kind.collective:
            continue
        if op.reads and op.writes and op.kind != Kind.compute:
            join(places(op, op.reads), places(op, op.writes))
        if op.index in run.matched and op.kind != Kind.wait:
            sent = lists.ops[run.matched[op.index]]
            join(places(sent, sent.reads or sent.writes), places(op, op.writes or op.reads))
    for rows in set(run.groups.values()):
        join_call(program.collectives[lists.ops[rows[0]].call].kind, [lists.ops[row] for row in rows], places, join)
    return find


def join_call(kind, members, places, join):
    """Join the slots that must have equal sizes in one call of a collective."""
    n = len(members)
    reads, writes = [places(op, op.reads) for op in members], [places(op, op.writes) for op in members]
    if kind == "all_to_all":
        for i, sender in enumerate(members):
            for j, taker in enumerate(members):
                sent, taken = [
                    [places(op, [region]) for region in side]
                    if len(side) == n
                    else [all_of[k * len(all_of) // n : (k + 1) * len(all_of) // n] for k in range(n)]
                    for op, side, all_of in ((sender, sender.reads, reads[i]), (taker, taker.writes, writes[j]))
                ]
                join(sent[j], taken[i])
        return
    brought, got = list(chain(*reads)), list(chain(*writes))
    for place in range(n):
        if kind == "all_gather":
            join(brought, writes[place])
        elif kind == "reduce_scatter":
            join(reads[place], got)
        else:
            join(reads[0], writes[place])
            join(reads[0][: len(reads[place])], reads[place])


@settings(max_examples=some(100), deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 16))
def test_classes_of_random_programs(seed, num_ops):
    asked = Mover(random.Random(seed), num_ops).program()
    find, found = classes_by_hand(asked), slot_classes(asked)
    label = {
        (rank, name, slot): int(number)
        for name, parts in found.items()
        for rank, part in enumerate(parts)
        for slot, number in enumerate(part)
    }
    by_hand = {}
    for place, number in label.items():
        assert by_hand.setdefault(find(place), number) == number
    assert len(set(by_hand.values())) == len(by_hand)


@settings(max_examples=some(50), deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 16))
def test_bytes_of_regions(seed, num_ops):
    asked = Mover(random.Random(seed), num_ops).program()
    work = uneven_of(asked, "int32", seed)
    for side in ("read", "write"):
        found = iter(region_bytes(asked, work, side))
        for op in asked.ops():
            for region in op.reads if side == "read" else op.writes:
                assert next(found) == 4 * sum(work.sizes[region.buffer][op.rank][slot] for slot in slots(region))
        assert next(found, None) is None


def test_bytes_of_regions_whose_slots_have_equal_sizes():
    ring = ring_all_reduce(3, 2)
    work = Workload({"x": (Slot((5,), "int16"),) * 3})
    assert set(region_bytes(ring, work, "read")) == {10}


class TestSizes:
    def test_sizes_of_scratch_follow_from_known_ones(self):
        b = Builder("relay", 3)
        b.buffer("x", "input", 2), b.buffer("s", "scratch", 3), b.buffer("y", "output", 2)
        net = b.lane("net", "net")
        b.add(Kind.send, 0, net, reads=[Region("x", 0, 2)], chan_out=b.channel(0, 1))
        b.add(
            Kind.recv_copy_send, 1, net, writes=[Region("s", 1, 2)], chan_in=b.channel(0, 1), chan_out=b.channel(1, 2)
        )
        b.add(Kind.recv, 2, net, writes=[Region("y", 0, 1, 1, 2)], chan_in=b.channel(1, 2))
        x = (np.array([7, 0]), np.array([1, 1]), np.array([1, 1]))
        found = slot_sizes(b.build(), {"x": x})
        assert [part.tolist() for part in found["s"]] == [[0, 0, 0], [0, 7, 0], [0, 0, 0]]
        assert found["y"][2].tolist() == [7, 0]
        with pytest.raises(ProgramError, match="slots of 7 elements into slots of 9") as error:
            slot_sizes(b.build(), {"x": x, "y": (np.zeros(2), np.zeros(2), np.array([9, 0]))})
        assert "x[0] of rank 0 and y[0] of rank 2" in str(error.value)

    def test_invalid_sizes_are_refused(self):
        ring = ring_all_reduce(2, 1)
        with pytest.raises(OperatorError, match="has 2 slots"):
            slot_sizes(ring, {"x": (np.array([1, 2, 3]), np.array([1, 2]))})
        with pytest.raises(OperatorError, match="-1 elements"):
            slot_sizes(ring, {"x": (np.array([1, -1]), np.array([1, 2]))})
        with pytest.raises(OperatorError, match="no whole numbers"):
            slot_sizes(ring, {"x": (np.array([1, 1.5]), np.array([1, 2]))})
        for ranks in (1, 3):
            with pytest.raises(OperatorError, match=f"for {ranks} ranks"):
                slot_sizes(ring, {"x": (np.array([1, 2]),) * ranks})

    def test_sizes_of_a_message_that_is_never_received(self):
        b = Builder("lost", 2)
        b.buffer("x", "input", 1)
        b.add(Kind.send, 0, b.lane("net", "net"), reads=[Region("x", 0, 1)], chan_out=b.channel(0, 1))
        with pytest.raises(ProgramError, match="channel 0->1 0 carries 1 messages, and 0 are received"):
            matches(b.build())


class TestAllCounts:
    def test_a_collective_is_proved_for_all_counts_at_once(self):
        assert sizes_fault(ring_all_reduce(4, 3)) is None
        spec, straight = all_to_all(3)
        assert sizes_fault(straight) is None
        counts = np.arange(9).reshape(3, 3)
        found = slot_sizes(straight, spec.sizes(counts))
        assert [part.tolist() for part in found["output"]] == counts.T.tolist()

    def test_different_counts_in_one_slot_are_a_fault(self):
        spec, through = all_to_all(3, swapped=True)
        fault = sizes_fault(through)
        assert "must have one size, but the collective allows them to differ" in fault.what
        even = slot_sizes(through, spec.sizes(np.full((3, 3), 4)))
        assert even["s"][0].tolist() == [4]
        with pytest.raises(ProgramError, match="moves slots of"):
            slot_sizes(through, spec.sizes(np.arange(9).reshape(3, 3)))
