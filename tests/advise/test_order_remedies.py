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


def test_a_small_sum_may_be_needed_seldom_only():
    builder = ModelBuilder(2)
    for _ in range(64):
        for rank in (0, 1):
            builder.work(rank, 100 * US)
        builder.all_reduce("sum")
    (found,) = (it for it in advised(builder, builder.model()).findings if it.kind == "seldom")
    assert (found.kind, found.confidence) == ("seldom", "medium")
    assert found.saves_s == pytest.approx(64 * 60 * US, rel=0.1)  # a bound: all of it


@pytest.mark.parametrize(("name", "seen"), [("MPI_Allreduce", True), ("MPI_Bcast", False), ("MPI_Alltoall", False)])
def test_only_a_reduction_of_much_data_may_be_needed_seldom(name, seen):
    """Sums may add up locally first."""
    builder = ModelBuilder(2)
    for _ in range(64):
        for rank in (0, 1):
            builder.work(rank, 100 * US)
        builder.all_reduce("sum", 12000)
    builder.collectives = [replace(it, name=name) for it in builder.collectives]
    assert (saving(advised(builder, builder.model()), "seldom") > 0) == seen


def test_messages_of_one_rank_are_taken_in_the_order_in_which_it_sent_them():
    """Rank 0 takes the message that is sent last first, by its tag, and works on each."""
    builder = ModelBuilder(2)
    for step in range(ROUNDS):
        numbers = [builder.message(1, 0, 64) for _ in range(3)]
        for place, number in enumerate(reversed(numbers)):
            sent_s = (step * 10000 + place * 1000) * US
            builder.messages[number] = replace(builder.messages[number], key=numbers.index(number), sent_s=sent_s)
            builder.work(1, 1000 * US)
            builder.call(1, "send", ("send", number))
        for number in numbers:
            builder.call(0, "recv", ("recv", number), ("received", number))
            builder.sites[builder.rows - 1] = "recv"
            builder.work(0, 1000 * US)
        builder.all_reduce("barrier")
    barriers(builder)
    assert saving(advised(builder, builder.model()), "any_order") == pytest.approx(ROUNDS * 2000 * US, rel=0.1)


def test_missing_work_is_put_where_the_other_ranks_work():
    """All work lies before an exchange within the step: shared evenly, both ranks do half of it there."""
    builder = ModelBuilder(2)
    for step in range(ROUNDS):
        builder.work(step % 2, 4000 * US)
        there, back = builder.message(0, 1, 64), builder.message(1, 0, 64)
        builder.call(0, "swap", ("send", there), ("recv", back), ("received", back))
        builder.call(1, "swap", ("send", back), ("recv", there), ("received", there))
        builder.sites |= dict.fromkeys((builder.rows - 2, builder.rows - 1), "swap")
        builder.all_reduce("sum")
    assert saving(advised(builder, builder.model()), "imbalance") == pytest.approx(ROUNDS * 2000 * US, rel=0.1)


def test_collectives_with_longer_work_between_them_than_they_take_are_not_merged():
    builder = ModelBuilder(2)
    for _ in range(200):
        for rank in (0, 1):
            builder.work(rank, 3 * US)
        builder.all_reduce("sum")
    assert saving(advised(builder, builder.model()), "merge") > 0
    builder.collectives = [replace(it, seconds=1 * US) for it in builder.collectives]
    assert saving(advised(builder, replace(builder.model(), collectives=tuple(builder.collectives))), "merge") == 0


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


def test_changes_of_a_changed_model_are_replayed():
    """Steps that a change leaves with slightly less than no work do not stop a replay."""
    builder = ModelBuilder(2)
    for rank in (0, 1):
        builder.work(rank, 10 * US)
    builder.all_reduce("sum")
    model = builder.model()
    steps = [[s._replace(seconds=-1e-9) if i == 0 else s for i, s in enumerate(each)] for each in model.steps]
    assert makespan_s(model.with_steps(steps)) == pytest.approx(60 * US)
