"""curve: seconds against bytes, rows or FLOP: monotone, piecewise, with a range of validity and an error."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dovetail.core import CostError, check_schema

SCHEMA = "dovetail.curve/1"
Label = Literal["measured", "emulated", "published", "preset", "prior"]
MANY = 1 << 12  # from this many points on, runs of equal points are evaluated once
_SLACK = 1e-9  # relative tolerance for rounding when monotonicity is checked


class Segment(NamedTuple):
    """A piece of a curve, from `start` to the next segment's: seconds + slope·(x - start) + bend·(x - start)²."""

    start: float
    seconds: float
    slope: float
    bend: float = 0.0

    def at(self, x: float) -> float:
        """Cost in seconds at `x >= start`."""
        step = x - self.start
        return self.seconds + step * (self.slope + self.bend * step)


class Mode(NamedTuple):
    """One of several speeds that a machine alternates between.

    `share`: its share of the samples. `ratio`: its typical time relative to the fastest mode. `x`, `seconds`: the sizes
    at which modes are distinct, and this mode's median there.
    """

    share: float
    ratio: float
    x: tuple[float, ...] = ()
    seconds: tuple[float, ...] = ()


@dataclass(frozen=True)
class Curve:
    """A piecewise cost curve: seconds against bytes, rows or FLOP. Non-decreasing.

    Attributes
    ----------
    x_unit : str
        "bytes", "rows" or "flop".
    segments : tuple of Segment
        Pieces, by rising `start`. Below the first, the cost is that of its start.
    low, high : float
        Measured (or published) range. Outside it, `seconds` raises CostError unless it may extrapolate.
    label : str
        "measured", "published" or "prior".
    x, residuals, interval : tuple
        Fitted points; (fit - sample) / sample at each; 95 % bootstrap interval there, in seconds. Empty if not fitted.
    modes : tuple of Mode
        Two or more if the samples have several speeds. The curve follows one, which `provenance` names.
    provenance, samples : dict
        Origin, and the document of the raw timings.
    rising : bool
        False for a factor, which may fall.

    Examples
    --------

    >>> curve = Curve("bytes", (Segment(0, 1e-6, 1e-9), Segment(1000, 4e-6, 0.5e-9)), high=1e6)
    >>> curve.seconds([0, 500, 1000])
    array([1.0e-06, 1.5e-06, 4.0e-06])
    >>> curve.seconds(2e6)
    Traceback (most recent call last):
    ...
    dovetail.core.errors.CostError: the cost is known from 0 to 1e+06 bytes
      found       2e+06 bytes
      try         measure that far, or allow extrapolation
    """

    x_unit: str
    segments: tuple[Segment, ...]
    low: float = 0.0
    high: float = math.inf
    label: Label = "measured"
    x: tuple[float, ...] = field(default=(), repr=False)
    residuals: tuple[float, ...] = field(default=(), repr=False)
    interval: tuple[tuple[float, float], ...] = field(default=(), repr=False)
    modes: tuple[Mode, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict, repr=False)
    samples: dict[str, Any] = field(default_factory=dict, repr=False)
    rising: bool = True

    def __post_init__(self) -> None:
        _check(self)

    def __hash__(self) -> int:
        return hash((self.x_unit, self.segments, self.low, self.high))

    @classmethod
    def through(cls, x: Sequence[float], seconds: Sequence[float], x_unit: str = "bytes", **fields: Any) -> Curve:
        """Return the curve of straight lines through points; the last one continues to `high`.

        >>> Curve.through([0, 10, 30], [1.0, 2.0, 6.0]).seconds(20.0)
        4.0
        """
        slopes = [float(s) for s in np.diff(seconds) / np.diff(x)] or [0.0]
        rows = zip(x, seconds, [*slopes, slopes[-1]][: len(x)], strict=True)
        segments = tuple(Segment(float(a), float(b), c) for a, b, c in rows)
        return cls(x_unit, segments if len(x) < 2 else segments[:-1], **{"low": float(x[0]), **fields})

    @property
    def breaks(self) -> tuple[float, ...]:
        """Where one segment ends and the next begins, in `x_unit`."""
        return tuple(segment.start for segment in self.segments[1:])

    @property
    def median_error(self) -> float:
        """Median relative distance of the fit from its samples; NaN where there are none."""
        return float(np.median(np.abs(self.residuals))) if self.residuals else math.nan

    @property
    def max_error(self) -> float:
        """Greatest relative distance of the fit from its samples; NaN where there are none."""
        return float(np.max(np.abs(self.residuals))) if self.residuals else math.nan

    @overload
    def seconds(self, x: float, extrapolate: bool = False) -> float: ...

    @overload
    def seconds(self, x: ArrayLike, extrapolate: bool = False) -> Any: ...

    def seconds(self, x: ArrayLike, extrapolate: bool = False) -> Any:
        """Return seconds at `x`: a float for a number, else an array of the same shape.

        With `extrapolate`, costs below the range are that of its start, and the last segment continues above the range
        as a line. Otherwise raises CostError outside the range. Raises CostError for NaN and negative sizes.
        """
        points = np.asarray(x, dtype=np.float64)
        if points.size:
            self._check_range(float(points.min()), float(points.max()), extrapolate)
        result = self._evaluate_runs(points) if points.ndim == 1 and points.size > MANY else self._evaluate(points)
        return float(result) if result.ndim == 0 else result

    def inverse(self, seconds: float, extrapolate: bool = False) -> float:
        """Return the greatest x that costs no more than `seconds`. CostError if none does.

        >>> Curve("rows", (Segment(0, 0.0, 0.5),), high=100).inverse(10.0)
        20.0
        """
        self._check_rising()
        least, most = self._evaluate_one(self.low), self._evaluate_one(self.high)
        if not seconds >= least:
            found = f"{self.low:g} {self.x_unit} cost {least:g} s"
            raise CostError(f"no size costs as little as {seconds:g} s", found=found)
        row = max(i for i, s in enumerate(self.segments) if i == 0 or s.seconds <= seconds)
        stop = self.segments[row + 1].start if row + 1 < len(self.segments) else math.inf
        x = max(_solve(self.segments[row], seconds, stop), self.low)
        if seconds <= most:
            return min(x, self.high)
        if x == math.inf:
            raise CostError(f"any number of {self.x_unit} costs less than {seconds:g} s on this curve")
        self._check_range(self.low, x, extrapolate)
        return x

    def n_half(self) -> float:
        """Return the least x at which x / seconds reaches half of the rate of the last segment.

        The curve decides, not latency x bandwidth, since a segment may have a negative intercept. CostError if the
        range ends before.

        >>> Curve("bytes", (Segment(0, 1e-3, 1e-6),), high=1e6).n_half()
        1000.0
        """
        self._check_rising()
        last = self.segments[-1]
        end = self.high if math.isfinite(self.high) else max(last.start, 1.0)
        slope = last.slope + 2 * last.bend * max(end - last.start, 0.0)
        half = 0.5 / slope if slope > 0 else 0.5 * end / self._evaluate_one(end)
        ends = [*self.breaks, math.inf]
        for segment, stop in zip(self.segments, ends, strict=True):
            x = _first_reach(segment, stop, half)
            if x is not None and x <= self.high:
                return max(x, self.low)
        raise CostError(
            "half of the final rate is not reached in the measured range",
            found=f"{self.low:g} to {self.high:g} {self.x_unit}",
            hint="measure larger sizes",
        )

    def scaled(self, factor: float) -> Curve:
        """Return the curve with every cost multiplied by `factor`."""
        segments = tuple(Segment(s.start, *(factor * c for c in s[1:])) for s in self.segments)
        return Curve(self.x_unit, segments, self.low, self.high, self.label, provenance=dict(self.provenance))

    def to_json(self) -> dict[str, Any]:
        """Return a document with a `schema` field; an infinite `high` is null."""
        shape: dict[str, Any] = {"x_unit": self.x_unit, "segments": [list(s) for s in self.segments], "low": self.low}
        fit = {"x": list(self.x), "residuals": list(self.residuals), "interval": [list(i) for i in self.interval]}
        modes = [mode._asdict() for mode in self.modes]
        end = {"high": self.high if math.isfinite(self.high) else None, "label": self.label}
        origin = {"provenance": dict(self.provenance), "samples": dict(self.samples), "rising": self.rising}
        return {"schema": SCHEMA, **shape, **end, **fit, "modes": modes, **origin}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Curve:
        """Read what `to_json` wrote; fit, modes and provenance may be missing."""
        check_schema(document, SCHEMA)
        try:
            high = document.get("high")
            return cls(
                str(document["x_unit"]),
                tuple(Segment(*map(float, s)) for s in document["segments"]),
                float(document.get("low", 0.0)),
                math.inf if high is None else float(high),
                document.get("label", "measured"),
                tuple(map(float, document.get("x", ()))),
                tuple(map(float, document.get("residuals", ()))),
                tuple((float(a), float(b)) for a, b in document.get("interval", ())),
                tuple(
                    Mode(float(m["share"]), float(m["ratio"]), tuple(m["x"]), tuple(m["seconds"]))
                    for m in document.get("modes", ())
                ),
                dict(document.get("provenance", {})),
                dict(document.get("samples", {})),
                bool(document.get("rising", True)),
            )
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, CostError):
                raise
            raise CostError("malformed curve document", found=f"{type(error).__name__}: {error}") from error

    @cached_property
    def _table(self) -> NDArray[np.float64]:
        """Segments as rows; the last column is the cost at which the next segment begins."""
        later = [segment.seconds if self.rising else math.inf for segment in self.segments[1:]]
        caps = [*later, math.inf]
        return np.array([(*segment, cap) for segment, cap in zip(self.segments, caps, strict=True)], dtype=np.float64)

    def _evaluate(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Evaluate without a range check. Local coordinates and the cap keep the result non-decreasing when rounded."""
        table = self._table
        x = np.maximum(x, max(self.low, table[0, 0]))
        last = table[-1]
        part = last if len(table) == 1 else table[np.searchsorted(table[1:, 0], x, side="right")]
        step = x - part[..., 0]
        bent: NDArray[np.float64] = np.minimum(part[..., 1] + step * (part[..., 2] + part[..., 3] * step), part[..., 4])
        if last[3] == 0.0 or not math.isfinite(self.high):
            return bent
        edge = self.high - last[0]
        slope = last[2] + 2.0 * last[3] * edge
        line = last[1] + edge * (last[2] + last[3] * edge) + (x - self.high) * slope
        return np.where(x > self.high, line, bent)

    def _evaluate_runs(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Evaluate many points, each run of equal ones (pieces of messages, for example) only once."""
        starts = np.append(0, np.flatnonzero(x[1:] != x[:-1]) + 1)
        return np.repeat(self._evaluate(x[starts]), np.diff(np.append(starts, len(x))))

    def _evaluate_one(self, x: float) -> float:
        if x == math.inf:
            last = self.segments[-1]
            return math.inf if last.slope > 0 or last.bend > 0 else last.seconds
        return float(self._evaluate(np.asarray(x, dtype=np.float64)))

    def _check_rising(self) -> None:
        if not self.rising:
            raise CostError("a factor that may fall with size has neither inverse nor n_half")

    def _check_range(self, least: float, most: float, extrapolate: bool) -> None:
        if math.isnan(least) or math.isnan(most) or least < 0.0:
            raise CostError(f"{self.x_unit} cannot be negative or NaN", found=f"{least:g}")
        if extrapolate or (least >= self.low and most <= self.high):
            return
        high = f"{self.high:g}" if math.isfinite(self.high) else "any number of"
        found = most if most > self.high else least
        raise CostError(
            f"the cost is known from {self.low:g} to {high} {self.x_unit}",
            found=f"{found:g} {self.x_unit}",
            hint="measure that far, or allow extrapolation",
        )


def _check(curve: Curve) -> None:
    if not curve.segments:
        raise CostError("a curve needs a segment")
    numbers = [curve.low, *(number for segment in curve.segments for number in segment)]
    if not all(map(math.isfinite, numbers)) or math.isnan(curve.high):
        raise CostError("a curve holds finite numbers only", found=repr(curve.segments)[:120])
    if not 0.0 <= curve.low <= curve.high:
        raise CostError("a curve's range runs from low to high", found=f"{curve.low:g} to {curve.high:g}")
    before = -math.inf
    for index, segment in enumerate(curve.segments):
        ends = index + 1 == len(curve.segments)
        stop = curve.high if ends else curve.segments[index + 1].start
        if not stop >= segment.start or (not ends and stop == segment.start):
            raise CostError("segments must begin one after another", found=f"{segment.start:g}, then {stop:g}")
        if curve.rising and segment.seconds < before - _SLACK * abs(before):
            raise CostError(
                f"the cost falls at {segment.start:g} {curve.x_unit}",
                found=f"{before:g} s before, {segment.seconds:g} s after",
                hint="a cost never decreases with size",
            )
        before = _check_slope(curve, segment, stop)


def _check_slope(curve: Curve, segment: Segment, stop: float) -> float:
    """Return the segment's cost at `stop`, after checking that it does not fall before (a factor: is not negative)."""
    finite = math.isfinite(stop)
    if not curve.rising:
        if min(segment.seconds, segment.at(stop) if finite else segment.slope) < 0.0:
            raise CostError(f"the factor is negative after {segment.start:g} {curve.x_unit}")
        return 0.0
    steepest_fall = min(segment.slope, segment.slope + 2 * segment.bend * (stop - segment.start)) if finite else 0.0
    if segment.slope < 0.0 or (not finite and segment.bend < 0.0) or steepest_fall < 0.0:
        found = f"slope {segment.slope:g}, bend {segment.bend:g} to {stop:g}"
        raise CostError(f"the cost falls after {segment.start:g} {curve.x_unit}", found=found)
    if segment.seconds < 0.0:
        raise CostError(f"the cost is negative at {segment.start:g} {curve.x_unit}", found=f"{segment.seconds:g} s")
    return segment.at(stop) if finite else math.inf


def _solve(segment: Segment, seconds: float, stop: float) -> float:
    """Return the greatest x in [segment.start, stop) with cost <= seconds; the start must cost no more."""
    rest = max(seconds - segment.seconds, 0.0)
    if segment.bend == 0.0:
        step = rest / segment.slope if segment.slope > 0.0 else math.inf
    else:
        root = segment.slope**2 + 4.0 * segment.bend * rest
        step = 2.0 * rest / (segment.slope + math.sqrt(root)) if root >= 0.0 else math.inf
    return min(segment.start + step, math.nextafter(stop, 0.0) if math.isfinite(stop) else stop)


def _first_reach(segment: Segment, stop: float, rate: float) -> float | None:
    """Return the least x > 0 in [segment.start, stop) with x >= rate·seconds(x), or None."""
    # x - rate * f(x) as a polynomial in step = x - start: constant + linear·step + square·step²
    constant = segment.start - rate * segment.seconds
    linear, square = 1.0 - rate * segment.slope, -rate * segment.bend
    if constant >= 0.0 and segment.start > 0.0:
        return segment.start
    roots = np.roots([square, linear, constant]) if square else np.array([-constant / linear] if linear else [])
    steps = [float(r.real) for r in roots if abs(complex(r).imag) < 1e-12 and r.real >= 0.0]
    good = [segment.start + step for step in steps if 0.0 < segment.start + step < stop]
    return min(good) if good else None
