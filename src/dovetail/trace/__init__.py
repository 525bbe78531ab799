"""trace: record the events of a program's ranks, merge them into one trace, and read it."""

from dovetail.trace.merge import merge
from dovetail.trace.recorder.record import dropped, finalize, init, interval, off, on, point, traced
from dovetail.trace.store import TraceFile, open_trace, save_trace
from dovetail.trace.trace import Comm, Trace

__all__ = [
    "Comm",
    "Trace",
    "TraceFile",
    "dropped",
    "finalize",
    "init",
    "interval",
    "merge",
    "off",
    "on",
    "open_trace",
    "point",
    "save_trace",
    "traced",
]
