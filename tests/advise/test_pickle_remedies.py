"""Objects that mpi4py pickles, on models whose repair is known."""

from __future__ import annotations

import pytest
from replay_models import US, Calls

from dovetail.advise.advise import Advice, advise_model

ROUNDS = 20
ARRAYS = "pickle dumps array"


def advised(builder: Calls) -> Advice:
    return advise_model(builder.model(), lambda row: builder.sites.get(row, ""), lambda rows: builder.sites[rows[0]])


def gathered(sizes_ahead: bool, dumps: str = ARRAYS) -> Calls:
    """In each step an object of each rank: 300 us to pickle, a call for sizes, 200 us for memory, 500 us to load."""
    builder = Calls(2)
    for _ in range(ROUNDS):
        for rank in (0, 1):
            builder.work(rank, 2000 * US)
            builder.alone(rank, "gather", dumps, 300)
        if sizes_ahead:
            builder.all_reduce("gather", 8)
        for rank in (0, 1):
            builder.work(rank, 200 * US)
        builder.all_reduce("gather", 1 << 20)
        for rank in (0, 1):
            builder.alone(rank, "gather", "pickle loads", 500)
    return builder


@pytest.mark.parametrize(("sizes_ahead", "saves_us"), [(True, 300 + 60 + 200 + 500), (False, 300 + 500)])
def test_arrays_are_passed_without_pickling_and_without_sizes_ahead(sizes_ahead, saves_us):
    first = advised(gathered(sizes_ahead)).findings[0]
    assert (first.kind, first.is_sure, first.where) == ("pickle", True, "gather")
    assert first.saves_s == pytest.approx(ROUNDS * saves_us * US, rel=0.01)
    assert "arrays" in first.evidence


def test_objects_without_arrays_may_have_to_be_pickled():
    (found,) = (it for it in advised(gathered(True, "pickle dumps")).findings if it.kind == "pickle")
    assert not found.is_sure
    assert "if these objects are arrays" in found.action


def test_work_between_a_reduction_and_a_gather_stays():
    """A small collective of another place is no size."""
    builder = Calls(2)
    for _ in range(ROUNDS):
        builder.all_reduce("sum", 8)
        for rank in (0, 1):
            builder.alone(rank, "gather", ARRAYS, 300)
            builder.work(rank, 2000 * US)
        builder.all_reduce("gather", 1 << 20)
    (found,) = (it for it in advised(builder).findings if it.kind == "pickle")
    assert found.saves_s == pytest.approx(ROUNDS * 300 * US, rel=0.01)
