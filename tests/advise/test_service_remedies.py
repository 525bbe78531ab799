"""Servers that take messages in a fixed order, or work before they answer; what is begun and waited for at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from replay_models import US, ModelBuilder

from dovetail.advise.advise import Advice, advise_model
from dovetail.advise.finding import Finding
from dovetail.trace.analysis.replay_model import ReplayModel

ROUNDS = 40
SLOW, QUICK = 4000 * US, 1000 * US


def advised(builder: ModelBuilder, model: ReplayModel) -> Advice:
    return advise_model(model, lambda row: builder.sites.get(row, ""), lambda rows: builder.sites.get(rows[0], ""))


def of_kind(advice: Advice, kind: str) -> list[Finding]:
    return [it for it in advice.findings if it.kind == kind]


def served(builder: ModelBuilder, client: int, between_s: float = 0.0) -> None:
    """One request of a client to rank 0, and the answer."""
    asked, answered = builder.message(client, 0, 64), builder.message(0, client, 64)
    for number in (asked, answered):
        builder.messages[number] = replace(builder.messages[number], sent_s=number * US)  # in this order
    builder.call(client, f"ask {client}", ("send", asked))
    builder.call(0, "take", ("recv", asked), ("received", asked))
    builder.work(0, between_s)
    builder.call(0, "answer", ("send", answered))
    builder.call(client, "answered", ("recv", answered), ("received", answered))


def two_clients(alternate: bool) -> ModelBuilder:
    """Rank 0 takes requests of ranks 1 and 2 by turns; their work is long by turns, five times each, or even."""
    builder = ModelBuilder(3)
    for step in range(ROUNDS):
        for client in (1, 2):
            is_slow = (step // 5 + client) % 2 if alternate else step % 2
            builder.work(client, SLOW if is_slow else QUICK)
            served(builder, client)
    return builder


def with_named(model: ReplayModel) -> ReplayModel:
    return replace(model, named=frozenset(range(len(model.messages))))


def test_a_server_with_a_fixed_order_is_the_cause_of_its_clients_waits():
    builder = two_clients(alternate=True)
    first = advised(builder, with_named(builder.model())).findings[0]
    assert (first.kind, first.where) == ("any_order", "take")
    assert first.saves_s == pytest.approx(ROUNDS / 2 * (SLOW - QUICK), rel=0.25)


@pytest.mark.parametrize("is_named", [True, False])
def test_a_fixed_order_is_no_fault_if_requests_come_so_or_any_source_is_taken(is_named):
    builder = two_clients(alternate=not is_named)
    model = builder.model()
    assert not of_kind(advised(builder, with_named(model) if is_named else model), "any_order")


def test_work_of_clients_is_shared_out_if_tasks_were_dealt_by_turns():
    builder = ModelBuilder(3)
    for _ in range(ROUNDS):
        for client, work_s in ((1, SLOW), (2, QUICK)):
            builder.work(client, work_s)
            served(builder, client)
    (found,) = of_kind(advised(builder, with_named(builder.model())), "any_order")
    assert "shares out the work" in found.action
    assert found.saves_s == pytest.approx(ROUNDS * (SLOW - QUICK) / 2, rel=0.2)


@pytest.mark.parametrize("client_s", [SLOW, 0.0])
def test_a_server_answers_first_but_a_worker_has_to_work(client_s):
    builder = ModelBuilder(2)
    for _ in range(ROUNDS):
        builder.work(1, client_s)
        served(builder, 1, between_s=SLOW)
    found = of_kind(advised(builder, builder.model()), "answer_first")
    assert len(found) == (1 if client_s else 0)
    if client_s:
        assert found[0].saves_s == pytest.approx(ROUNDS * SLOW, rel=0.1)
        assert (found[0].cause, found[0].root) == ("", (-1, ""))  # no trace


@pytest.mark.parametrize("at_once", [True, False])
def test_a_sum_that_is_begun_and_waited_for_at_once_comes_before_the_imbalance_that_it_shows(at_once):
    builder = ModelBuilder(2)
    for step in range(ROUNDS):
        works_s = [SLOW if (step + rank) % 2 else QUICK for rank in (0, 1)]
        builder.all_reduce("sum", blocking=False, before=[0.0, 0.0] if at_once else works_s)
        for rank in (0, 1):
            builder.work(rank, works_s[rank] if at_once else 0.0)
    advice = advised(builder, builder.model())
    found = of_kind(advice, "nonblocking")
    if at_once:
        assert advice.findings[0] == found[0]
        assert found[0].where == "sum wait"
    else:
        assert not found
