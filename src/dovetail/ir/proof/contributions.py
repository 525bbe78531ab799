"""contributions: what the slots of rank 0 of a folded program hold, exactly: an input slot, summed over a box of ranks.

A box is, for each axis of the symmetry, an arc of consecutive digits: where it starts, and its length. Sums of boxes
that are no box are refused: such programs must be proved expanded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.ir.collectives import traits_of
from dovetail.ir.folded import Folded
from dovetail.ir.symmetry import Symmetry
from dovetail.ir.types import Region

Ints = NDArray[np.int64]


class Held(NamedTuple):
    """What some slots hold: for each, the input slot (-1: nothing), and its box of ranks (columns: axes)."""

    slot: Ints
    start: Ints
    length: Ints

    def take(self, rows: Ints) -> Held:
        return Held(self.slot[rows], self.start[rows], self.length[rows])


class Unlike(Exception):
    """Two slots whose sum is no box. `place`: the first such slot of the region; `twice`: some rank counts twice."""

    def __init__(self, place: int, twice: bool) -> None:
        super().__init__(place)
        self.place, self.twice = place, twice


@dataclass
class Memory:
    """The buffers of rank 0."""

    symmetry: Symmetry
    source: str  # the input
    held: dict[str, Held]

    @staticmethod
    def of(folded: Folded) -> Memory:
        """Return the memory at the start: each input slot holds itself, of rank 0; other slots hold nothing."""
        axes, held, source = len(folded.symmetry.axes), {}, ""
        for buffer in folded.one.buffers:
            n, is_input = buffer.slots[0], buffer.role == "input"
            source = buffer.name if is_input else source
            slot = np.arange(n) if is_input else np.full(n, -1)
            held[buffer.name] = Held(slot, np.zeros((n, axes), np.int64), np.ones((n, axes), np.int64))
        return Memory(folded.symmetry, source, held)

    def read(self, region: Region) -> Held:
        return self.held[region.buffer].take(region.slots())

    def write(self, region: Region, value: Held) -> None:
        own, slots = self.held[region.buffer], region.slots()
        for column, new in zip(own, value, strict=True):
            column[slots] = new

    def received(self, region: Region, value: Held, offset: int) -> Held:
        """Return a message as rank 0 receives it on a channel that leads `offset` ranks ahead.

        `region`, `value`: what rank 0 itself sends there, slot by slot. The sender, rank -offset, sends the image:
        its slots are in the order of their numbers there.
        """
        symmetry = self.symmetry
        by = symmetry.plus(0, offset, -1)
        order = np.argsort(symmetry.image(region.buffer, region.slots(), by), kind="stable")
        return renumbered(symmetry, self.source, value.take(order), int(by))

    def total(self, one: Held, other: Held) -> Held:
        """Return the sums, slot by slot. Raise Unlike if one is no box."""
        sizes, rows = np.array(self.symmetry.axes), np.arange(len(one.slot))
        after, before = (other.start - one.start) % sizes, (one.start - other.start) % sizes
        same = (after == 0) & (one.length == other.length)
        axis = np.argmin(same, axis=1)  # the one axis in which two boxes that join differ
        length = (one.length + other.length)[rows, axis]
        follows, precedes = (after == one.length)[rows, axis], (before == other.length)[rows, axis]
        good = (one.slot == other.slot) & (one.slot >= 0) & (same.sum(axis=1) == len(sizes) - 1)
        good &= (follows | precedes) & (length <= sizes[axis])
        if not good.all():
            place = int(np.argmin(good))
            overlap = ((after < one.length) | (before < other.length)).all(axis=1)
            raise Unlike(place, bool(overlap[place] and one.slot[place] == other.slot[place] >= 0))
        start, total = one.start.copy(), one.length.copy()
        first = np.where(follows, one.start[rows, axis], other.start[rows, axis])
        start[rows, axis] = np.where(length == sizes[axis], 0, first)
        total[rows, axis] = length
        return Held(one.slot, start, total)


def wanted(folded: Folded, rank: int) -> tuple[str, Held]:
    """Return the buffer of results, and what each of its slots must hold on `rank`. Slots of -1 may hold anything."""
    symmetry, (kind, count) = folded.symmetry, folded.requirement
    traits, axes = traits_of(kind), np.array(symmetry.axes)
    roles = {buffer.role: buffer for buffer in folded.one.buffers}
    target, in_place = roles.get("output", roles["input"]), "output" not in roles
    slots = np.arange(target.slots[0])
    part, inside = slots // count, slots % count
    if traits.sums_everywhere or (traits.input_is_part and in_place):
        slot = slots
    elif traits.output_is_part and in_place:
        slot = np.where(part == rank, slots, -1)
    else:
        slot = rank * count + inside if traits.cut else inside
    if traits.reduces:
        return target.name, Held(slot, np.zeros((len(slots), len(axes)), np.int64), np.tile(axes, (len(slots), 1)))
    return target.name, Held(slot, symmetry.digits(part), np.ones((len(slots), len(axes)), np.int64))


def unlike(one: Held, other: Held) -> Ints:
    """Return the places at which two lists of slots do not hold the same; where `other` has -1, all is the same."""
    differ = (one.start != other.start).any(axis=1) | (one.length != other.length).any(axis=1)
    return np.flatnonzero((other.slot >= 0) & ((one.slot != other.slot) | differ))


def renumbered(symmetry: Symmetry, source: str, held: Held, by: int) -> Held:
    """Return the image of what slots hold: of input slots (of buffer `source`) and of boxes of ranks."""
    slot = np.where(held.slot < 0, -1, symmetry.image(source, np.maximum(held.slot, 0), by))
    start = np.where(held.length == np.array(symmetry.axes), held.start, held.start + symmetry.digits(by))
    return Held(slot, start % np.array(symmetry.axes), held.length)
