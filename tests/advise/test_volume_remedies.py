"""Remedies for data that few need, and for collectives by hand, on models whose repair is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from replay_models import DELAYS, US, ModelBuilder

from dovetail.advise.advise import advise_model
from dovetail.advise.finding import Finding
from dovetail.trace.analysis.replay_model import FROM_ROOT, TO_ROOT, CollectiveCall, ReplayModel

ROUNDS = 24
CALL_S = 40 * US  # of the root of a star, for each message


def found(builder: ModelBuilder, kind: str, model: ReplayModel | None = None) -> Finding | None:
    model = builder.model() if model is None else model
    advice = advise_model(model, lambda row: builder.sites.get(row, ""), lambda rows: builder.sites[rows[0]])
    return next((it for it in advice.findings if it.kind == kind), None)


@pytest.mark.parametrize(("name", "num_bytes", "seen"), [
    ("MPI_Allgather", 1 << 20, True), ("MPI_Allgatherv_c", 1 << 20, True), ("MPI_Allgather", 64, False),
    ("MPI_Alltoall", 1 << 20, False),
])  # fmt: skip
def test_what_is_given_to_all_may_be_needed_by_neighbours_only(name, num_bytes, seen):
    builder = ModelBuilder(4)
    for _ in range(ROUNDS):
        builder.all_reduce("gather", num_bytes)
        builder.collectives[-1] = replace(builder.collectives[-1], name=name, seconds=2000 * US)
        for rank in range(4):
            builder.work(rank, 1000 * US)
    number = builder.message(0, 1, 8)
    builder.call(0, "send", ("send", number))
    builder.call(1, "recv", ("recv", number), ("received", number))
    finding = found(builder, "volume")
    assert (finding is not None) == seen
    if finding is not None:
        assert finding.saves_s == pytest.approx(ROUNDS * (2000 - 100) * US, rel=0.05)
        assert finding.confidence == "medium"


@pytest.mark.parametrize(("name", "num_bytes", "seen"), [
    ("MPI_Gather", 1 << 20, True), ("MPI_Gatherv", 1 << 20, True), ("MPI_Gather", 64, False),
    ("MPI_Reduce", 1 << 20, False),
])  # fmt: skip
def test_a_whole_field_may_be_gathered_seldom_only(name, num_bytes, seen):
    """The root copies the data of each step for 2 ms."""
    builder = ModelBuilder(3)
    for number in range(ROUNDS):
        call = CollectiveCall(number, name, (0, 1, 2), TO_ROOT, 0, num_bytes, 10 * US)
        builder.collectives.append(call)
        for rank in range(3):
            builder.work(rank, 1000 * US)
            builder.call(rank, "gather", ("join", number), ("joined", number))
        builder.within[0] = 2000 * US
    finding = found(builder, "volume")
    assert (finding is not None) == seen
    if finding is not None:
        assert finding.saves_s == pytest.approx(ROUNDS * 2000 * US, rel=0.05)
        assert not finding.is_sure


@pytest.mark.parametrize(("fields", "num_bytes"), [(1, 1 << 20), (5, 1 << 20), (5, 512)])
def test_of_several_long_messages_in_a_row_some_may_not_have_changed(fields, num_bytes):
    builder = ModelBuilder(2)
    for _ in range(ROUNDS):
        numbers = [builder.message(0, 1, num_bytes, rendezvous=True) for _ in range(fields)]
        for number in numbers:
            builder.call(0, "send", ("send", number), ("sent", number))
            builder.call(1, "recv", ("recv", number), ("received", number))
            builder.sites |= dict.fromkeys((builder.rows - 2,), "swap")
        for rank in (0, 1):
            builder.work(rank, 10000 * US)
    assert (found(builder, "volume") is not None) == (fields > 1 and num_bytes > 1 << 16)


def star(builder: ModelBuilder, size: int) -> None:
    ranks = range(1, len(builder.steps))
    up, down = (
        [builder.message(*way, size) for way in ways] for ways in ([(r, 0) for r in ranks], [(0, r) for r in ranks])
    )
    for r, n in zip(ranks, up, strict=True):
        builder.call(r, "up", ("send", n))
        builder.call(0, "take", ("recv", n), ("received", n))
        builder.within[0] = CALL_S
    for r, n in zip(ranks, down, strict=True):
        builder.call(0, "down", ("send", n))
        builder.within[0] = CALL_S
        builder.call(r, "get", ("recv", n), ("received", n))


def ring(builder: ModelBuilder, size: int) -> None:
    """Twice around: the sum, then its result."""
    count = len(builder.steps)
    hops = [(k % count, (k + 1) % count) for k in range(2 * count - 2)]
    before = None
    for src, dst in hops:
        if before is not None:
            builder.call(src, "take", ("recv", before), ("received", before))
        before = builder.message(src, dst, size)
        builder.call(src, "hand on", ("send", before))
    builder.call(hops[-1][1], "last", ("recv", before), ("received", before))


def borders(builder: ModelBuilder, size: int) -> None:
    """Every rank sends to both neighbours, then receives."""
    count = len(builder.steps)
    ways = [(r, s) for r in range(count) for s in (r - 1, r + 1) if 0 <= s < count]
    numbers = {way: builder.message(*way, size) for way in ways}
    for (src, _), n in numbers.items():
        builder.call(src, "send", ("send", n))
    for (_, dst), n in numbers.items():
        builder.call(dst, "recv", ("recv", n), ("received", n))


def rounds_of(
    pattern: Callable[[ModelBuilder, int], None], ranks: int, size: int, work_us: float = 500
) -> ModelBuilder:
    builder = ModelBuilder(ranks)
    for _ in range(ROUNDS):
        for rank in range(ranks):
            builder.work(rank, work_us * US)
        pattern(builder, size)
    return builder


@pytest.mark.parametrize(("pattern", "ranks", "size"), [(star, 2, 8), (star, 4, 8), (star, 5, 4096), (ring, 4, 8)])
def test_a_collective_by_hand_is_found_by_what_reaches_whom(pattern, ranks, size):
    """A library's collective takes one message per level of a tree; the call that it replaces keeps its own time."""
    builder = rounds_of(pattern, ranks, size)
    finding = found(builder, "collective")
    assert finding is not None
    now_s = builder.model().makespan_s
    then_s = ROUNDS * (500 * US + float(DELAYS(size)) * (ranks - 1).bit_length() + CALL_S / 2 * (pattern is star))
    assert finding.saves_s == pytest.approx(now_s - then_s, rel=0.1)
    assert finding.is_sure == (ranks > 2)
    assert finding.bound_s > finding.saves_s


