"""Imbalance distinguished from chance, on models whose repair is known."""

from __future__ import annotations

import numpy as np
import pytest
from replay_models import US, ModelBuilder
from trace_calls import call, trace_of
from trace_files import NAMES, event, pair, write_process

from dovetail.advise.advise import Advice, advise, advise_model
from dovetail.trace.analysis.replay_model import FROM_ROOT, CollectiveCall


def advised(builder: ModelBuilder) -> Advice:
    return advise_model(builder.model(), lambda row: builder.sites.get(row, ""), lambda rows: builder.sites[rows[0]])


def imbalance_s(advice: Advice) -> float:
    return sum(it.saves_s for it in advice.findings if it.kind == "imbalance")


def test_the_last_task_of_a_queue_is_an_imbalance_though_all_before_is_even():
    """Each rank takes tasks of 10 ms; the last that rank 0 takes is of 40 ms, and all meet after it."""
    builder = ModelBuilder(2)
    builder.all_reduce("begin")
    for rank in (0, 1):
        builder.work(rank, 0.2)
    builder.work(0, 0.04)
    builder.all_reduce("sum")
    assert imbalance_s(advised(builder)) == pytest.approx(0.02, rel=0.02)


@pytest.mark.parametrize("prepares_ms", [0, 70])
def test_evidence_names_all_the_work_that_the_remedy_shares(prepares_ms):
    """Rank 0 has 6 ms of work for 2 of rank 1 in each of 20 steps, and `prepares_ms` more before the first."""
    builder = ModelBuilder(2)
    for rank, works_ms in enumerate((10 + prepares_ms, 10)):
        builder.work(rank, works_ms * 1000 * US)
    builder.all_reduce("sum")
    for _ in range(20):
        for rank, works_ms in enumerate((6, 2)):
            builder.work(rank, works_ms * 1000 * US)
        builder.all_reduce("sum")
    found = advised(builder)
    (evidence,) = (it.evidence for it in found.findings if it.kind == "imbalance")
    assert imbalance_s(found) == pytest.approx(20 * 2e-3 + prepares_ms / 2 * 1e-3, rel=0.02)
    further = "; between the beginning and sum the slowest rank computes 35.00 ms longer than the mean"
    assert evidence.endswith(further if prepares_ms else "ranks that end earlier wait")


@pytest.mark.parametrize("by_chance", [True, False])
def test_ranks_that_differ_by_chance_are_no_imbalance(by_chance):
    """In each of 60 steps a rank takes 5 % longer or shorter than the mean: by chance, or always the same."""
    builder, drawn = ModelBuilder(4), np.random.default_rng(7).normal(0, 0.05, (60, 4))
    fixed = np.array([0.07, 0.0, -0.02, -0.05])
    for row in drawn if by_chance else [fixed] * 60:
        for rank in range(4):
            builder.work(rank, 10_000 * US * (1 + float(row[rank])))
        builder.all_reduce("sum")
    found = imbalance_s(advised(builder))
    assert found == pytest.approx(0.0 if by_chance else 60 * 0.07 * 10_000 * US, rel=0.02)


def broadcast(builder: ModelBuilder) -> None:
    number = len(builder.collectives)
    builder.collectives.append(CollectiveCall(number, "MPI_Bcast", (0, 1), FROM_ROOT, 0, 8, 10 * US))
    for rank in (0, 1):
        builder.call(rank, "bcast", ("join", number), ("joined", number))


def test_a_rank_that_only_takes_results_works_before_it_takes_them():
    """Rank 0 gives the weights, waits for rank 1's work of 8 ms, and takes its result."""
    builder = ModelBuilder(2)
    for _ in range(20):
        broadcast(builder)
        builder.work(1, 8000 * US)
        result = builder.message(1, 0, 64)
        builder.call(1, "give", ("send", result))
        builder.call(0, "take", ("recv", result), ("received", result))
    assert imbalance_s(advised(builder)) == pytest.approx(20 * 4000 * US, rel=0.02)


@pytest.mark.parametrize("waits", [True, False])
def test_a_root_that_waits_for_buffers_would_not_if_the_others_were_as_quick(waits):
    """Rank 1 works 6 ms a step, rank 0, the root, 2 ms: it waits in each second broadcast, or takes as long in all."""
    builder = ModelBuilder(2)
    for i in range(20):
        broadcast(builder)
        builder.within[0] = (8000 if i % 2 else 0) * US if waits else 4000 * US
        for rank, works in enumerate((2000, 6000)):
            builder.work(rank, works * US)
    assert imbalance_s(advised(builder)) == pytest.approx(20 * 2000 * US if waits else 0.0, rel=0.1)


@pytest.mark.parametrize("name", ["MPI_Win_fence", "MPI_Win_sync"])
def test_ranks_meet_in_fences_of_their_window(tmp_path, monkeypatch, name):
    """Rank 0 works 6 ms before each fence, rank 1 2 ms; it waits there, unless the call is local."""
    monkeypatch.setitem(NAMES, 15, name)
    window = {"comm": 1, "size": 2, "number": 0, "window": True}
    for rank, works in enumerate((6, 2)):
        events = []
        for i in range(20):
            events += call(15, 6.1 * i + works, 6.1 * (i + 1), event("window", pair(-1, 1)))
        write_process(tmp_path, rank, {1: events}, notes=[window])
    found = advise(trace_of(tmp_path))
    assert imbalance_s(found) == pytest.approx(20 * 2e-3 if name == "MPI_Win_fence" else 0.0, rel=0.06)
    assert not {it.kind for it in found.findings} & {"seldom", "merge", "nonblocking"}


def test_work_of_one_rank_after_an_exchange_is_shared_after_it():
    """Every 5th step rank 0 alone works 12 ms after the exchange; the other's work before it stays as long as it is."""
    builder = ModelBuilder(2)
    for i in range(60):
        there, back = builder.message(0, 1, 64), builder.message(1, 0, 64)
        for rank, mine, theirs in ((0, there, back), (1, back, there)):
            builder.work(rank, 3000 * US)
            builder.call(rank, "swap", ("send", mine), ("recv", theirs), ("received", theirs))
        builder.work(0, (12_000 if i % 5 == 4 else 0) * US)
        builder.all_reduce("sum")
    assert imbalance_s(advised(builder)) == pytest.approx(12 * 6000 * US, rel=0.05)
