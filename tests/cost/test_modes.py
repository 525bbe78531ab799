"""modes and eager_limit: several speeds and their shares, no false alarms; which sends wait for a late receiver."""

from __future__ import annotations

import numpy as np
import pytest
from link_curves import LINKS, shaped_100mbit, sweep

from dovetail.core import CostError
from dovetail.cost import Samples, eager_limit, fit, modes

SLOW, FROM = 1.98, 65536


def exchange(seed: int, share: float, repeats: int = 20, by_sweep: bool = False) -> Samples:
    """Messages both ways at once or in turn: from 64 KiB on, a share of timings, or of sweeps, takes twice as long."""
    samples = sweep(shaped_100mbit, seed, repeats=repeats)
    rng = np.random.default_rng(seed)
    slow = (
        rng.permutation(repeats)[samples.repeat] < share * repeats if by_sweep else rng.random(len(samples.x)) < share
    )
    seconds = np.where(slow & (samples.x >= FROM), SLOW, 1.0) * samples.seconds
    return Samples(samples.x, seconds, samples.repeat)


@pytest.mark.parametrize("by_sweep", [False, True])
@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_two_speeds_are_reported_with_their_shares(share: float, by_sweep: bool) -> None:
    fast, slow = modes(exchange(1, share, by_sweep=by_sweep))
    assert (fast.ratio, slow.ratio) == (1.0, pytest.approx(SLOW, rel=0.02))
    assert slow.share == pytest.approx(share, abs=0.1)
    assert fast.share + slow.share == pytest.approx(1.0)
    assert min(slow.x) >= FROM
    assert np.array(slow.seconds) == pytest.approx(SLOW * shaped_100mbit(slow.x), rel=0.05)


@pytest.mark.parametrize(("share", "followed"), [(0.3, 1.0), (0.7, SLOW)])
@pytest.mark.parametrize("repeats", [5, 20])
def test_a_fit_follows_the_commoner_mode_and_says_so(share: float, followed: float, repeats: int) -> None:
    curve = fit(exchange(2, share, repeats))
    x = np.array([1, 4, 16, 64, 128]) * float(FROM)
    assert np.median(np.abs(curve.seconds(x) / shaped_100mbit(x) / followed - 1)) <= 0.01
    if repeats == 20:
        assert [mode.ratio for mode in curve.modes] == [1.0, pytest.approx(SLOW, rel=0.02)]
        assert curve.provenance["mode"].startswith("1 of 2" if followed == 1.0 else "2 of 2")


def test_either_mode_can_be_asked_for() -> None:
    samples = exchange(3, 0.5)
    fast, slow = (fit(samples, mode=mode).seconds(1 << 20) for mode in ("fastest", "slowest"))
    assert slow / fast == pytest.approx(SLOW, rel=0.01)
    with pytest.raises(CostError, match="most, fastest or slowest"):
        fit(samples, mode="best")


def test_noise_and_outliers_are_not_modes() -> None:
    sweeps = [sweep(link, seed, repeats=n) for link in LINKS.values() for seed in range(10) for n in (5, 15)]
    assert sum(len(modes(samples)) > 1 for samples in sweeps) <= len(sweeps) // 100


def test_three_speeds_and_a_single_size() -> None:
    rng = np.random.default_rng(0)
    times = np.concatenate([level * np.exp(0.01 * rng.normal(size=10)) for level in (1.0, 2.0, 5.0)])
    found = modes(Samples.of({4096: list(times)}))
    assert [mode.ratio for mode in found] == pytest.approx([1.0, 2.0, 5.0], rel=0.05)
    assert [mode.share for mode in found] == pytest.approx([1 / 3] * 3)
    assert [mode.share for mode in modes(Samples.of({4096: list(times[:10])}))] == [1.0]


def test_modes_need_samples() -> None:
    with pytest.raises(CostError, match="no samples"):
        modes(Samples.of({}))


LATE = 0.03


@pytest.mark.parametrize(
    ("early", "waits", "limit", "first_waiting"),
    [
        ((1024, 32768), (65536, 131072), 32768, 65536),
        ((1024, 524288), (), 524288, None),
        ((), (1024, 65536), 0, 1024),
    ],
)
def test_the_eager_limit_is_the_last_size_before_the_first_that_waits(
    early: tuple[int, ...], waits: tuple[int, ...], limit: int, first_waiting: int | None
) -> None:
    timings = {**dict.fromkeys(early, [5e-6] * 5), **dict.fromkeys(waits, [LATE + 1e-4] * 5)}
    found = eager_limit(Samples.of(timings), LATE)
    assert (found.limit_bytes, found.waits_bytes, found.mixed) == (limit, first_waiting, ())


def test_mixed_sizes_are_reported_and_decided_by_most() -> None:
    fast, late = 5e-6, LATE + 1e-4
    timings = {
        1024: [fast] * 19 + [late],  # one slow timing in twenty does not count
        4096: [fast, fast, late],
        8192: [fast, late, late],
        16384: [fast] * 3,  # early again, although a smaller size waits
        32768: [late] * 3,
    }
    found = eager_limit(Samples.of(timings), LATE)
    assert (found.limit_bytes, found.waits_bytes, found.mixed) == (4096, 8192, (4096, 8192, 16384))


def test_an_eager_limit_needs_samples_and_a_delay() -> None:
    with pytest.raises(CostError, match="no samples"):
        eager_limit(Samples.of({}), LATE)
    with pytest.raises(CostError, match="late_s"):
        eager_limit(Samples.of({8: [1.0]}), 0.0)
