"""message_paths: the path of ops through which a message goes if fused ops forward it, and the order of its parts.

A long message travels in parts, and a fused op forwards the first part before the last one has arrived. So an op can
start before the ops ahead of it on the path have ended; but each op handles part j after the ops ahead have done so.
"""

from __future__ import annotations

from typing import NamedTuple

from dovetail.ir.op_lists import Access, OpLists, op_reads, op_writes, slots
from dovetail.ir.proof.greedy import Run
from dovetail.ir.types import RECVS, SENDS


class PathPlace(NamedTuple):
    """An op's path, named by the row of its first send, and how many ops are ahead of it there."""

    path: int
    ahead: int


def path_places(lists: OpLists, run: Run) -> dict[int, PathPlace]:
    """Return the place of every op that sends or receives."""
    found: dict[int, PathPlace] = {}
    for row in run.order:
        kind = lists.ops[row].kind
        if kind in RECVS:
            path, ahead = found[run.matched[row]]
            found[row] = PathPlace(path, ahead + 1)
        elif kind in SENDS:
            found[row] = PathPlace(row, 0)
    return found


def in_step(lists: OpLists, places: dict[int, PathPlace], first: int, second: int) -> bool:
    """Return whether `second` follows `first` on one path, and touches each slot in no earlier part of the message."""
    one, other = places.get(first), places.get(second)
    if one is None or other is None or one.path != other.path or one.ahead >= other.ahead:
        return False
    earlier, later = lists.ops[first], lists.ops[second]
    reads, writes = op_reads(lists.program, earlier), op_writes(lists.program, earlier)
    then_reads, then_writes = op_reads(lists.program, later), op_writes(lists.program, later)
    pairs = [(a, b) for a in writes for b in then_reads + then_writes] + [(a, b) for a in reads for b in then_writes]
    return all(_follows(a, b) for a, b in pairs)


def _follows(one: Access, other: Access) -> bool:
    """Return whether each slot that is in both regions is in no earlier part of `other` than its last part in `one`."""
    if (one.rank, one.region.buffer) != (other.rank, other.region.buffer):
        return True
    last = {slot: part for part, slot in enumerate(slots(one.region))}
    return all(last.get(slot, -1) <= part for part, slot in enumerate(slots(other.region)))
