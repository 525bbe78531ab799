"""Calls in a row that become one, on models whose repair is known: rooted collectives by turns, loops of messages."""

from __future__ import annotations

from dataclasses import replace

import pytest
from replay_models import US, ModelBuilder

from dovetail.advise.advise import advise_model
from dovetail.advise.finding import Finding
from dovetail.trace.analysis.replay_model import FROM_ROOT, TO_ROOT

ROUNDS = 20


def found(builder: ModelBuilder, kind: str) -> Finding | None:
    advice = advise_model(builder.model(), lambda row: builder.sites.get(row, ""), lambda rows: builder.sites[rows[0]])
    return next((it for it in advice.findings if it.kind == kind), None)


@pytest.mark.parametrize(("name", "way", "one_call"), [
    ("MPI_Bcast", FROM_ROOT, "MPI_Allgatherv"), ("MPI_Reduce", TO_ROOT, "MPI_Reduce_scatter"),
    ("MPI_Scatter", FROM_ROOT, "MPI_Alltoall"), ("MPI_Comm_x", FROM_ROOT, ""),
])  # fmt: skip
def test_each_rank_in_turn_as_root_is_one_collective(name, way, one_call):
    builder = ModelBuilder(4)
    for _ in range(ROUNDS):
        for rank in range(4):
            builder.work(rank, 1000 * US)
        builder.all_reduce("meet")
        for root in range(4):
            builder.all_reduce("move", 64)
            builder.collectives[-1] = replace(builder.collectives[-1], name=name, way=way, root=root, seconds=300 * US)
    finding = found(builder, "merge")
    assert (finding is not None) == bool(one_call)
    if finding is not None:
        assert f"one {one_call} of all elements" in finding.action
        assert finding.saves_s == pytest.approx(ROUNDS * 3 * 300 * US, rel=0.25)  # roots do not wait for one another


@pytest.mark.parametrize(("loop_us", "packs_us", "saves_us"), [(4, 0, 4), (0, 0, 0), (2, 2, 2)])
def test_what_one_more_call_costs_its_loop_goes_with_the_call(loop_us, packs_us, saves_us):
    """The time between two calls of a loop in Python, but not the work that only some of them have."""
    builder = ModelBuilder(2)
    count = 20
    for _ in range(ROUNDS):
        for rank in (0, 1):
            builder.work(rank, 1000 * US)
        for i in range(count):
            number = builder.message(0, 1, 8)
            builder.work(0, (loop_us + (packs_us if i % 2 else 0)) * US)
            builder.call(0, "send", ("send", number))
            builder.within[0] = 2 * US
            builder.call(1, "recv", ("recv", number), ("received", number))
        builder.all_reduce("sum")
    finding = found(builder, "block")
    assert finding is not None
    assert finding.saves_s == pytest.approx(ROUNDS * (count - 1) * (2 + saves_us) * US, rel=0.1)
