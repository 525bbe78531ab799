"""The limits of effort can fail: they catch what grows too fast, and forgive what a busy machine adds."""

import time
from itertools import accumulate

import effort
import pytest
from effort import assert_quick, ratio

BETWEEN = 30  # of work that grows tenfold: more than ten times as much, less than its square


def plain_turns(count: int):
    def call() -> None:
        for _ in range(count):
            pass

    return call


def test_quadratic_growth_is_reported_from_linear():
    assert ratio(plain_turns(100_000), plain_turns(10_000), BETWEEN) < BETWEEN
    assert ratio(plain_turns(1000**2), plain_turns(100**2), BETWEEN) > BETWEEN


@pytest.fixture
def short_loop(monkeypatch):
    monkeypatch.setattr(effort, "TURNS", 30_000)


@pytest.mark.usefixtures("short_loop")
def test_more_loops_than_allowed_are_refused():
    assert_quick(plain_turns(2 * 30_000), 6)
    with pytest.raises(AssertionError, match="loops of a million turns; 6 are allowed"):
        assert_quick(plain_turns(20 * 30_000), 6)


@pytest.mark.usefixtures("short_loop")
def test_one_quick_try_is_enough():
    tries = []

    def call() -> int:
        tries.append(None)
        plain_turns(20 * 30_000 if len(tries) < 4 else 10)()
        return len(tries)

    assert assert_quick(call, 6) == 4


@pytest.mark.usefixtures("short_loop")
def test_waiting_is_no_effort():
    assert_quick(lambda: time.sleep(0.05), 6)


def spent(*seconds: float):
    """A clock, read before and after each call, by which the calls take so long."""
    times = accumulate(s for each in seconds for s in (0.0, each))
    return lambda: next(times)


def test_a_ratio_is_of_the_least_times():
    clock = spent(9, 1, 2, 1, 6, 0.5)
    assert ratio(int, int, 5, clock) == 4


def test_rounds_go_on_while_there_is_too_much():
    clock = spent(9, 1, 9, 1, 9, 1, 9, 1, 3, 1)
    assert ratio(int, int, 5, clock) == 3
    with pytest.raises(StopIteration):  # it was the last round
        clock()


def test_rounds_end():
    clock = spent(*[9, 1] * 20)
    assert ratio(int, int, 5, clock) == 9
