"""Sends that come after work which the message does not need, distinguished from chains and from imbalance."""

from __future__ import annotations

import pytest
from replay_models import US, ModelBuilder

from dovetail.advise.advise import Advice, advise_model

ROUNDS = 20


def advised(builder: ModelBuilder) -> Advice:
    return advise_model(builder.model(), lambda row: builder.sites.get(row, ""), lambda rows: builder.sites[rows[0]])


def saving(advice: Advice, kind: str) -> float:
    return sum(it.saves_s for it in advice.findings if it.kind == kind)


def exchange(builder: ModelBuilder, works_before: tuple[int, int], works_after: tuple[int, int]) -> None:
    """Both ranks work so many us before they send to each other, and so many after they have received."""
    numbers = [builder.message(rank, 1 - rank, 64) for rank in (0, 1)]
    for rank in (0, 1):
        builder.work(rank, works_before[rank] * US)
        builder.call(rank, "irecv", ("recv", numbers[1 - rank]))
        builder.call(rank, "isend", ("send", numbers[rank]))
        builder.call(rank, "wait", ("received", numbers[1 - rank]))
        builder.work(rank, works_after[rank] * US)


@pytest.mark.parametrize(("before", "after", "saves_us"), [
    ((4000, 10), (0, 3990), 4000),  # by order only: each works 4 ms
    ((4000, 4000), (0, 0), 0),
    ((4000, 1000), (0, 0), 0),  # more work, not late by order
])  # fmt: skip
def test_a_rank_that_works_first_sends_first(before, after, saves_us):
    builder = ModelBuilder(2)
    for _ in range(ROUNDS):
        exchange(builder, before, after)
        builder.all_reduce("sum")
    advice = advised(builder)
    assert saving(advice, "send_earlier") == pytest.approx(ROUNDS * saves_us * US, rel=0.05, abs=2e-3)
    if saves_us:
        assert advice.findings[0].kind == "send_earlier"
        assert "rank 0 works" in advice.findings[0].evidence


@pytest.mark.parametrize("answers", [True, False])
def test_what_a_rank_computes_of_a_message_is_not_sent_before_it(answers):
    """Rank 0 asks, rank 1 works and answers, or passes its work on to rank 2, which never sends back."""
    builder = ModelBuilder(3)
    for at in range(ROUNDS):
        asked = builder.message(0, 1, 64, sent_s=float(at))
        builder.call(0, "ask", ("send", asked))
        builder.call(1, "take", ("recv", asked), ("received", asked))
        builder.work(1, 2000 * US)
        to = 0 if answers else 2
        given = builder.message(1, to, 64, sent_s=at + 0.5)
        builder.call(1, "give", ("send", given))
        builder.call(to, "get", ("recv", given), ("received", given))
        builder.work(2, 1000 * US)
    assert saving(advised(builder), "send_earlier") == 0


@pytest.mark.parametrize("is_ring", [True, False])
def test_a_ring_is_no_chain(is_ring):
    """Rank 0 works 4 ms before it sends to rank 1, which works then; what rank 2 sends comes back to rank 0, or not."""
    builder = ModelBuilder(3)
    for _ in range(ROUNDS):
        numbers = [builder.message(rank, (rank + 1) % 3, 64) for rank in range(3 if is_ring else 2)]
        builder.work(0, 4000 * US)
        for rank in range(3):
            taken = [numbers[rank - 1]] if rank or is_ring else []
            given = [numbers[rank]] if rank < len(numbers) else []
            begins = [*(("recv", n) for n in taken), *(("send", n) for n in given)]
            builder.call(rank, "begin", *begins)
            builder.call(rank, "wait", *(("received", n) for n in taken))
        builder.work(1, 4000 * US)
        builder.all_reduce("sum")
    assert (saving(advised(builder), "send_earlier") > 0.3 * ROUNDS * 4000 * US) == is_ring
