"""units: format seconds, bytes and shares with three significant digits, aligned. `core.units` parses them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import floor, isfinite, log10

MISSING = "–"
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_BYTES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))


def significant(value: float, digits: int = 3) -> str:
    """Return `value` rounded to `digits` significant digits, never in exponent form.

    >>> [significant(x) for x in (1.2345, 12.345, 123.45, 1234.5, 0.001234, 9.996, 0)]
    ['1.23', '12.3', '123', '1234', '0.00123', '10.0', '0']
    """
    if value == 0:
        return "0"
    places = digits - 1 - floor(log10(abs(value)))
    rounded = round(value, places)
    if rounded and floor(log10(abs(rounded))) > floor(log10(abs(value))):
        places -= 1
    return f"{value:.{max(places, 0)}f}"


def seconds(value_s: float | None, digits: int = 3) -> str:
    """Return a duration in a suitable unit; `–` for None.

    >>> [seconds(x) for x in (1.5, 0.0123, 4.2e-5, 3e-10, 0.0, 0.9996, -0.002, None)]
    ['1.50 s', '12.3 ms', '42.0 µs', '0.300 ns', '0 s', '1.00 s', '-2.00 ms', '–']
    """
    if value_s is None or not isfinite(value_s):
        return MISSING
    scale, unit = second_unit(value_s)
    return f"{significant(value_s / scale, digits)} {unit}"


def num_bytes(value: float | None) -> str:
    """Return a size in binary multiples; whole numbers exactly.

    >>> [num_bytes(x) for x in (0, 7, 65536, 1536, 3_500_000, 2**31, None)]
    ['0 B', '7 B', '64 KiB', '1.50 KiB', '3.34 MiB', '2 GiB', '–']
    """
    if value is None or not isfinite(value):
        return MISSING
    scale, unit = next((pair for pair in _BYTES if abs(value) >= pair[0]), _BYTES[-1])
    if value % scale == 0:
        return f"{int(value // scale)} {unit}"
    return f"{significant(value / scale)} {unit}"


def percent(share: float | None) -> str:
    """Return a share in per cent, with one decimal below ten.

    >>> [percent(x) for x in (0.5634, 0.0123, -0.2, -0.0001, 1.0, None)]
    ['56 %', '1.2 %', '-20 %', '0 %', '100 %', '–']
    """
    if share is None or not isfinite(share):
        return MISSING
    text = f"{100 * share:.{1 if 0.0005 <= abs(share) < 0.0995 else 0}f}"
    return f"{'0' if text == '-0' else text} %"


def ideal_share(share: float | None) -> str:
    """Return the reached share of the ideal gain (of perfect overlap) as text; above 2 as `> 200 %`.

    A gain above 2 does not come from overlap: the schedule's work takes less time than that of serial, for example
    because its tiles fit into a cache.

    >>> [ideal_share(x) for x in (0.5634, 1.2, 32.07, None)]
    ['56 %', '120 %', '> 200 %', '–']
    """
    return "> 200 %" if share is not None and share > 2 else percent(share)


def seconds_column(values_s: Sequence[float | None], digits: int = 3, distinct: bool = False) -> list[str]:
    """Return the durations of one column in one unit, with aligned decimal points.

    With `distinct`, for exact (predicted) values, up to two more digits separate values that rounding would make equal.

    >>> seconds_column([0.0361, 0.00124, 0.128, None])
    [' 36.1  ms', '  1.24 ms', '128    ms', '  –      ']
    >>> seconds_column([11.512, 11.514, 12.51], distinct=True)
    ['11.512 s', '11.514 s', '12.510 s']
    """
    known = [abs(v) for v in values_s if v is not None and isfinite(v)]
    if not known:
        return [MISSING] * len(values_s)
    scale, unit = second_unit(sorted(known)[len(known) // 2])
    if distinct:
        digits = next((d for d in (digits, digits + 1) if _tells_apart(known, scale, d, digits + 2)), digits + 2)
    numbers = [significant(v / scale, digits) if v is not None and isfinite(v) else None for v in values_s]
    return align_decimals([(n, unit) if n is not None else (MISSING, "") for n in numbers])


def _tells_apart(values_s: Sequence[float], scale: float, digits: int, most: int) -> bool:
    """Return whether all values that differ in `most` digits also differ in `digits` digits."""
    shown, exact = ({significant(v / scale, d) for v in values_s} for d in (digits, most))
    return len(shown) >= len(exact)


def align_decimals(cells: Iterable[tuple[str, str]]) -> list[str]:
    """Return (number, unit) cells padded to one width, so that decimal points are aligned in plain text.

    >>> align_decimals([("1.5", "s"), ("10", "s")])
    [' 1.5 s', '10   s']
    """
    parts = [(*number.partition("."), unit) for number, unit in cells]
    left = max((len(whole) for whole, *_ in parts), default=0)
    right = max((len(dot + rest) for _, dot, rest, _ in parts), default=0)
    tail = max((len(unit) for *_, unit in parts), default=0)
    gap = 1 if tail else 0
    return [f"{w:>{left}}{d + r:<{right}}{' ' * gap}{u:<{tail}}" for w, d, r, u in parts]


def second_unit(value_s: float) -> tuple[float, str]:
    """Return (scale, name) of the largest unit in which the value, rounded to three digits, is at least one."""
    if value_s == 0:
        return _SECONDS[0]
    return next((pair for pair in _SECONDS if abs(value_s) >= 0.9995 * pair[0]), _SECONDS[-1])
