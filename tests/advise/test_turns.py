"""Order that barriers and fences make: ranks that take turns, and a fence after each transfer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from replay_models import US, ModelBuilder

from dovetail.advise.advise import advise_model
from dovetail.advise.finding import Finding

MS = 1000 * US
CYCLES = 20


def advised(builder: ModelBuilder, calls: dict[int, tuple[str, int]] | None = None) -> list[Finding]:
    model = replace(builder.model(), calls=calls or {})
    site = builder.sites
    return list(
        advise_model(
            model, lambda row: site.get(row, ""), lambda rows: ", ".join({site.get(row, "") for row in rows})
        ).findings
    )


def turns(num_ranks: int, order: int, name: str = "MPI_Barrier") -> ModelBuilder:
    """Each rank works 3 ms while the others wait; `order`: 1 by rank, 0 always rank 0."""
    builder = ModelBuilder(num_ranks)
    for turn in range(CYCLES * num_ranks):
        builder.work(turn * order % num_ranks, 3 * MS)
        builder.all_reduce("turn")
        builder.collectives[-1] = replace(builder.collectives[-1], name=name)
    return builder


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_ranks_that_take_turns_by_barriers_are_told_to_work_at_once(num_ranks):
    first = advised(turns(num_ranks, 1))[0]
    assert (first.kind, "take turns" in first.evidence) == ("barrier", True)
    assert first.saves_s == pytest.approx(CYCLES * (num_ranks - 1) * 3 * MS, rel=0.1)


def test_one_rank_that_works_while_all_wait_takes_no_turns():
    assert advised(turns(2, 0))[0].kind == "imbalance"


def test_ranks_that_differ_by_turns_before_a_sum_are_an_imbalance():
    assert "take turns" not in advised(turns(2, 1, "MPI_Allreduce"))[0].evidence


def fences(transfers: int) -> list[Finding]:
    """Ranks that work and get by turns, 1 or 3 ms; a fence after `transfers` of these."""
    builder, calls = ModelBuilder(2), dict[int, tuple[str, int]]()
    for step in range(CYCLES * 4):
        for rank in (0, 1):
            builder.work(rank, (3 if (step + rank) % 2 else 1) * MS)
            calls[builder.row("get")] = ("MPI_Get", 8)
            builder.step(rank, builder.rows - 1, "own", -1)
        if step % transfers == transfers - 1:
            builder.all_reduce("fence")
            builder.collectives[-1] = replace(builder.collectives[-1], name="MPI_Win_fence")
    return advised(builder, calls)


def test_a_fence_after_each_transfer_is_one_too_many():
    (found,) = [it for it in fences(1) if it.kind == "barrier"]
    assert found.saves_s == pytest.approx(CYCLES * 4 * 1 * MS, rel=0.15)
    assert f"{CYCLES * 4} calls of MPI_Win_fence on each rank" in found.evidence


def test_a_fence_after_several_transfers_is_none():
    assert "barrier" not in [it.kind for it in fences(4)]


def test_a_fence_comes_before_the_imbalance_that_it_makes():
    assert fences(1)[0].kind == "barrier"
