"""Alternating runs: a ratio for each pair, an interval without assumptions, and a verdict only where it allows one."""

from __future__ import annotations

import random

import pytest

from dovetail.accelerate.contest import FASTER, SLOWER, UNCLEAR, WANTED, Ratio, alternate


def test_runs_alternate_and_begin_with_each_in_turn():
    order: list[str] = []

    def run(name, seconds):
        def once():
            order.append(name)
            return seconds

        return once

    ratio = alternate(run("without", 2.0), run("with", 1.0), 3)
    assert order == ["without", "with", "with", "without", "without", "with"]
    assert ratio.ratios == (0.5, 0.5, 0.5)


def test_a_drift_favours_neither():
    """Each run takes 1 % longer than the one before, whichever it is: the median says that there is no difference."""
    clock = iter(1.01**i for i in range(100))
    ratio = alternate(lambda: next(clock), lambda: next(clock), 20)
    assert ratio.value == pytest.approx(1, abs=1e-3)
    assert ratio.verdict == UNCLEAR


def test_the_interval_contains_the_true_median_as_often_as_it_says():
    draw = random.Random(7)
    for pairs in (5, 9):
        hits = 0
        for _ in range(2000):
            low, high = Ratio(tuple(draw.lognormvariate(0, 0.3) for _ in range(pairs))).interval
            hits += low <= 1 <= high
        coverage = Ratio((1.0,) * pairs).coverage
        assert coverage >= WANTED
        assert hits / 2000 == pytest.approx(coverage, abs=0.02)


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ((0.8, 0.9, 0.85, 0.99, 0.9), FASTER),
        ((1.2, 1.1, 1.01, 1.3, 1.2), SLOWER),
        ((0.8, 0.9, 0.85, 1.01, 0.9), UNCLEAR),
        ((0.5,) * 4, UNCLEAR),
        ((0.5,), UNCLEAR),
        ((0.8, 0.9, 0.85, 1.9, 0.9, 0.9, 0.9, 0.9, 0.9), FASTER),
    ],
)
def test_verdicts(ratios, verdict):
    assert Ratio(ratios).verdict == verdict
