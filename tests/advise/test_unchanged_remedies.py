"""Collectives that give the same data again, on models whose repair is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from replay_models import DELAYS, US, ModelBuilder

from dovetail.advise.advise import advise_model
from dovetail.advise.finding import Finding
from dovetail.trace.analysis.replay_model import FROM_ROOT, SYNCHRONOUS

ROUNDS = 20
CALL_S = 800 * US


def found(given, way: str = FROM_ROOT) -> Finding | None:
    """Advice on collectives to which a rank gives `given(rank, round)`; None: it gives nothing that is known."""
    builder, checksums = ModelBuilder(2), dict[int, int]()
    for i in range(ROUNDS):
        builder.all_reduce("move", 1 << 20)
        root = 0 if way == FROM_ROOT else -1
        builder.collectives[-1] = replace(builder.collectives[-1], name="MPI_X", way=way, root=root, seconds=CALL_S)
        for rank in (0, 1):
            row = builder.rows - 2 + rank
            checksums |= {} if given(rank, i) is None else {row: given(rank, i)}
            builder.work(rank, 1000 * US)
        builder.all_reduce("sum")
    model = replace(builder.model(), checksums=checksums)
    advice = advise_model(model, lambda row: builder.sites.get(row, ""), lambda rows: builder.sites[rows[0]])
    return next((it for it in advice.findings if it.kind == "unchanged"), None)


@pytest.mark.parametrize(("given", "way", "calls"), [
    (lambda rank, i: None if rank else 7, FROM_ROOT, ROUNDS - 1),
    (lambda rank, i: None if rank else 7 + i, FROM_ROOT, 0),
    (lambda rank, i: None if rank else 7 + i // 4, FROM_ROOT, 15),  # every fourth time other data
    (lambda rank, i: None if rank else 7 + i * (i % 3 > 0), FROM_ROOT, 0),  # fewer than half
    (lambda rank, i: 7, SYNCHRONOUS, ROUNDS - 1),
    (lambda rank, i: 7 + rank * i, SYNCHRONOUS, 0),  # one rank's data change
    (lambda rank, i: 7 if rank else None, SYNCHRONOUS, 0),  # one rank's data are unknown
])  # fmt: skip
def test_what_all_ranks_gave_before_need_not_be_given_again(given, way, calls):
    finding = found(given, way)
    assert (finding.saves_s if finding else 0.0) == pytest.approx(calls * CALL_S, rel=0.01)
    if finding is not None:
        assert f"in {calls} of {ROUNDS} the ranks give what they gave before" in finding.evidence
        assert not finding.is_sure


def test_without_checksums_nothing_is_said():
    assert found(lambda rank, i: None) is None


@pytest.mark.parametrize(("given", "again"), [
    (lambda i: 5, ROUNDS - 1), (lambda i: 1 + i % 9, 0), (lambda i: 5 if i < 10 else None, 0),
])  # fmt: skip
def test_messages_with_the_data_of_the_one_before_need_not_be_sent(given, again):
    builder, sums = ModelBuilder(2), dict[int, int]()
    for i in range(ROUNDS):
        number = builder.message(0, 1, 1 << 17, rendezvous=True, sent_s=float(i))
        sums |= {} if given(i) is None else {number: given(i)}
        for rank in (0, 1):
            builder.work(rank, 1000 * US)
        builder.call(0, "send", ("send", number), ("sent", number))
        builder.call(1, "recv", ("recv", number), ("received", number))
        builder.all_reduce("sum")
    model = replace(builder.model(), sent_checksums=sums)
    advice = advise_model(model, lambda row: builder.sites.get(row, ""), lambda rows: builder.sites[rows[0]])
    finding = next((it for it in advice.findings if it.kind == "unchanged"), None)
    each_s = float(DELAYS(1 << 17))
    assert (finding.saves_s if finding else 0.0) == pytest.approx(again * each_s, rel=0.02)
