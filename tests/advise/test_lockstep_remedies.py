"""Stages that advance only together, on models whose repair is known."""

from __future__ import annotations

import pytest
from replay_models import US, ModelBuilder

from dovetail.advise.advise import Advice, advise_model

BLOCKS = 40


def advised(builder: ModelBuilder) -> Advice:
    return advise_model(builder.model(), lambda row: builder.sites.get(row, ""), lambda rows: builder.sites[rows[0]])


def chain(stages: int, ahead: int | None, answer: int = 0, back_from: int | None = None) -> ModelBuilder:
    """Each block passes all stages; then the last one, or `back_from`, answers to the first.

    `ahead`: blocks by which the first stage may be ahead of an answer; None: it waits for none.
    """
    builder, given, answers = ModelBuilder(stages), [0] * stages, []
    for k in range(BLOCKS):
        for rank in range(stages):
            if rank:
                builder.call(rank, "take", ("recv", given[rank - 1]), ("received", given[rank - 1]))
            elif ahead is not None and k > ahead:
                builder.call(rank, "hear", ("recv", answers[k - ahead - 1]), ("received", answers[k - ahead - 1]))
            builder.work(rank, 2000 * US)
            if rank + 1 < stages:
                given[rank] = builder.message(rank, rank + 1, 4096)
                builder.call(rank, "give", ("send", given[rank]))
            if rank == (stages - 1 if back_from is None else back_from) and ahead is not None:
                answers.append(builder.message(rank, 0, answer))
                if k < BLOCKS - ahead - 1:
                    builder.call(rank, "answer", ("send", answers[k]))
    return builder


@pytest.mark.parametrize("stages", [2, 3])
def test_a_stage_that_waits_for_an_answer_to_each_block_runs_ahead(stages):
    advice = advised(chain(stages, 0))
    first = advice.findings[0]
    assert (first.kind, first.is_sure) == ("lockstep", True)
    free = advised(chain(stages, None)).replayed_s
    assert first.saves_s == pytest.approx(advice.replayed_s - free, rel=0.05)
    assert "run ahead by" in first.action


def test_an_answer_of_one_number_may_be_needed():
    (found,) = (it for it in advised(chain(2, 0, answer=8)).findings if it.kind == "lockstep")
    assert not found.is_sure
    assert "turns" not in {it.kind for it in advised(chain(2, 0, answer=8)).findings}


@pytest.mark.parametrize("builder", [chain(2, None), chain(2, 1), chain(2, 0, answer=4096)])
def test_stages_that_run_ahead_and_results_are_no_lock_step(builder):
    assert "lockstep" not in {it.kind for it in advised(builder).findings}


def test_turns_of_a_rank_that_gives_data_to_a_third_are_no_lock_step():
    """The empty messages answer nothing: who sends them has taken no data."""
    builder, back = ModelBuilder(3), -1
    for _ in range(BLOCKS):
        if back >= 0:
            builder.call(0, "hear", ("recv", back), ("received", back))
        builder.work(0, 2000 * US)
        go, data, back = builder.message(0, 1, 0), builder.message(1, 2, 4096), builder.message(1, 0, 0)
        builder.call(0, "go", ("send", go))
        builder.call(1, "wait", ("recv", go), ("received", go))
        builder.work(1, 2000 * US)
        builder.call(1, "give", ("send", data))
        builder.call(1, "back", ("send", back))
        builder.call(2, "take", ("recv", data), ("received", data))
    builder.call(0, "hear", ("recv", back), ("received", back))
    assert "lockstep" not in {it.kind for it in advised(builder).findings}


def meeting(num_bytes: int, back: bool = False) -> ModelBuilder:
    """A chain of three stages that work by turns longer, and meet at each block; `back`: data come back, too."""
    builder = ModelBuilder(3)
    before = [-1] * 3
    for k in range(BLOCKS):
        for rank in range(3):
            builder.work(rank, (3000 if (k + rank) % 3 == 0 else 1000) * US)
        now = [builder.message(rank, (rank + 1) % 3, 4096) for rank in range(2 + back)]
        for rank, number in enumerate(now):
            builder.call(rank, "give", ("send", number))
        for rank, number in enumerate(before):
            if number >= 0:
                builder.call((rank + 1) % 3, "take", ("recv", number), ("received", number))
        before = [*now, -1, -1][:3]
        builder.all_reduce("meet", num_bytes)
    for rank, number in enumerate(before):
        if number >= 0:
            builder.call((rank + 1) % 3, "take", ("recv", number), ("received", number))
    return builder


@pytest.mark.parametrize(("num_bytes", "back", "is_seen"), [(8, False, True), (8, True, False), (4096, False, False)])
def test_a_chain_that_meets_at_each_block_waits_for_the_slowest(num_bytes, back, is_seen):
    kinds = [it.kind for it in advised(meeting(num_bytes, back)).findings]
    assert ("pace" in kinds) == is_seen
