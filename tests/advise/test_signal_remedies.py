"""Messages that only order the ranks: tokens, empty messages, tiny tasks; and causes for which there is no remedy."""

from __future__ import annotations

import pytest
from replay_models import US, ModelBuilder

from dovetail.advise.advise import Advice, advise_model

ROUNDS = 40


def advised(builder: ModelBuilder) -> Advice:
    return advise_model(builder.model(), lambda row: builder.sites.get(row, ""), lambda rows: builder.sites[rows[0]])


def saving(advice: Advice, kind: str) -> float:
    return sum(it.saves_s for it in advice.findings if it.kind == kind)


@pytest.mark.parametrize("num_bytes", [4, 4096])
def test_ranks_that_work_when_a_token_comes_work_at_once(num_bytes):
    """A block of 4 KB is no token: the next rank works on it."""
    builder = ModelBuilder(3)
    for _ in range(ROUNDS):
        numbers = [builder.message(rank, rank + 1, num_bytes) for rank in (0, 1)]
        for rank in range(3):
            if rank:
                builder.call(rank, "take", ("recv", numbers[rank - 1]), ("received", numbers[rank - 1]))
            builder.work(rank, 1000 * US)
            if rank < 2:
                builder.call(rank, "give", ("send", numbers[rank]))
        builder.all_reduce("sum")
    expected_s = ROUNDS * 2000 * US if num_bytes == 4 else 0.0
    assert saving(advised(builder), "turns") == pytest.approx(expected_s, rel=0.1)


@pytest.mark.parametrize("num_bytes", [0, 8])
def test_messages_without_data_are_left_out(num_bytes):
    """Rank 1 waits for rank 0, which works longer, only for a message that brings nothing."""
    builder = ModelBuilder(2)
    for i in range(ROUNDS):
        number = builder.message(i % 2, 1 - i % 2, num_bytes)
        builder.work(i % 2, 1000 * US)
        builder.call(i % 2, "give", ("send", number))
        builder.call(1 - i % 2, "take", ("recv", number), ("received", number))
    expected_s = ROUNDS / 2 * 1000 * US if num_bytes == 0 else 0.0
    assert saving(advised(builder), "needless") == pytest.approx(expected_s, rel=0.15)


@pytest.mark.parametrize("work_us", [10, 1000])
def test_tiny_tasks_come_several_by_one_message(work_us):
    """Eight tasks by one message save 7/8 of the two messages of each; tasks of 1 ms are large enough."""
    builder = ModelBuilder(2)
    count = 8 * ROUNDS
    for _ in range(count):
        ask, answer = builder.message(1, 0, 8), builder.message(0, 1, 8)
        builder.call(1, "ask", ("send", ask))
        builder.call(0, "serve", ("recv", ask), ("received", ask))
        builder.call(0, "answer", ("send", answer))
        builder.call(1, "take", ("recv", answer), ("received", answer))
        builder.work(1, work_us * US)
    expected_s = 7 / 8 * count * 100 * US if work_us == 10 else 0.0
    assert saving(advised(builder), "tasks") == pytest.approx(expected_s, rel=0.1)


@pytest.mark.parametrize("apart_us", [1000, 0])
def test_each_of_several_messages_is_worked_on_when_it_is_there(apart_us):
    """Rank 0 makes three blocks; rank 1 waits for all, then works 3 ms. Blocks that come at once save nothing."""
    builder = ModelBuilder(2)
    for _ in range(ROUNDS):
        numbers = [builder.message(0, 1, 64, sent_s=float(k)) for k in range(3)]
        for number in numbers:
            builder.work(0, apart_us * US)
            builder.call(0, "give", ("send", number))
        builder.call(1, "post", *(("recv", number) for number in numbers))
        builder.call(1, "wait", *(("received", number) for number in numbers))
        builder.work(1, 3000 * US)
        builder.all_reduce("sum")
    saves_s = ROUNDS * 2 * apart_us * US  # two of three parts of the work while the later blocks are made
    assert saving(advised(builder), "any_order") == pytest.approx(saves_s, rel=0.05, abs=1e-3)
