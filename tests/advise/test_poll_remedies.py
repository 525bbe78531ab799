"""Polls with pauses between them, distinguished from polls with work between them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from replay_models import DELAYS, US, ModelBuilder
from trace_calls import call, sent, taken, trace_of
from trace_files import NAMES, write_process

from dovetail.advise.advise import Advice, advise, advise_model
from dovetail.trace.trace import Trace

ROUNDS = 20


def advised(builder: ModelBuilder, model) -> Advice:
    return advise_model(model, lambda row: builder.sites.get(row, ""), lambda rows: builder.sites[rows[0]])


def saving(advice: Advice, kind: str) -> float:
    return sum(it.saves_s for it in advice.findings if it.kind == kind)


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


def probing(folder, monkeypatch, used: float | None) -> Trace:
    """Rank 1 probes every 5 ms for a message that comes after 6 ms, takes it after 10 ms, and answers.

    `used`: CPU time of rank 1 per second; None: unknown.
    """
    monkeypatch.setitem(NAMES, 15, "MPI_Iprobe")
    asks, answers = [], []
    for i in range(ROUNDS):
        at = 12.0 * i
        asks += [*call(1, at + 6, at + 6.1, sent(1)), *call(2, at + 6.2, at + 11.2, *taken(1))]
        for late in (0, 5, 10):
            answers += call(15, at + late, at + late + 0.01)
        answers += [*call(2, at + 10.1, at + 10.2, *taken(0)), *call(1, at + 11, at + 11.1, sent(0))]
    for rank, events in enumerate((asks, answers)):
        write_process(folder, rank, {1: events})
    trace = trace_of(folder)
    if used is None:
        return trace
    end_s = float(trace.columns["end_s"].max())
    load = {"time_s": [0.0, end_s / 2, end_s], "used_s": [0.0, used * end_s / 2, used * end_s], "waited_s": [0.0] * 3}
    ranks = [about | ({"load": load} if about["rank"] else {}) for about in trace.meta["ranks"]]
    return replace(trace, meta=trace.meta | {"ranks": ranks})


@pytest.mark.parametrize(("used", "saved_ms", "confidence"), [
    (0.1, 4.0, "high"), (0.8, 2.4, "high"), (1.0, 0.0, ""), (None, 4.0, "medium"),
])  # fmt: skip
def test_pauses_between_probes_are_off_the_cpu(tmp_path, monkeypatch, used, saved_ms, confidence):
    advice = advise(probing(tmp_path, monkeypatch, used))
    found = [it for it in advice.findings if it.kind == "poll"]
    assert [it.confidence for it in found] == ([confidence] if confidence else [])
    assert saving(advice, "poll") == pytest.approx(saved_ms * 1e-3 * ROUNDS, rel=0.05)
    if confidence:
        assert (found[0].cause, found[0].root[0]) == ("poll", 1)
