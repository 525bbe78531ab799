"""wire: a measured send ends when the library has taken the message; on the wire it is until it is received."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dovetail.ir import RECVS, SENDS, Program
from dovetail.timeline.partners import message_of
from dovetail.timeline.timeline import Timeline


def on_the_wire(timeline: Timeline, program: Program) -> Timeline:
    """The same spans, but a plain send lasts until its message was received: what an attribution of losses reads.

    Libraries buffer: the span of a send can end while most of its bytes have yet to leave.
    """
    col = timeline.columns
    span_of = np.full(program.num_ops, -1, dtype=np.int64)
    span_of[col["op"][col["op"] >= 0]] = np.flatnonzero(col["op"] >= 0)
    message = message_of(program)
    kinds = program.columns["kind"]
    takers = np.flatnonzero((message >= 0) & np.isin(kinds, [int(kind) for kind in RECVS]))
    plain = np.isin(kinds[message[takers]], [int(kind) for kind in SENDS - RECVS])
    takers = takers[plain & (span_of[takers] >= 0) & (span_of[message[takers]] >= 0)]
    sent, end_s = span_of[message[takers]], col["end_s"].copy()
    end_s[sent] = np.maximum(end_s[sent], col["end_s"][span_of[takers]])
    return replace(timeline, columns={**col, "end_s": end_s})
