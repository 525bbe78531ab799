"""slice_messages: long messages become several short ones, so that forwarding pipelines."""

from __future__ import annotations

import numpy as np

from dovetail.core import OperatorError
from dovetail.ir import Op, Program, verify
from dovetail.passes.draft import Draft, OldOp, with_depths
from dovetail.passes.message_paths import by_channel, message_paths
from dovetail.passes.pieces import deepened
from dovetail.passes.regions import Bounds, apart_or_equal, bounds, common_unit, cut, round_units


def slice_messages(program: Program, max_slots: int) -> Program:
    """Cut every message of more than `max_slots` slots into slices of about equal length, sent one after the other.

    A message and the messages that forward it (fused ops) are cut alike. Where an op waited for another that is cut at
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
    if max_slots < 1:
        raise OperatorError("messages need room for at least one slot", found=f"max_slots = {max_slots}")
    ops = list(program.ops())
    cuts = {row: places for group in _messages(ops) for row, places in _cuts([ops[row] for row in group], max_slots)}
    if not cuts:
        return program
    draft, num_slices = Draft(program), np.ones(len(ops), np.int64)
    for op in ops:
        places = cuts.get(op.index, (0, 0))
        num_slices[op.index] = len(places) - 1
        pieces = [_piece(draft, ops, cuts, op, piece) for piece in range(len(places) - 1)]
        draft.replaced(op.index, pieces)
    depths = [channel.depth for channel in deepened(program, num_slices)]
    sliced = with_depths(draft.build(), program, depths)
    return sliced if verify(sliced).checks["races"].ok else program


def _piece(draft: Draft, ops: list[Op], cuts: dict[int, Bounds], op: Op, piece: int) -> int:
    """Add slice `piece` of `op` (or the whole op, if it is not cut) to the draft."""
    places = cuts.get(op.index)
    after = []
    for row in op.after:
        if places and cuts.get(row) == places and _slicewise(ops[row], op):
            after.append(OldOp(row, piece))
        elif piece == 0:
            after.append(OldOp(row))
    if places is None:
        return draft.keep(op, after=after)
    start, stop = places[piece : piece + 2]
    reads = [cut(region, start, stop) for region in op.reads]
    writes = [cut(region, start, stop) for region in op.writes]
    return draft.keep(op, reads=reads, writes=writes, after=after)


def _slicewise(one: Op, other: Op) -> bool:
    """True where slices of different number of the two ops never touch the same slot."""
    used = ((x, y) for x in (*one.reads, *one.writes) for y in (*other.reads, *other.writes))
    return all(apart_or_equal(x, y) for x, y in used)


def _cuts(path: list[Op], max_slots: int) -> list[tuple[int, Bounds]]:
    """Where to cut the ops that one message passes; nothing if it is short, or cannot be cut."""
    regions = [region for op in path for region in (*op.reads, *op.writes)]
    sizes = {region.num_slots for region in regions}
    if len(sizes) != 1:
        return []
    size, unit = sizes.pop(), common_unit(regions)
    units_each = max(max_slots // unit, 1)
    units = size // unit
    parts = -(-units // units_each)
    whole = unit * int(round_units(np.array([units]), np.array([parts]), units_each)[0]) if parts > 1 else unit
    places = bounds(size, parts, whole) if parts > 1 else ()
    return [(op.index, places) for op in path if places]


def _messages(ops: list[Op]) -> list[list[int]]:
    """Paths of messages, without those by a channel that several lanes share, or whose sends and receives differ."""
    sends, takes = by_channel(ops)
    left_whole: set[int] = set()
    for channel in sends.keys() | takes.keys():
        out, into = sends.get(channel, []), takes.get(channel, [])
        if len(out) != len(into) or _num_queues(ops, out) > 1 or _num_queues(ops, into) > 1:
            left_whole.update(out, into)
    moving = {row for rows in (*sends.values(), *takes.values()) for row in rows}
    return [path for path in message_paths(ops) if path[0] in moving and left_whole.isdisjoint(path)]


def _num_queues(ops: list[Op], rows: list[int]) -> int:
    return len({(ops[row].rank, ops[row].lane) for row in rows})
