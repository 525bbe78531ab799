"""causes: print what made the ranks of a traced program wait, with shares of all waiting."""

from __future__ import annotations

from dovetail.advise.causes import Cause, Causes
from dovetail.report.advice import crowded_text, disturbed_text
from dovetail.report.tables import Align, render_table
from dovetail.report.trace_tables import Table
from dovetail.report.units import percent, seconds

HEADERS = ["of waiting", "seconds", "who, and when", "where"]
ALIGNS: list[Align] = ["right", "right", "left", "left"]


def causes_text(found: Causes, *, terminal: bool = False, width: int = 100) -> str:
    """Return how long the ranks waited, then a table of the root causes, largest first."""
    parts = [*crowded_text(found.crowded, ""), *disturbed_text(found.disturbed), summary(found)]
    if found.causes:
        parts.append(render_table(*causes_table(found), terminal=terminal, width=width))
    return "\n\n".join(parts)


def summary(found: Causes) -> str:
    """Return how long the ranks waited, in a sentence."""
    whole_s = found.seconds * found.num_ranks
    if found.waited_s <= 0 or whole_s <= 0:
        return "No rank waited for another."
    share = percent(found.waited_s / whole_s)
    return f"The ranks waited {seconds(found.waited_s)} in all, {share} of their time. What made them wait:"


def causes_table(found: Causes) -> Table:
    """Return a row per cause: its share of all waiting, who was late and when, and where."""
    return Table(HEADERS, [_row(it, found.attributed_s) for it in found.causes], ALIGNS)


def _row(cause: Cause, attributed_s: float) -> list[str]:
    place = "" if cause.activity.kind in ("stolen", "crowded") else cause.activity.place
    return [percent(cause.seconds / attributed_s), seconds(cause.seconds), cause.pattern.words, place]
