"""Remedies for ranks that work one after another, on models whose repair is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from replay_models import DELAYS, US, ModelBuilder

from dovetail.advise.advise import Advice, advise_model
from dovetail.trace.analysis.replay_model import ReplayModel

ROUNDS = 12


def advised(builder: ModelBuilder, model: ReplayModel | None = None) -> Advice:
    model = builder.model() if model is None else model
    return advise_model(model, lambda row: builder.sites.get(row, ""), lambda rows: builder.sites[rows[0]])


def savings(builder: ModelBuilder, model: ReplayModel | None = None) -> dict[str, float]:
    advice = advised(builder, model)
    return {it.kind: it.saves_s for it in reversed(advice.findings)} | {"": advice.replayed_s}


def wavefront(num_ranks: int, num_bytes: int, pieces: int) -> ModelBuilder:
    """Sweeps from rank to rank; between them all meet."""
    builder = ModelBuilder(num_ranks)
    for _ in range(4):
        before: list[int] = []
        for rank in range(num_ranks):
            after = []
            for k in range(pieces):
                if before:
                    builder.call(rank, "recv", ("recv", before[k]), ("received", before[k]))
                builder.work(rank, 4000 * US / pieces)
                if rank + 1 < num_ranks:
                    after.append(builder.message(rank, rank + 1, num_bytes // pieces))
                    builder.call(rank, "send", ("send", after[k]))
            before = after
        builder.all_reduce("norm")
    return builder


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_a_wavefront_is_handed_on_in_pieces(num_ranks):
    found = savings(wavefront(num_ranks, 8192, 1))
    gain = found[""] - min(savings(wavefront(num_ranks, 8192, pieces))[""] for pieces in (8, 16, 32))
    assert found["pipeline"] == pytest.approx(gain, rel=0.1)
    assert found["pipeline"] >= found.get("overlap", 0.0) * 0.8


def test_a_pipelined_wavefront_and_a_single_number_are_left_as_they_are():
    piped = savings(wavefront(3, 8192, 64))
    assert piped.get("pipeline", 0.0) < 0.1 * piped[""]
    assert "pipeline" not in savings(wavefront(3, 8, 1))


def test_an_answer_to_a_small_request_is_no_chain():
    """Rank 0 asks for a block, works on it, and asks for the next: it may ask earlier, the block stays whole."""
    builder = ModelBuilder(2)
    for _ in range(ROUNDS):
        ask, block = builder.message(0, 1, 8), builder.message(1, 0, 8192)
        builder.call(0, "ask", ("send", ask))
        builder.call(1, "asked", ("recv", ask), ("received", ask))
        builder.work(1, 2000 * US)
        builder.call(1, "give", ("send", block))
        builder.call(0, "take", ("recv", block), ("received", block))
        builder.work(0, 2000 * US)
    assert "pipeline" not in savings(builder)


def test_a_chain_of_single_numbers_beside_one_of_blocks_stays_as_it_is():
    builder = wavefront(2, 8192, 1)
    for _ in range(ROUNDS):
        one = builder.message(0, 1, 8)
        builder.work(0, 1000 * US)
        builder.call(0, "tell", ("send", one))
        builder.call(1, "hear", ("recv", one), ("received", one))
        builder.work(1, 1000 * US)
        builder.all_reduce("norm")
    assert savings(builder)["pipeline"] > 0


@pytest.mark.parametrize("combined", [False, True])
def test_an_exchange_of_borders_is_no_chain(combined):
    """Both ranks send before they receive; or one shifts to the left, then to the right, with MPI_Sendrecv."""
    builder = ModelBuilder(2)
    for _ in range(ROUNDS):
        there, back = builder.message(0, 1, 8192), builder.message(1, 0, 8192)
        for rank in (0, 1):
            builder.work(rank, 2000 * US)
        if not combined:
            builder.call(0, "send", ("send", there))
        builder.call(1, "send", ("send", back))
        builder.call(0, "recv", ("recv", back), ("received", back))
        if combined:
            builder.call(0, "send", ("send", there))
        builder.call(1, "recv", ("recv", there), ("received", there))
    all_of = frozenset(range(len(builder.messages))) if combined else frozenset[int]()
    assert "pipeline" not in savings(builder, replace(builder.model(), combined=all_of))


def farm(workers: int, serial: bool) -> ModelBuilder:
    """Rank 0 asks each worker in turn; it waits for each answer before it asks the next, or not."""
    builder = ModelBuilder(workers + 1)
    for _ in range(ROUNDS):
        asked = {w: builder.message(0, w, 8) for w in range(1, workers + 1)}
        answers = {w: builder.message(w, 0, 64) for w in asked}
        for w in asked:
            builder.call(0, "ask", ("send", asked[w]))
            if serial:
                builder.call(0, "answer", ("recv", answers[w]), ("received", answers[w]))
            builder.call(w, "task", ("recv", asked[w]), ("received", asked[w]))
            builder.work(w, 3000 * US)
            builder.call(w, "done", ("send", answers[w]))
        for w in () if serial else asked:
            builder.call(0, "answer", ("recv", answers[w]), ("received", answers[w]))
    return builder


@pytest.mark.parametrize("workers", [2, 3])
def test_a_master_asks_all_before_it_waits_for_answers(workers):
    found = savings(farm(workers, serial=True))
    repaired = savings(farm(workers, serial=False))
    assert found["dispatch"] == pytest.approx(found[""] - repaired[""], rel=0.15)
    assert "dispatch" not in repaired
    (evidence,) = (it.evidence for it in advised(farm(workers, serial=True)).findings if it.kind == "dispatch")
    assert evidence.startswith(f"{workers * ROUNDS - 1} answers")
    assert f"another of {workers} ranks" in evidence


def test_one_worker_is_asked_again_after_its_answer_only():
    assert "dispatch" not in savings(farm(1, serial=True))


def elements(between_us: float, answers: bool, delay_us: float = 50) -> dict[str, float]:
    """Two ranks send each other 40 small messages in a row, each by turns; `answers`: rank 1 only answers."""
    builder = ModelBuilder(2)
    for _ in range(ROUNDS):
        for rank in (0, 1):
            builder.work(rank, 1000 * US)
        for _ in range(40):
            there, back = (builder.message(rank, 1 - rank, 48, delay_s=delay_us * US) for rank in (0, 1))
            order = {0: ("send", "recv"), 1: ("recv", "send") if answers else ("send", "recv")}
            for rank, (mine, theirs) in enumerate(((there, back), (back, there))):
                builder.work(rank, between_us * US)
                for what in order[rank]:
                    if what == "send":
                        builder.call(rank, "send", ("send", mine))
                        builder.within[rank] = 5 * US
                    else:
                        builder.call(rank, "recv", ("recv", theirs), ("received", theirs))
    return savings(builder)


def test_messages_that_are_sent_and_received_by_turns_are_merged_unless_they_answer_each_other():
    merged = elements(0.01, answers=False)
    assert merged["block"] == pytest.approx(ROUNDS * 39 * (5 * US + float(DELAYS(48))), rel=0.15)
    assert "temporal_block" not in merged, "no work between them"
    assert "block" not in elements(0.01, answers=True)
    assert "block" not in elements(60, answers=False)
    assert "block" not in elements(4, answers=False, delay_us=5), "what was received may be what is sent next"
