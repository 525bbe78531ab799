"""spans: names under which torch.profiler shows Dovetail's collectives and operators."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from torch.autograd import profiler

PREFIX = "dovetail::"
_nothing = nullcontext()


def are_on() -> bool:
    """Return whether this program is profiled."""
    return bool(profiler._is_profiler_enabled)


def title(what: str, num_bytes: int, group: str, by: str) -> str:
    """Return the name of a span.

    `what`: the collective or operator; `num_bytes`: of the larger of a rank's input and output; `group`: name of the
    process group; `by`: the algorithm or plan. `dovetail trace import` reads it.

    >>> title("all_reduce", 4096, "0", "ring_all_reduce")
    'dovetail::all_reduce 4096 B, group 0, by ring_all_reduce'
    """
    return f"{PREFIX}{what} {num_bytes} B, group {group or 0}, by {by}"


def shown(text: str) -> Any:
    """Return a context that a profile shows as a span named `text`; of an empty text none."""
    return profiler.record_function(text) if text else _nothing
