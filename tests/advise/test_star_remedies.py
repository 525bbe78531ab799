"""Messages from one rank to all others, on models whose repair is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from replay_models import DELAYS, US, ModelBuilder

from dovetail.advise.advise import Advice, advise_model

ROUNDS = 20


def advised(builder: ModelBuilder, sums: dict[int, int] | None = None) -> Advice:
    model = replace(builder.model(), sent_checksums=sums or {})
    return advise_model(model, lambda row: builder.sites.get(row, ""), lambda rows: builder.sites[rows[0]])


def star(ranks: int, num_bytes: int = 1 << 20, spent_us: float = 10_000) -> ModelBuilder:
    """Rank 0 sends to each other rank; each send takes it `spent_us`; then all work, and meet."""
    builder = ModelBuilder(ranks)
    for _ in range(ROUNDS):
        for rank in range(1, ranks):
            number = builder.message(0, rank, num_bytes)
            builder.call(0, "give", ("send", number))
            builder.within[0] = spent_us * US
            builder.call(rank, "take", ("recv", number), ("received", number))
        for rank in range(ranks):
            builder.work(rank, 1000 * US)
        builder.all_reduce("meet")
    return builder


@pytest.mark.parametrize("ranks", [4, 8])
def test_one_collective_sends_to_all(ranks):
    (found,) = (it for it in advised(star(ranks)).findings if it.kind == "collective")
    levels = ranks.bit_length() - 1
    before_s = (ranks - 2) * 10_000 * US + float(DELAYS(1 << 20))
    after_s = levels * float(DELAYS(1 << 20))
    assert found.saves_s == pytest.approx(ROUNDS * (before_s - after_s), rel=0.2)
    assert f"to each of {ranks - 1} ranks" in found.evidence
    assert not found.is_sure
    assert "MPI_Scatter" in found.action


def test_a_collective_takes_a_message_for_each_level_of_its_tree():
    each_s = float(DELAYS(1 << 24))
    (found,) = (it for it in advised(star(8, 1 << 24, 0.7 * each_s / US)).findings if it.kind == "collective")
    assert found.saves_s == pytest.approx(ROUNDS * (6 * 0.7 + 1 - 3) * each_s, rel=0.1)


def test_equal_data_are_broadcast():
    builder = star(8)
    sums = dict.fromkeys(range(len(builder.messages)), 7)
    (found,) = (it for it in advised(builder, sums).findings if it.kind == "collective")
    assert found.is_sure
    assert found.action.startswith("MPI_Bcast: ")


def test_two_ranks_need_no_collective():
    assert "collective" not in {it.kind for it in advised(star(2)).findings}
