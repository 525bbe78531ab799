"""An algorithm in place of the library's call: proved for every kind, group, cut of the parts and way to lie."""

import inspect
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import some

from dovetail.collective import ALGORITHMS, algorithms_for, family, make_algorithm
from dovetail.core import ProgramError
from dovetail.ir import Builder, Kind, Program, Region, Term, parse, to_text, verify
from dovetail.ir.collectives import OP_COLLECTIVES
from dovetail.passes import collective_calls, fuse_reduces, inline_collectives, member_steps

RANKS = range(2, 9)
FAMILIES = ("ring", "exchange")
BOTH_WHOLE = ("all_reduce", "all_to_all", "broadcast")


def by_name(name):
    """A maker of one algorithm, written as a user would."""

    def make(kind, size, in_place):
        known = "in_place" in inspect.signature(ALGORITHMS[name]).parameters
        options = {"in_place": in_place} if known else {}
        return fuse_reduces(*make_algorithm(name, size, **options).trace())[0]

    return make


def sums(group, region):
    return [Term(None, ((rank, region),)) for rank in group]


def posts(kind, group, parts):
    """(ranks, region of y, terms) for x on every rank of the group, whose parts have these numbers of slots."""
    total, starts = sum(parts), [0, *accumulate(parts)]
    pieces = [(start, part) for start, part in zip(starts, parts, strict=False) if part]
    if kind == "all_reduce":
        return [(group, Region("y", 0, total), sums(group, Region("x", 0, total)))] if total else []
    if kind == "broadcast":
        return [(group, Region("y", 0, total), sums(group[:1], Region("x", 0, total)))] if total else []
    if kind == "all_gather":
        owners = [rank for rank, part in zip(group, parts, strict=True) if part]
        return [
            (group, Region("y", at, part), sums([rank], Region("x", 0, part)))
            for rank, (at, part) in zip(owners, pieces, strict=True)
        ]
    if kind == "reduce_scatter":
        owners = [rank for rank, part in zip(group, parts, strict=True) if part]
        return [
            ([rank], Region("y", 0, part), sums(group, Region("x", at, part)))
            for rank, (at, part) in zip(owners, pieces, strict=True)
        ]
    return [
        ([to], Region("y", s * parts[0], parts[0]), sums([source], Region("x", r * parts[0], parts[0])))
        for r, to in enumerate(group)
        for s, source in enumerate(group)
        if parts[0]
    ]


def called(kind, ranks, group, parts, in_place=False, blocks=1) -> Program:
    """One call of the library's collective from x to y, in place in between where so asked.

    With `blocks` the call works on a scratch buffer, in that many blocks of each part.
    """
    b, total, starts = Builder("called", ranks), sum(parts), [0, *accumulate(parts)]
    for name, role in (("x", "input"), ("t", "scratch"), ("y", "output")):
        b.buffer(name, role, 3 * max(total, 1))
    net, call = b.lane("net", "net"), b.collective(kind, group)
    for ranks_of_post, region, terms in posts(kind, group, parts):
        b.post(ranks_of_post, region, terms)
    for member, rank in enumerate(group):
        own = {"all_gather": (True, False), "reduce_scatter": (False, True)}.get(kind, (False, False))
        src, dst = (Region(name, 0, parts[member] if is_own else total) for name, is_own in zip("xy", own, strict=True))
        if not in_place:
            work = src, spread("t", dst, blocks)
        elif kind in BOTH_WHOLE:
            work = (spread("t", src, blocks),) * 2
        else:
            at = Region("t", starts[member], parts[member])
            work = (at, Region("t", 0, total)) if kind == "all_gather" else (Region("t", 0, total), at)
        is_root = kind != "broadcast" or member == 0
        if work[0] != src and is_root:
            b.add(Kind.copy, rank, net, reads=[src], writes=[work[0]])
        b.add(Kind.collective, rank, net, reads=[work[0]] if is_root else [], writes=[work[1]], call=call)
        b.add(Kind.copy, rank, net, reads=[work[1]], writes=[dst])
    return b.build()


def spread(buffer, region, blocks):
    """The region's slots in `blocks` blocks, with a slot left out between them."""
    count = region.num_slots // blocks
    return Region(buffer, 1, count, count + 1, blocks) if blocks > 1 and count else Region(buffer, 1, region.num_slots)


def assert_inlined(before, make, depth=2) -> Program:
    assert verify(before).ok, verify(before)
    after = inline_collectives(before, make, depth)
    assert Kind.collective not in after.columns["kind"]
    found = verify(after)
    assert found.ok, (found, to_text(after))
    return after


def parts_of(kind, ranks, each):
    return [each] * ranks if kind in ("all_gather", "reduce_scatter", "all_to_all") else [each * ranks]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("in_place", [False, True], ids=["apart", "in_place"])
