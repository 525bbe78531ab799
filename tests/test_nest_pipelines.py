"""Nests whose iterations need one another, on ranks: every cut and grain is proved, and gives the nest's own bits."""

import pytest
from pipeline_runs import check, native, schedule

from dovetail.plan.wishes import wish_class

GRIDS = {
    "sync_p2p": ("23x17", 3),
    "gauss_seidel2d": ("19x18", 4),
    "sor2d": ("18x19", 3),
    "lcs": ("21x22", 1),
    "smith_waterman": ("22x21", 1),
    "triple_nest": ("9x11x10", 1),
}


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("overlapped", [False, True])
def test_shipped(name, ranks, overlapped):
    grid, steps = GRIDS[name]
    wish = wish_class(name)(grid, steps)
    for way in (way for mapped in wish.pipelined.forward for way in wish._ways(ranks, mapped)):
        for grain in (1, 5, 100):
            check(wish, schedule(way.cut, way.mapped, grain, overlapped), seed=ranks)


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_compiled(name, ranks):
    grid, steps = GRIDS[name]
    wish = wish_class(name)(grid, steps)
    for way in (way for mapped in wish.pipelined.forward[:2] for way in list(wish._ways(ranks, mapped))[-2:]):
        check(wish, schedule(way.cut, way.mapped, 4, True), seed=ranks, run=native)
