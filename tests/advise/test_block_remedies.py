"""Messages that a rank sends in a row, on models whose repair is known: pickled ones, and those to several ranks."""

from __future__ import annotations

import pytest
from replay_models import US, Calls, ModelBuilder

from dovetail.advise.advise import advise_model
from dovetail.advise.finding import Finding

ROUNDS, COUNT = 20, 20


def findings(builder: ModelBuilder) -> list[Finding]:
    advice = advise_model(builder.model(), lambda row: builder.sites.get(row, ""), lambda rows: builder.sites[rows[0]])
    return list(advice.findings)


def pickled(loop_us: float, place: str = "send.py:3") -> Calls:
    """In each round rank 0 sends objects one by one: 4 us to pickle each, 6 us to load it, `loop_us` for the loop."""
    builder = Calls(2)
    for _ in range(ROUNDS):
        for rank in (0, 1):
            builder.work(rank, 1000 * US)
        for _ in range(COUNT):
            number = builder.message(0, 1, 100)
            builder.work(0, loop_us * US)
            builder.alone(0, place, "pickle dumps", 4)
            builder.call(0, place, ("send", number))
            builder.within[0] = 2 * US
            builder.call(1, place, ("recv", number), ("received", number))
            builder.alone(1, place, "pickle loads", 6)
        builder.all_reduce("sum.py:9")
    return builder


@pytest.mark.parametrize("loop_us", [0, 8])
def test_objects_pickled_one_by_one_become_one_object(loop_us):
    """Packing ends the calls, the loop and the pickling of each: it comes before not pickling."""
    first = findings(pickled(loop_us))[0]
    assert (first.kind, first.is_sure) == ("block", True)
    most_us = max(4 + 2 + loop_us, 6)  # of a message on the rank that takes longer
    assert first.saves_s == pytest.approx(ROUNDS * (COUNT - 1) * most_us * US, rel=0.2)


def test_work_of_a_loop_in_c_divides_its_messages():
    assert "block" not in {it.kind for it in findings(pickled(8, "send.c:3"))}


@pytest.mark.parametrize("answers", [False, True])
def test_messages_to_several_ranks_by_turns_become_one_for_each(answers):
    """Rank 0 sends to ranks 1 and 2 by turns. If rank 1 sends each on to rank 3, it may be needed there at once."""
    builder = ModelBuilder(4)
    for _ in range(ROUNDS):
        for rank in range(4):
            builder.work(rank, 1000 * US)
        for i in range(COUNT):
            to = 1 + i % 2
            number = builder.message(0, to, 8)
            builder.call(0, "send", ("send", number))
            builder.within[0] = 20 * US
            builder.call(to, "recv", ("recv", number), ("received", number))
            if answers and to == 1:
                after = builder.message(1, 3, 8)
                builder.call(1, "pass on", ("send", after))
                builder.call(3, "take", ("recv", after), ("received", after))
        builder.all_reduce("sum")
    found = {it.kind: it for it in findings(builder)}
    assert "block" in found
    count = ROUNDS * (COUNT // 2 if answers else COUNT - 2)
    assert found["block"].saves_s == pytest.approx(count * 20 * US, rel=0.25)


def test_messages_of_one_call_are_as_few_as_can_be():
    """A collective among neighbours on a ring of two ranks sends two messages to the same rank."""
    builder = ModelBuilder(2)
    for _ in range(ROUNDS):
        for rank in (0, 1):
            builder.work(rank, 1000 * US)
        numbers = [[builder.message(rank, 1 - rank, 64) for _ in range(2)] for rank in (0, 1)]
        for rank in (0, 1):
            mine, theirs = numbers[rank], numbers[1 - rank]
            builder.within[rank] = 100 * US
            builder.call(rank, "near", *(("send", n) for n in mine), *(("recv", n) for n in theirs))
            builder.call(rank, "wait", *(("received", n) for n in theirs))
    assert "block" not in {it.kind for it in findings(builder)}


def test_messages_by_turns_with_work_after_each_turn_stay_apart():
    builder = ModelBuilder(3)
    for _ in range(ROUNDS):
        for _ in range(COUNT):
            for to in (1, 2):
                sent(builder, 0, to)
            builder.work(0, 300 * US)
        builder.all_reduce("sum")
    assert "block" not in {it.kind for it in findings(builder)}


@pytest.mark.parametrize("between", ["nothing", "work", "a meeting of receivers", "a message of another rank"])
def test_what_a_receiver_does_between_messages_keeps_them_apart_but_receiving_from_others(between):
    """Ranks 0 and 3 send in a row to rank 1. Its loop takes 4 us for each message, 8 between two of a sender."""
    builder = ModelBuilder(4)
    for _ in range(ROUNDS):
        for rank in range(4):
            builder.work(rank, 1000 * US)
        for _ in range(COUNT):
            sent(builder, 0, 1)
            builder.work(1, 4 * US)
            if between == "work":
                builder.work(1, 30 * US)
            if between == "a meeting of receivers":
                builder.all_reduce("meet", group=(1, 2))
            if between == "a message of another rank":
                sent(builder, 3, 1)
                builder.work(1, 4 * US)
        builder.all_reduce("sum")
    parts = between in ("work", "a meeting of receivers")
    assert ("block" in {it.kind for it in findings(builder)}) is not parts


@pytest.mark.parametrize("waits", [False, True])
def test_a_wait_for_an_earlier_message_divides_those_in_a_row(waits):
    builder = ModelBuilder(2)
    for _ in range(ROUNDS):
        for _ in range(COUNT):
            early = builder.message(0, 1, 8)
            builder.call(0, "begin", ("send", early))
            builder.call(1, "recv early", ("recv", early), ("received", early))
            for rank in (0, 1):
                builder.work(rank, 300 * US)
            sent(builder, 0, 1)
            if waits:
                builder.within[0] = 100 * US  # of the send before
                builder.call(0, "wait", ("sent", early))
            sent(builder, 0, 1)
            builder.all_reduce("sum")
    assert ("block" in {it.kind for it in findings(builder)}) is not waits


def sent(builder: ModelBuilder, src: int, dst: int) -> None:
    """A message whose send takes 100 us."""
    number = builder.message(src, dst, 8)
    builder.within[src] = 100 * US
    builder.call(src, "send", ("send", number))
    builder.call(dst, "recv", ("recv", number), ("received", number))
