"""Trains: the ops that one message passes through, forwarded by fused ops, and what travelling in parts asks of them.

A message longer than a piece travels in parts: a fused op sends on the first ones while the rest is still to come. So
an op further on starts before those ahead of it in its train have ended; part j of it comes after part j of theirs.
"""

from __future__ import annotations

from typing import NamedTuple

from dovetail.ir.greedy import Run
from dovetail.ir.op_lists import Access, Plain, op_reads, op_writes, slots
from dovetail.ir.types import RECVS, SENDS


class Seat(NamedTuple):
    """An op's train, named by the row of its first send, and how many ops are ahead of it there."""

    train: int
    ahead: int


def seats(plain: Plain, run: Run) -> dict[int, Seat]:
    """The seat of every op that sends or receives."""
    found: dict[int, Seat] = {}
    for row in run.order:
        kind = plain.ops[row].kind
        if kind in RECVS:
            train, ahead = found[run.matched[row]]
            found[row] = Seat(train, ahead + 1)
        elif kind in SENDS:
            found[row] = Seat(row, 0)
    return found


def in_step(plain: Plain, seated: dict[int, Seat], first: int, second: int) -> bool:
    """Whether `second` follows `first` in one train, and touches no slot in an earlier part than `first` does."""
    one, other = seated.get(first), seated.get(second)
    if one is None or other is None or one.train != other.train or one.ahead >= other.ahead:
        return False
    earlier, later = plain.ops[first], plain.ops[second]
    reads, writes = op_reads(plain.program, earlier), op_writes(plain.program, earlier)
    then_reads, then_writes = op_reads(plain.program, later), op_writes(plain.program, later)
    pairs = [(a, b) for a in writes for b in then_reads + then_writes] + [(a, b) for a in reads for b in then_writes]
    return all(_follows(a, b) for a, b in pairs)


def _follows(one: Access, other: Access) -> bool:
    """Whether no slot is in an earlier part of `other` than its last one of `one`."""
    if (one.rank, one.region.buffer) != (other.rank, other.region.buffer):
        return True
    last = {slot: part for part, slot in enumerate(slots(one.region))}
    return all(last.get(slot, -1) <= part for part, slot in enumerate(slots(other.region)))
