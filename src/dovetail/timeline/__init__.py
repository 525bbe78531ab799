"""timeline: what happened on every rank and lane, and how a prediction compares with it."""

from dovetail.timeline.timeline import Label, Timeline, union_s

__all__ = ["Label", "Timeline", "union_s"]
