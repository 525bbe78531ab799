"""Remedies for waits of one cause each, on models whose repair is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from replay_models import DELAYS, US, ModelBuilder

from dovetail.advise.advise import Advice, advise_model
from dovetail.advise.replay import makespan_s
from dovetail.trace.analysis.delays import Delays
from dovetail.trace.analysis.replay_model import ReplayModel

ROUNDS = 20


def advised(builder: ModelBuilder, model: ReplayModel) -> Advice:
    return advise_model(model, lambda row: builder.sites.get(row, ""), lambda rows: builder.sites.get(rows[0], ""))


def saving(advice: Advice, kind: str) -> float:
    return max((it.saves_s for it in advice.findings if it.kind == kind), default=0.0)


def barriers(builder: ModelBuilder) -> None:
    builder.collectives = [replace(it, name="MPI_Barrier") for it in builder.collectives]


@pytest.mark.parametrize("names", [(), ("MPI_File_write_all",), ("MPI_Win_fence",)])
def test_a_barrier_between_uneven_steps_is_not_needed_unless_files_or_windows_are(names):
    builder = ModelBuilder(2)
    for step in range(ROUNDS):
        for rank in (0, 1):
            builder.work(rank, (3000 if (step + rank) % 2 else 1000) * US)
        builder.all_reduce("barrier")
    barriers(builder)
    number = builder.message(0, 1, 64)
    builder.call(0, "send", ("send", number))
    builder.call(1, "recv", ("recv", number), ("received", number))
    advice = advised(builder, replace(builder.model(), names=names))
    if names:
        assert saving(advice, "barrier") == 0
    else:
        assert advice.findings[0].kind == "barrier"
        assert saving(advice, "barrier") == pytest.approx(ROUNDS * 1000 * US, rel=0.1)


def test_messages_are_taken_as_they_come():
    """Rank 1 sends last, and rank 0 takes its message first, then works on each for 1 ms."""
    builder = ModelBuilder(4)
    for step in range(ROUNDS):
        numbers = {rank: builder.message(rank, 0, 64) for rank in (1, 2, 3)}
        for rank, number in numbers.items():
            sent_s = step * 6000 * US + (4000 - 1000 * rank) * US
            builder.messages[number] = replace(builder.messages[number], sent_s=sent_s)
            builder.work(rank, (4000 - 1000 * rank) * US)
            builder.call(rank, "send", ("send", number))
            builder.call(0, "recv", ("recv", number), ("received", number))
            builder.work(0, 1000 * US)
        builder.all_reduce("barrier")
    barriers(builder)
    advice = advised(builder, builder.model())
    assert advice.findings[0].kind == "any_order"
    assert saving(advice, "any_order") == pytest.approx(ROUNDS * 2000 * US, rel=0.1)


@pytest.mark.parametrize("strict", [True, False])
def test_a_chain_of_synchronous_sends_goes_on_by_standard_sends(strict):
    """Three ranks hand parts on; parts take long by turns."""
    builder, numbers = ModelBuilder(3), []
    for step in range(ROUNDS):
        for rank in range(3):
            if rank > 0:
                builder.call(rank, "recv", ("recv", numbers[-1]), ("received", numbers[-1]))
            builder.work(rank, (2000 if (step + rank) % 2 else 500) * US)
            if rank < 2:
                numbers.append(builder.message(rank, rank + 1, 64, rendezvous=True, synchronous=True))
                builder.call(rank, "send", ("send", numbers[-1]), ("sent", numbers[-1]))
    model = replace(builder.model(), strict=frozenset(numbers if strict else ()))
    free = replace(model, messages=tuple(replace(m, rendezvous=False, synchronous=False) for m in model.messages))
    gain = makespan_s(model) - makespan_s(free)
    assert gain > 0.05 * makespan_s(model)
    assert saving(advised(builder, model), "standard") == pytest.approx(gain if strict else 0.0, rel=0.05)


@pytest.mark.parametrize("is_work", [False, True])
def test_requests_are_waited_for_instead_of_tested_between_pauses(is_work):
    """Rank 1 notices each message up to 2 ms late, and answers; unless the time between tests is work."""
    builder, polled = ModelBuilder(2), {}
    for step in range(ROUNDS):
        there, back = builder.message(0, 1, 64), builder.message(1, 0, 64)
        arrives = (1000 + 100 * (step % 7)) * US
        builder.work(0, arrives)
        builder.call(0, "send", ("send", there))
        builder.call(1, "irecv", ("recv", there))
        builder.work(1, tested := (2000 + (300 * (step % 5) if is_work else 0)) * US)
        polled[builder.rows] = tested
        builder.call(1, "test", ("received", there))
        builder.work(1, 4000 * US - tested if is_work else 10 * US)
        builder.call(1, "answer", ("send", back))
        builder.call(0, "recv", ("recv", back), ("received", back))
    found = saving(advised(builder, replace(builder.model(), polled_s=polled)), "poll")
    if is_work:
        assert found == 0
    else:
        late = sum(2000 - (1000 + 100 * (step % 7)) for step in range(ROUNDS))
        assert found == pytest.approx((late - ROUNDS * float(DELAYS(64)) / US) * US, rel=0.1)


def test_a_small_sum_may_be_needed_seldom_only():
    builder = ModelBuilder(2)
    for _ in range(64):
        for rank in (0, 1):
            builder.work(rank, 100 * US)
        builder.all_reduce("sum")
    assert saving(advised(builder, builder.model()), "seldom") == pytest.approx(56 * 60 * US, rel=0.1)


def test_work_that_moves_between_ranks_is_shared_step_by_step():
    """In sum the ranks' work is equal; in each step one of three has three times as much."""
    builder = ModelBuilder(3)
    for step in range(30):
        for rank in range(3):
            builder.work(rank, (3000 if step % 3 == rank else 1000) * US)
        builder.all_reduce("sum", 1 << 20)
    advice = advised(builder, builder.model())
    assert saving(advice, "imbalance") == pytest.approx(30 * (3000 - 5000 / 3) * US, rel=0.1)
    (evidence,) = (it.evidence for it in advice.findings if it.kind == "imbalance")
    assert "another rank may be the slowest" in evidence


def test_messages_with_tags_of_their_own_are_merged():
    builder = ModelBuilder(2)
    for tag in range(50):
        number = builder.message(0, 1, 8)
        builder.messages[number] = replace(builder.messages[number], key=tag)
        builder.call(0, "send", ("send", number))
        builder.within[0] = 30 * US
        builder.call(1, "recv", ("recv", number), ("received", number))
    short = Delays(DELAYS.num_bytes, DELAYS.seconds)
    found = saving(advised(builder, replace(builder.model(), delays=short)), "block")
    assert found == pytest.approx(49 * 30 * US, rel=0.1)
