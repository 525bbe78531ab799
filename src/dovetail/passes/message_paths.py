"""message_paths: the ops that each message passes through, since fused ops forward it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from dovetail.ir import RECVS, SENDS, Op

ByChannel = dict[int, list[int]]


def message_paths(ops: Sequence[Op]) -> list[list[int]]:
    """Rows of the ops of each message, in the program's order; an op that neither sends nor receives is alone."""
    leader = list(range(len(ops)))

    def find(row: int) -> int:
        while leader[row] != row:
            leader[row] = row = leader[leader[row]]
        return row

    sends, takes = by_channel(ops)
    for channel, rows in sends.items():
        for one, other in zip(rows, takes.get(channel, ()), strict=False):
            leader[find(one)] = find(other)
    found: dict[int, list[int]] = defaultdict(list)
    for row in range(len(ops)):
        found[find(row)].append(row)
    return list(found.values())


def by_channel(ops: Sequence[Op]) -> tuple[ByChannel, ByChannel]:
    """Rows of the ops that send on each channel, and of those that receive."""
    sends: ByChannel = defaultdict(list)
    takes: ByChannel = defaultdict(list)
    for op in ops:
        if op.kind in SENDS:
            sends[op.chan_out].append(op.index)
        if op.kind in RECVS:
            takes[op.chan_in].append(op.index)
    return dict(sends), dict(takes)
