"""Non-blocking collectives hide no more than the work that follows them; how calls are counted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from replay_models import US, ModelBuilder

from dovetail.advise.advise import advise_model
from dovetail.advise.finding import Finding

STEPS, MS = 10, 1000 * US


def exchanges(in_a_row: int, took_s: float, works_s: float, own_share: float = 0.0) -> ModelBuilder:
    """Two ranks that call `in_a_row` collectives of `took_s` each, then work, in each step."""
    builder = ModelBuilder(2)
    for _ in range(STEPS):
        for _ in range(in_a_row):
            builder.all_reduce("sum", 1 << 20)
            builder.collectives[-1] = replace(builder.collectives[-1], seconds=took_s, own_s=own_share * took_s)
        for rank in (0, 1):
            builder.work(rank, works_s)
    return builder


def nonblocking(builder: ModelBuilder) -> Finding | None:
    model = builder.model()
    found = advise_model(model, lambda row: builder.sites.get(row, ""), lambda rows: "sum")
    return next((it for it in found.findings if it.kind == "nonblocking"), None)


def test_collectives_in_a_row_do_not_hide_one_another():
    """Three of 20 ms in a row before 3 ms of work: one of them hides these 3 ms, no more."""
    found = nonblocking(exchanges(3, 20 * MS, 3 * MS))
    assert found is not None
    assert found.saves_s == pytest.approx((STEPS - 1) * 3 * MS, rel=0.2)


def test_a_collective_hides_behind_longer_work():
    found = nonblocking(exchanges(1, 2 * MS, 5 * MS))
    assert found is not None
    assert found.saves_s == pytest.approx(STEPS * 2 * MS, rel=0.2)


def test_what_cpus_do_for_a_collective_cannot_be_hidden():
    assert nonblocking(exchanges(1, 2 * MS, 5 * MS, own_share=1.0)) is None
    half = nonblocking(exchanges(1, 2 * MS, 5 * MS, own_share=0.5))
    assert half is not None
    assert half.saves_s == pytest.approx(STEPS * 1 * MS, rel=0.2)


def test_seldom_and_nonblocking_count_alike():
    builder = ModelBuilder(2)
    for _ in range(40):
        builder.all_reduce("sum", 8)
        builder.collectives[-1] = replace(builder.collectives[-1], seconds=MS)
        for rank in (0, 1):
            builder.work(rank, 2 * MS)
    found = advise_model(builder.model(), lambda row: builder.sites.get(row, ""), lambda rows: "sum").findings
    counts = {it.kind: it.evidence.split(" on each rank")[0] for it in found if it.kind in ("seldom", "nonblocking")}
    assert counts == dict.fromkeys(("seldom", "nonblocking"), "40 calls of MPI_Allreduce")


def test_a_collective_that_another_remedy_made_shorter_than_its_cpu_time():
    """Nothing of it is left to hide."""
    assert nonblocking(exchanges(1, 2 * MS, 5 * MS, own_share=1.5)) is None