def test_families_serve_every_kind(name, kind, ranks, in_place):
    if family(name)(kind, ranks, in_place) is None:
        assert (name, kind) == ("ring", "all_to_all")
        return
    assert_inlined(called(kind, ranks, range(ranks), parts_of(kind, ranks, 3), in_place), family(name))


@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("name", [name for kind in OP_COLLECTIVES for name in algorithms_for(kind)])
def test_every_algorithm_can_be_inlined(name, ranks):
    if name == "sccl_122_all_gather" and ranks != 8:
        return
    kind = next(kind for kind in OP_COLLECTIVES if name in algorithms_for(kind))
    assert_inlined(called(kind, ranks, range(ranks), parts_of(kind, ranks, 2)), by_name(name))


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("parts", [(3, 1), (0, 2, 5), (4, 0, 0, 1), (1, 2, 3, 4, 5), (7, 0, 7, 0, 1, 9)])
@pytest.mark.parametrize("in_place", [False, True], ids=["apart", "in_place"])
def test_parts_may_differ(name, kind, parts, in_place):
    assert_inlined(called(kind, len(parts), range(len(parts)), parts, in_place), family(name))


@pytest.mark.slow
@given(st.data(), st.sampled_from(FAMILIES), st.integers(1, 3), st.booleans())
@settings(max_examples=some(120), deadline=None)
def test_any_group_and_any_size(data, name, depth, in_place):
    kind = data.draw(st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]))
    ranks = data.draw(st.integers(1, 6))
    group = data.draw(st.permutations(range(ranks)))[: data.draw(st.integers(1, ranks))]
    if family(name)(kind, len(group), in_place) is None:
        return
    if kind in ("all_gather", "reduce_scatter"):
        parts = data.draw(st.lists(st.integers(0, 5), min_size=len(group), max_size=len(group)))
    else:
        each = data.draw(st.integers(0, 5))
        parts = [each] * len(group) if kind == "all_to_all" else [each]
    blocks = data.draw(st.integers(1, 3))
    if kind not in ("all_reduce", "broadcast") or sum(parts) % blocks:
        blocks = 1
    assert_inlined(called(kind, ranks, group, parts, in_place, blocks), family(name), depth)


@pytest.mark.parametrize("name", ["binomial_tree_broadcast"])
@pytest.mark.parametrize("ranks", RANKS)
def test_the_root_of_a_broadcast_is_the_first_of_its_group(name, ranks):
    group = [*range(1, ranks), 0]
    assert_inlined(called("broadcast", ranks, group, [5]), by_name(name))


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("in_place", [False, True], ids=["apart", "in_place"])
def test_an_all_reduce_needs_no_more_ops_than_written_by_hand(name, ranks, in_place):
    after = assert_inlined(called("all_reduce", ranks, range(ranks), [16 * ranks], in_place), family(name))
    each = {"ring": 4, "exchange": 2 if ranks == 2 else 5}[name]  # sends, receives, and sums of what came aside
    assert np.count_nonzero(after.kind != Kind.copy) == ranks * each * (ranks - 1)


def test_pairs_speak_at_once():
    """Each message of an exchange has a lane of its own: none but its own piece's sum waits for it."""
    after = assert_inlined(called("all_reduce", 4, range(4), [8]), family("exchange"))
    ops = list(after.ops())
    by_step = [[op for op in ops if op.rank == 0 and op.kind == kind] for kind in (Kind.send, Kind.recv)]
    for each in by_step:
        assert len({op.lane for op in each[:3]}) == len({op.lane for op in each[3:]}) == 3
    assert not any(op.after for op in (*by_step[0][:3], *by_step[1]))


