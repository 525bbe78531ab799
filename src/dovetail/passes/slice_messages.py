"""slice_messages: cut long messages into several short ones, so that forwarding is pipelined."""

from __future__ import annotations

from dovetail.core import OperatorError
from dovetail.ir import Program
from dovetail.ir.proof.verify import verify_order
from dovetail.passes.pieces import in_pieces


def slice_messages(program: Program, max_slots: int | None) -> Program:
    """Cut every message of more than `max_slots` slots into slices of about equal length, sent one after the other.

    A message and the messages that forward it (fused ops) are cut alike. If an op waited for another one that is cut at
    the same places, slice i now waits for slice i only. Channels become deeper (see
    `pieces.deepened`). Strided regions are cut between their blocks, which may leave longer slices.
    Messages of a channel that several lanes of a rank use stay whole; so do all, if slices would race.

    >>> from dovetail.ir import parse, to_text
    >>> before = parse('''
    ... program relay ranks 3
    ... buffer x input 4,0,0
    ... buffer y output 0,4,4
    ... lane net net
    ... channel 0->1 0 depth 1
    ... channel 1->2 0 depth 1
    ... post 1 2 y[0:4] = x@0[0:4]
    ... rank 0 lane net
    ...   send x[0:4] to 1
    ... rank 1 lane net
    ...   recv_copy_send from 0 -> y[0:4] to 2
    ... rank 2 lane net
    ...   recv from 1 -> y[0:4]
    ... ''')
    >>> print(to_text(slice_messages(before, 2)), end="")
    program relay ranks 3
    buffer x input 4,0,0
    buffer y output 0,4,4
    lane net net
    channel 0->1 0 depth 2
    channel 1->2 0 depth 2
    post 1 2 y[0:4] = x@0[0:4]
    rank 0 lane net
      send x[0:2] to 1
      send x[2:4] to 1
    rank 1 lane net
      recv_copy_send from 0 -> y[0:2] to 2
      recv_copy_send from 0 -> y[2:4] to 2
    rank 2 lane net
      recv from 1 -> y[0:2]
      recv from 1 -> y[2:4]
    """
    if max_slots is None:
        return program
    if max_slots < 1:
        raise OperatorError("a message must have at least one slot", found=f"max_slots = {max_slots}")
    sliced = in_pieces(program, max_slots)
    return sliced if sliced is program or verify_order(sliced).checks["races"].ok else program
