"""wire: the interval in which each message of a measured timeline was in flight, inferred from both of its ends."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dovetail.ir import RECVS, SENDS, Program, is_one_of
from dovetail.timeline.partners import message_of
from dovetail.timeline.timeline import Timeline


def on_the_wire(timeline: Timeline, program: Program) -> Timeline:
    """Return the timeline with each plain send lasting from when its message could leave to when it was received.

    A measured send starts when the lane is free and ends when the library has accepted the message. As libraries buffer
    messages and make progress late, neither time shows when bytes moved. A message can leave once the ops that its send
    waits for have ended and the message before it on its channel has arrived. Attribution of losses uses this timeline.
    """
    col, kinds = timeline.columns, program.columns["kind"]
    span_of = np.full(program.num_ops, -1, dtype=np.int64)
    span_of[col["op"][col["op"] >= 0]] = np.flatnonzero(col["op"] >= 0)
    message = message_of(program)
    start_s, end_s, arrived_s = col["start_s"].copy(), col["end_s"].copy(), dict[int, float]()
    takers = np.flatnonzero((message >= 0) & is_one_of(kinds, RECVS))
    for taker in takers[np.argsort(message[takers], kind="stable")]:
        giver = int(message[taker])
        sent, received = span_of[giver], span_of[taker]
        if sent < 0 or received < 0 or kinds[giver] not in SENDS - RECVS:
            continue
        channel = int(program.columns["chan_out"][giver])
        waited = [float(col["end_s"][span_of[dep]]) for dep in program.op(giver).after if span_of[dep] >= 0]
        left_s = max([arrived_s.get(channel, 0.0), *waited])
        start_s[sent] = min(start_s[sent], left_s)
        end_s[sent] = arrived_s[channel] = float(col["end_s"][received])
    return replace(timeline, columns={**col, "start_s": start_s, "end_s": end_s})
