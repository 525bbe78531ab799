"""Curve: evaluation, range, inverse, n_half; curves that fall are refused."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core import CostError, DovetailError
from dovetail.cost import Curve, Mode, Segment
from dovetail.cost.curve import MANY

MIB = float(1 << 20)
US = 1e-6
# The fit of an all-reduce in seed 000, converted from microseconds over MiB to seconds over bytes.
SEED = Curve(
    "bytes",
    (
        Segment(0, 14.769 * US, 27.0622573 * US / MIB, -0.9698202 * US / MIB**2),
        Segment(8 * MIB, (13.58491263 * 8 + 61.508333) * US, 13.58491263 * US / MIB),
    ),
)


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    gaps = draw(st.lists(st.floats(1, 1e6), min_size=1, max_size=6))
    shape = [draw(st.tuples(st.floats(0, 1e-2), st.floats(0, 1e-6))) for _ in gaps]
    segments, at, seconds = [], 0.0, 0.0
    for gap, (jump, slope) in zip(gaps, shape, strict=True):
        seconds = (segments[-1].at(at) if segments else 0.0) + jump
        segments.append(Segment(at, seconds, slope))
        at += gap
    return Curve("bytes", tuple(segments), high=at)


def test_a_two_piece_polynomial_is_evaluated_as_printed() -> None:
    x = np.array([0.0, 1.0, 6.0, 7.999, 8.0, 64.0])
    below, above = -0.9698202 * x**2 + 27.0622573 * x + 14.769, 13.58491263 * x + 61.508333
    assert SEED.seconds(x * MIB) == pytest.approx(np.where(x < 8, below, above) * US, rel=1e-12)
    assert SEED.breaks == (8 * MIB,)


@given(curves(), st.lists(st.floats(0, 1), min_size=2, max_size=40))
def test_a_cost_never_falls(curve: Curve, shares: list[float]) -> None:
    joints = [b for at in curve.breaks for b in (math.nextafter(at, 0), at, math.nextafter(at, math.inf))]
    x = np.sort([*(share * curve.high for share in shares), *joints])
    assert np.all(np.diff(curve.seconds(x)) >= 0)


@given(curves(), st.floats(0, 1))
def test_inverse_is_the_greatest_size_that_costs_no_more(curve: Curve, share: float) -> None:
    least, most = curve.seconds(curve.low), curve.seconds(curve.high)
    budget = least + share * (most - least)
    x = curve.inverse(budget, extrapolate=True)
    assert curve.seconds(min(x, curve.high)) <= budget * (1 + 1e-9) + 1e-12
    if x * (1 + 1e-6) + 1e-9 < curve.high:
        assert curve.seconds(x * (1 + 1e-6) + 1e-9) >= budget * (1 - 1e-9) - 1e-12


def test_inverse_at_a_jump_stays_below_it() -> None:
    curve = Curve("bytes", (Segment(0, 1.0, 0.0), Segment(100, 2.0, 0.01)), high=300)
    assert math.floor(curve.inverse(1.5)) == 99
    assert curve.inverse(2.5) == 150
    with pytest.raises(CostError, match="nothing costs as little"):
        curve.inverse(0.5)
    with pytest.raises(CostError, match="known from 0 to 300"):
        curve.inverse(10.0)
    assert curve.inverse(10.0, extrapolate=True) == pytest.approx(900)
    flat = Curve("bytes", (Segment(0, 1.0, 0.0),), high=10)
    with pytest.raises(CostError, match="costs less than 2 s"):
        flat.inverse(2.0, extrapolate=True)


def test_inverse_of_the_curve_of_the_seed() -> None:
    assert SEED.inverse(SEED.seconds(6 * MIB)) == pytest.approx(6 * MIB)
    assert SEED.inverse(SEED.seconds(20 * MIB)) == pytest.approx(20 * MIB)


@pytest.mark.parametrize("x", [-1.0, math.nan, [5.0, math.nan], 10.5, [0.5, 3.0], 0.5])
def test_a_curve_refuses_sizes_outside_its_range(x: object) -> None:
    curve = Curve("rows", (Segment(1, 1.0, 1.0),), low=1, high=10)
    with pytest.raises(CostError, match=r"known from 1 to 10 rows|negative or NaN"):
        curve.seconds(x)


def test_extrapolation_is_flat_below_and_straight_above() -> None:
    curve = Curve("rows", (Segment(1, 1.0, 1.0, 0.5),), low=1, high=3)
    assert curve.seconds([0, 1, 3], extrapolate=True).tolist() == [1.0, 1.0, 5.0]
    assert curve.seconds(4.0, extrapolate=True) == pytest.approx(5.0 + 3.0)
    with pytest.raises(CostError, match="negative"):
        curve.seconds(-1, extrapolate=True)


def test_a_number_gives_a_number_and_an_array_its_shape() -> None:
    assert isinstance(SEED.seconds(5.0), float)
    assert SEED.seconds(np.zeros((2, 3))).shape == (2, 3)
    assert SEED.seconds([]).shape == (0,)


def test_n_half_comes_from_the_curve() -> None:
    behind_burst = Curve("bytes", (Segment(1, 6e-6, 40e-9), Segment(6e3, 250e-6, 84e-9)), low=1, high=1e7)
    x = behind_burst.n_half()
    assert behind_burst.seconds(x) / x == pytest.approx(2 * 84e-9)
    assert x < 200
    latency_times_rate = behind_burst.segments[1].at(0.0) / 84e-9
    assert latency_times_rate < 0  # the usual formula would give a negative size
    with pytest.raises(CostError, match="not reached"):
        Curve("bytes", (Segment(0, 1.0, 1e-9),), high=1e6).n_half()


@pytest.mark.parametrize(
    ("segments", "bounds", "message"),
    [
        ((), {}, "needs a segment"),
        ((Segment(0, math.nan, 0),), {}, "finite"),
        ((Segment(0, -1.0, 1.0),), {}, "negative at 0"),
        ((Segment(0, 1.0, -1e-9),), {}, "falls after 0"),
        ((Segment(0, 1.0, 1.0, -0.1),), {"high": 10}, "falls after 0"),
        ((Segment(0, 1.0, 1.0, -0.1),), {}, "falls after 0"),
        ((Segment(0, 1.0, 1.0), Segment(5, 5.9, 1.0)), {}, "falls at 5"),
        ((Segment(0, 1.0, 1.0), Segment(0, 5.9, 1.0)), {}, "one after another"),
        ((Segment(9, 1.0, 1.0), Segment(5, 5.9, 1.0)), {}, "one after another"),
        ((Segment(0, 1.0, 1.0),), {"low": 5, "high": 4}, "from low to high"),
    ],
)
def test_a_curve_that_falls_or_is_invalid_is_refused(
    segments: tuple[Segment, ...], bounds: dict[str, float], message: str
) -> None:
    with pytest.raises(CostError, match=message):
        Curve("bytes", segments, **bounds)


def test_the_non_monotone_start_of_a_vendor_model_is_refused() -> None:
    """18 us up to 1/16 MiB, then 16.46 us: the time falls as the message grows."""
    with pytest.raises(CostError, match="the cost falls at 65536 bytes"):
        Curve("bytes", (Segment(0, 18e-6, 0.0), Segment(65536, 16.46e-6, 25e-12)))


@given(curve=curves(), sizes=st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_many_points_cost_what_each_costs_alone(curve: Curve, sizes: list[int]) -> None:
    """Repeated sizes are evaluated once; also if no size is repeated, or only the last one differs."""
    points = np.append(np.repeat(np.array(sizes) * curve.high / 4, MANY), 0.0)
    assert np.array_equal(curve.seconds(points), curve._evaluate(points))


def test_a_factor_may_fall_but_has_no_inverse() -> None:
    factor = Curve.through([1, 1000], [2.0, 1.1], rising=False, high=1000)
    assert factor.seconds([1, 1000]).tolist() == [2.0, 1.1]
    for ask in (factor.n_half, lambda: factor.inverse(1.5)):
        with pytest.raises(CostError, match="may fall"):
            ask()
    with pytest.raises(CostError, match="negative"):
        Curve("bytes", (Segment(0, 1.0, -1.0),), high=2, rising=False)


def test_a_curve_survives_a_round_trip() -> None:
    fields = {"x": (1.0,), "residuals": (0.01,), "interval": ((0.9, 1.1),), "samples": {"schema": "any"}}
    mode = Mode(0.4, 2.0, (8.0,), (1.5,))
    curve = Curve("bytes", SEED.segments, 0.0, 4e9, "emulated", modes=(mode,), provenance={"mpi": "mpich"}, **fields)
    again = Curve.from_json(json.loads(json.dumps(curve.to_json())))
    assert again == curve
    assert Curve.from_json(json.loads(json.dumps(SEED.to_json()))).high == math.inf


def test_malformed_documents_are_refused() -> None:
    with pytest.raises(CostError, match="malformed curve"):
        Curve.from_json({"schema": "dovetail.curve/1"})
    with pytest.raises(CostError, match="malformed curve"):
        Curve.from_json({**SEED.to_json(), "segments": [[0]]})
    with pytest.raises(CostError, match="falls at 5"):
        Curve.from_json({**SEED.to_json(), "segments": [[0, 1, 1], [5, 2, 1]]})
    with pytest.raises(DovetailError, match=r"curve/1"):
        Curve.from_json({**SEED.to_json(), "schema": "x"})
