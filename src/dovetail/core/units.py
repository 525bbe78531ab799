"""units: parse numbers with units, and print them within a sentence. Values are in seconds and bytes."""

from __future__ import annotations

import re
from textwrap import shorten

from dovetail.core.errors import OperatorError

_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def parse_bytes(text: str) -> int:
    """Return the number of bytes in `64`, `64K`, `1M`, `2GB` (binary multiples). Raise OperatorError for other texts.

    >>> parse_bytes("64K"), parse_bytes("1.5m"), parse_bytes("7B")
    (65536, 1572864, 7)
    """
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([kmg]?)i?b?\s*", text, re.IGNORECASE)
    if not match:
        raise OperatorError(f"'{text}' is not a number of bytes", hint="write 4096, 64K, 1M or 2G")
    return round(float(match[1]) * _BYTES[match[2].lower()])


def parse_seconds(text: str) -> float:
    """Return the seconds in `3`, `3s`, `20ms`, `100us`. Raise OperatorError for other texts.

    >>> parse_seconds("20ms"), parse_seconds("3")
    (0.02, 3.0)
    """
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(ns|us|ms|s)?\s*", text)
    if not match:
        raise OperatorError(f"'{text}' is not a duration", hint="write 3s, 20ms or 100us")
    return float(match[1]) * _SECONDS[match[2] or "s"]


def parse_count(value: object, name: str, least: int = 0) -> int:
    """Return `value` as an int. Raise OperatorError, naming the argument, if it is not whole, or below `least`.

    >>> parse_count(4, "ranks", least=1)
    4
    """
    try:
        count = None if isinstance(value, bool) else int(value.__index__())  # type: ignore[attr-defined]
    except (AttributeError, TypeError):  # arrays have __index__, but of several elements it fails
        count = None
    if count is None:
        raise OperatorError(f"{name} must be a whole number", found=shorten(repr(value), 80))
    if count < least:
        raise OperatorError(f"{name} must be at least {least}", found=str(count))
    return count


def seconds_text(value: float) -> str:
    """Format seconds for a sentence.

    >>> seconds_text(0.001283), seconds_text(0.1806), seconds_text(2.5), seconds_text(0.0)
    ('1283 µs', '180.6 ms', '2.500 s', '0 µs')
    """
    if value >= 1.0:
        return f"{value:.3f} s"
    if value >= 10e-3:
        return f"{value * 1e3:.1f} ms"
    micros = value * 1e6
    return f"{micros:.0f} µs" if micros >= 100 or not micros else f"{micros:.3g} µs"


def share_text(value: float) -> str:
    """Format a share for a sentence, in percent.

    >>> share_text(0.327)
    '32.7 %'
    """
    return f"{100 * value:.1f} %"
