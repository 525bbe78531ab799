"""timeline: what happened on every rank and lane, and how a prediction compares with it."""

from dovetail.timeline.compare import Busy, Comparison, OpErrors, compare
from dovetail.timeline.losses import Alone, Attribution, attribute, losses, overlaps
from dovetail.timeline.spans import Span, from_spans
from dovetail.timeline.timeline import Label, Timeline, union_s
from dovetail.timeline.wire import on_the_wire

__all__ = [
    "Alone",
    "Attribution",
    "Busy",
    "Comparison",
    "Label",
    "OpErrors",
    "Span",
    "Timeline",
    "attribute",
    "compare",
    "from_spans",
    "losses",
    "on_the_wire",
    "overlaps",
    "union_s",
]