@pytest.mark.parametrize(
    ("pattern", "ranks", "size"), [(borders, 2, 8), (borders, 4, 8), (borders, 3, 4096), (star, 2, 4096)]
)
def test_borders_are_no_collective(pattern, ranks, size):
    assert found(rounds_of(pattern, ranks, size), "collective") is None


def test_a_shift_along_two_ranks_is_no_collective():
    """With MPI_Sendrecv a rank at the border only receives, then only sends."""
    builder = rounds_of(star, 2, 8)
    model = replace(builder.model(), combined=frozenset(range(len(builder.messages))))
    assert found(builder, "collective", model) is None


def test_work_at_the_root_between_messages_is_no_collective():
    """A rank that computes between taking and sending does more than combine."""
    builder = ModelBuilder(3)
    for _ in range(ROUNDS):
        for rank in range(3):
            builder.work(rank, 500 * US)
        up = [builder.message(r, 0, 8) for r in (1, 2)]
        for r, n in zip((1, 2), up, strict=True):
            builder.call(r, "up", ("send", n))
            builder.call(0, "take", ("recv", n), ("received", n))
        builder.work(0, 400 * US)
        for r in (1, 2):
            n = builder.message(0, r, 8)
            builder.call(0, "down", ("send", n))
            builder.call(r, "get", ("recv", n), ("received", n))
    assert found(builder, "collective") is None


@pytest.mark.parametrize(("roots", "work_us", "one"), [((0, 0), 0, True), ((0, 1), 0, False), ((0, 0), 400, False)])
def test_a_reduction_and_a_broadcast_of_its_result_are_one_call(roots, work_us, one):
    builder = ModelBuilder(3)
    for _ in range(ROUNDS):
        for name, way, root in (("MPI_Reduce", TO_ROOT, roots[0]), ("MPI_Bcast", FROM_ROOT, roots[1])):
            number = len(builder.collectives)
            builder.collectives.append(CollectiveCall(number, name, (0, 1, 2), way, root, 64, 100 * US))
            for rank in range(3):
                builder.call(rank, name, ("join", number), ("joined", number))
                builder.work(rank, (work_us if way == TO_ROOT else 500) * US)
    finding = found(builder, "collective")
    assert (finding is not None) == one
    if finding is not None:
        assert finding.saves_s == pytest.approx(ROUNDS * 100 * US, rel=0.1)
        assert "MPI_Allreduce" in finding.action
