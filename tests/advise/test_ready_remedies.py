"""Sends whose data were there before: seen by the recorder, before writing files, or one by one after their work."""

from __future__ import annotations

from dataclasses import replace

import pytest
from replay_models import US, Calls, ModelBuilder

from dovetail.advise.advise import Advice, advise_model
from dovetail.trace.analysis.replay_model import Ready, ReplayModel

ROUNDS = 20


def advised(builder: ModelBuilder, model: ReplayModel) -> Advice:
    return advise_model(model, lambda row: builder.sites.get(row, ""), lambda rows: builder.sites[rows[0]])


def saved(advice: Advice, words: str) -> float:
    return sum(it.saves_s for it in advice.findings if it.kind == "send_earlier" and words in it.evidence)


@pytest.mark.parametrize(("after_us", "saves_us"), [(2000, 2000), (500, 500), (0, 0)])
def test_data_that_were_ready_before_a_receive_are_sent_before_it(after_us, saves_us):
    """Three ranks in a chain: each takes, works 2 ms, and gives what was there `after_us` before the end of that."""
    builder, ready = ModelBuilder(3), dict[int, Ready]()
    for _ in range(ROUNDS):
        numbers = [builder.message(rank, rank + 1, 64) for rank in (0, 1)]
        for rank in range(3):
            if rank:
                builder.call(rank, "take", ("recv", numbers[rank - 1]), ("received", numbers[rank - 1]))
            builder.work(rank, 2000 * US)
            if rank < 2:
                builder.call(rank, "give", ("send", numbers[rank]))
                ready |= {numbers[rank]: Ready(builder.rows - 1, after_us * US)} if after_us else {}
        builder.all_reduce("sum")
    found = advised(builder, replace(builder.model(), ready=ready))
    assert saved(found, "ready") == pytest.approx(2 * ROUNDS * saves_us * US, rel=0.05, abs=1e-6)
    assert after_us < 2000 or found.findings[0].kind == "send_earlier"


@pytest.mark.parametrize("writes", [True, False])
def test_files_are_written_after_the_send(writes):
    builder = Calls(2)
    for _ in range(ROUNDS):
        number = builder.message(0, 1, 64)
        builder.alone(0, "log", "libc write" if writes else "libc read", 3000, 1 << 20)
        builder.call(0, "give", ("send", number))
        builder.call(1, "take", ("recv", number), ("received", number))
        builder.work(1, 3000 * US)
        builder.all_reduce("sum")
    found = advised(builder, builder.model())
    assert saved(found, "writes files") == pytest.approx(ROUNDS * 3000 * US * writes, rel=0.05)


@pytest.mark.parametrize("ranks", [2, 3])
def test_answers_to_several_ranks_are_sent_one_by_one(ranks):
    builder, others = ModelBuilder(ranks), range(1, ranks)
    for _ in range(ROUNDS):
        numbers = {rank: builder.message(0, rank, 64) for rank in others}
        builder.work(0, 2000 * US)
        builder.call(0, "give", *(("send", number) for number in numbers.values()))
        for rank in others:
            builder.call(rank, "take", ("recv", numbers[rank]), ("received", numbers[rank]))
            builder.work(rank, (3000 if rank == 1 else 1000) * US)
        builder.all_reduce("sum")
    saves_us = 1000 if ranks == 3 else 0  # the first of two has its message after half of the work
    assert saved(advised(builder, builder.model()), "then sends") == pytest.approx(ROUNDS * saves_us * US, rel=0.05)
