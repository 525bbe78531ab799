"""slice_messages: long messages become several short ones, so that forwarding pipelines."""

from __future__ import annotations

from dataclasses import replace

from dovetail.core import WishError
from dovetail.ir import RECVS, SENDS, Op, Program
from dovetail.passes.draft import Draft, OldOp
from dovetail.passes.regions import Bounds, apart_or_equal, bounds, common_unit, cut


def slice_messages(program: Program, max_slots: int) -> Program:
    """Cut every message of more than `max_slots` slots into even slices, sent one after the other.

    A message and those it is forwarded as (fused ops) are cut alike. Where an op waited for another that was cut at
    the same places, slice i now waits for slice i only. Channels become deeper by the number of slices, so that a
    program that completed still does. Strided regions are cut between their blocks, which may leave longer slices.
    Messages of a channel that several lanes of a rank use are left whole.
    """
    if max_slots < 1:
        raise WishError("messages need room for at least one slot", found=f"max_slots = {max_slots}")
    ops = list(program.ops())
    cuts = {row: places for group in _trains(ops) for row, places in _cuts([ops[row] for row in group], max_slots)}
    if not cuts:
        return program
    draft, depth = Draft(program), [1] * len(program.channels)
    for op in ops:
        places = cuts.get(op.index, (0, 0))
        for channel in {op.chan_in, op.chan_out} - {-1}:
            depth[channel] = max(depth[channel], len(places) - 1)
        pieces = [_piece(draft, ops, cuts, op, piece) for piece in range(len(places) - 1)]
        draft.replaced(op.index, pieces)
    deeper = {tuple(c[:3]): c.depth * depth[row] for row, c in enumerate(program.channels)}
    sliced = draft.build()
    return replace(sliced, channels=tuple(c._replace(depth=deeper[tuple(c[:3])]) for c in sliced.channels))


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


def _cuts(train: list[Op], max_slots: int) -> list[tuple[int, Bounds]]:
    """Where to cut each op of a train of messages; nothing if they are short, or cannot be cut."""
    regions = [region for op in train for region in (*op.reads, *op.writes)]
    sizes = {region.num_slots for region in regions}
    unit = common_unit(regions)
    if len(sizes) != 1 or max(sizes) <= max(max_slots, unit):
        return []
    size = max(sizes)
    parts = min(-(-size // max_slots), size // unit)
    places = bounds(size, parts, unit)
    return [(op.index, places) for op in train]


def _trains(ops: list[Op]) -> list[list[int]]:
    """Rows of the ops that one message passes through, being forwarded by fused ops; each row in one train only."""
    sends, receives = _by_channel(ops)
    leader = list(range(len(ops)))

    def find(row: int) -> int:
        while leader[row] != row:
            leader[row] = leader[leader[row]]
            row = leader[row]
        return row

    left_whole: set[int] = set()
    for channel in sends.keys() | receives.keys():
        out, into = sends.get(channel, []), receives.get(channel, [])
        if len(out) != len(into) or _num_queues(ops, out) > 1 or _num_queues(ops, into) > 1:
            left_whole.update(out, into)
        for one, other in zip(out, into, strict=False):
            leader[find(one)] = find(other)
    trains: dict[int, list[int]] = {}
    for op in ops:
        if op.kind in SENDS or op.kind in RECVS:
            trains.setdefault(find(op.index), []).append(op.index)
    return [train for train in trains.values() if left_whole.isdisjoint(train)]


def _by_channel(ops: list[Op]) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    sends: dict[int, list[int]] = {}
    receives: dict[int, list[int]] = {}
    for op in ops:
        if op.kind in SENDS:
            sends.setdefault(op.chan_out, []).append(op.index)
        if op.kind in RECVS:
            receives.setdefault(op.chan_in, []).append(op.index)
    return sends, receives


def _num_queues(ops: list[Op], rows: list[int]) -> int:
    return len({(ops[row].rank, ops[row].lane) for row in rows})
