"""Data that go through a root, on models whose repair is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from replay_models import US, ModelBuilder

from dovetail.advise.advise import advise_model
from dovetail.advise.finding import Finding
from dovetail.trace.analysis.replay_model import FROM_ROOT, TO_ROOT

ROUNDS = 20
RANKS = 4


def found(back: str = "MPI_Scatter", rounds: int = ROUNDS, roots: tuple[int, int] = (0, 0)) -> Finding | None:
    """Rank 0 gathers in 200 us, works 1000 us, and gives back in 200 us; all work 2000 us."""
    builder = ModelBuilder(RANKS)
    for _ in range(rounds):
        for rank in range(RANKS):
            builder.work(rank, 2000 * US)
        for name, way, root in (("MPI_Gather", TO_ROOT, roots[0]), (back, FROM_ROOT, roots[1])):
            builder.all_reduce(name, 1 << 20)
            builder.collectives[-1] = replace(builder.collectives[-1], name=name, way=way, root=root, seconds=200 * US)
            if way == TO_ROOT:
                builder.work(0, 1000 * US)
    model = builder.model()
    advice = advise_model(model, lambda row: builder.sites.get(row, ""), lambda rows: builder.sites[rows[0]])
    return next((it for it in advice.findings if it.kind == "volume" and "collects" in it.evidence), None)


def test_data_that_a_root_rearranges_are_exchanged_directly():
    """Each rank then moves a fourth of the data, and does a fourth of the root's work, or none."""
    finding = found()
    assert finding is not None
    assert not finding.is_sure
    assert finding.saves_s == pytest.approx(ROUNDS * (400 * 0.75 + 1000 * 0.75) * US, rel=0.05)
    assert finding.bound_s == pytest.approx(ROUNDS * (400 * 0.75 + 1000) * US, rel=0.05)


@pytest.mark.parametrize("about", [
    {"back": "MPI_Reduce_scatter"}, {"rounds": 8}, {"roots": (0, 1)},
])  # fmt: skip
def test_other_pairs_of_calls_are_no_round_trip(about):
    assert found(**about) is None