@pytest.mark.parametrize("slots", [1, 5, 12, 13, 17])
@pytest.mark.parametrize("name", FAMILIES)
def test_chunks_differ_by_at_most_one_slot(name, slots):
    after = assert_inlined(called("all_reduce", 4, range(4), [slots]), family(name))
    sent = [op.reads[0].num_slots for op in after.ops() if op.kind == Kind.send]
    each = -(-slots // 4)
    assert {*sent} <= {each, each - 1}
    assert sum(sent) == 2 * 3 * slots  # as many as go round a ring


def test_strided_regions_are_cut_between_blocks():
    after = assert_inlined(called("all_reduce", 3, range(3), [14], blocks=7), family("ring"))
    sent = {op.reads[0].num_slots for op in after.ops() if op.kind == Kind.send and op.reads[0].blocks > 1}
    assert sent <= {2, 4, 6}


def test_the_engine_need_not_keep_the_order_of_a_ring():
    """Every conflict is ordered on the rank itself, so that messages of one lane may overlap."""
    from dovetail.run.engine import needs_order

    for name in FAMILIES:
        assert not needs_order(assert_inlined(called("all_reduce", 4, range(4), [8]), family(name)))


def test_scratch_is_apart_for_each_call_and_has_a_free_name():
    text = """
program twice ranks 3
buffer x input 12
buffer partial output 4
lane net net
collective reduce_scatter 0 1 2
"""
    for rank in range(3):
        text += f"rank {rank} lane net\n"
        for x, y in ((0, 0), (6, 2)):
            text += f"  collective reduce_scatter x[{x}:{x + 6}] -> partial[{y}:{y + 2}] group 0 1 2\n"
    after = assert_inlined(parse(text), family("ring"))
    (scratch,) = [buffer for buffer in after.buffers if buffer.role == "scratch"]
    assert scratch.name == "partial_"
    writes = [(op.rank, region) for op in after.ops() for region in op.writes if region.buffer == "partial_"]
    for rank, slots in enumerate(scratch.slots):
        halves = {region.offset // (slots // 2) for where, region in writes if where == rank}
        assert halves == {0, 1}


FUSED = """
program fused ranks 3
buffer input input 1
buffer output output 1
lane a net
channel 0->1 0 depth 1
channel 1->2 0 depth 1
rank 0 lane a
  send input[0:1] to 1
rank 1 lane a
  recv_copy_send from 0 -> output[0:1] to 2
rank 2 lane a
  recv from 1 -> output[0:1]
"""

FORWARD = "recv_copy_send from 0 -> output[0:1] to 2"


@pytest.mark.parametrize(
    ("algorithm", "why"),
    [
        (FUSED, "op 1 'recv_copy_send' of algorithm 'fused'"),
        (FUSED.replace("ranks 3", "ranks 4"), "no algorithm for 3 ranks"),
        (FUSED.replace(FORWARD, "recv from 0 -> output[0:1]"), "does not complete"),
        (FUSED.replace(FORWARD, "recv from 0 -> input[0:1]\n  send input[0:1] to 2"), "input overwritten"),
    ],
)
def test_algorithms_that_do_not_fit_are_refused(algorithm, why):
    with pytest.raises(ProgramError, match=why):
        inline_collectives(called("all_reduce", 3, range(3), [3]), lambda *_: parse(algorithm))


THROUGH = """
program through ranks 2
buffer input input 1
buffer output output 2
buffer t scratch 1
lane a net
channel 0->1 0 depth 1
channel 1->0 0 depth 1
rank 0 lane a
  copy input[0:1] -> output[0:1]
  copy input[0:1] -> t[0:1]
  send t[0:1] to 1
  recv from 1 -> t[0:1]
  copy t[0:1] -> output[1:2]
rank 1 lane a
  copy input[0:1] -> output[1:2]
  recv from 0 -> t[0:1]
  copy t[0:1] -> output[0:1]
  copy input[0:1] -> t[0:1]
  send t[0:1] to 0
"""


def test_parts_that_an_algorithm_cannot_keep_apart_are_refused():
    """Its scratch holds the part of one rank, then that of the other."""
    assert_inlined(called("all_gather", 2, (0, 1), [3, 3]), lambda *_: parse(THROUGH))
    with pytest.raises(ProgramError, match="cannot keep apart"):
        inline_collectives(called("all_gather", 2, (0, 1), [2, 3]), lambda *_: parse(THROUGH))


def test_an_algorithm_that_is_wrong_is_found_out():
    """Planted: one message of a ring replaces what is there, where it should be added."""
    text = to_text(family("ring")("all_reduce", 3, False))
    planted = parse(text.replace("recv_reduce from 2 input[1:2] -> output", "recv from 2 -> output", 1))
    assert to_text(planted) != text
    after = inline_collectives(called("all_reduce", 3, range(3), [6]), lambda *_: planted)
    assert not verify(after).checks["result"].ok


@pytest.mark.parametrize("name", FAMILIES)
def test_an_order_that_is_lost_is_found_out(name, monkeypatch):
    """Planted: nothing waits for what touches its slots."""
    monkeypatch.setattr(member_steps._Touched, "before", lambda self, step: iter(()))
    after = inline_collectives(called("all_reduce", 3, range(3), [6]), family(name))
    assert not verify(after).checks["races"].ok


def test_chunks_cut_at_other_places_are_found_out(monkeypatch):
    """Planted: the first member cuts its array as if it were a slot shorter."""
    bounds, calls = collective_calls.bounds, []

    def planted(slots, parts, unit):
        calls.append(slots)
        return bounds(slots - (len(calls) == 1), parts, unit)

    monkeypatch.setattr(collective_calls, "bounds", planted)
    after = inline_collectives(called("all_reduce", 3, range(3), [7]), family("ring"))
    assert not verify(after).ok
