"""library_calls: arguments of one rank's calls of the library's collectives, with parts of different sizes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.core import RunError
from dovetail.ir import Program, Workload, dtype_bytes, region_bytes
from dovetail.ir.collectives import traits_of
from dovetail.ir.proof.calls import calls_of

Ints = NDArray[np.int64]


class Parts(NamedTuple):
    """What the native engine needs for a collective op besides its regions.

    `in_place`: an all_gather in which every member's input is its part of its result. `counts`: elements of each
    member's part; for an all_to_all those sent to each, then those received from each. Empty if all parts are equal.
    """

    row: int
    in_place: bool
    counts: list[int]


def collective_parts(program: Program, rank: int, workload: Workload) -> list[Parts]:
    """Return the parts of one rank's ops that are in place or uneven. Raises RunError if members' sizes do not fit."""
    if not any(traits_of(collective.kind).in_parts for collective in program.collectives):
        return []
    sides = _Sides(program, workload)
    found = [
        _parts(sides, program.collectives[call].kind, members, program.collectives[call].group.index(rank))
        for call, met in calls_of(program).items()
        if traits_of(program.collectives[call].kind).in_parts and rank in program.collectives[call].group
        for members in met
    ]
    return [parts for parts in found if parts.in_place or parts.counts]


class _Sides:
    """Elements of the regions that ops read and write."""

    def __init__(self, program: Program, workload: Workload) -> None:
        self.program, self.workload, self.col = program, workload, program.columns
        width = np.array([dtype_bytes(workload.slots[b.name][0].dtype) for b in program.buffers], np.int64)
        self._held = {
            side: region_bytes(program, workload, side) // width[self.col[f"{side}_buffer"]]
            for side in ("read", "write")
        }

    def first(self, side: str, part: str, rows: Ints) -> Any:
        """Return a column of the first region of some ops."""
        return self.col[f"{side}_{part}"][self.col[f"{side}_start"][rows]]

    def whole(self, side: str, rows: Ints) -> Ints:
        """Return the number of elements of the first region of some ops."""
        held: Ints = self._held[side][self.col[f"{side}_start"][rows]]
        return held

    def cut(self, side: str, row: int, num_members: int) -> Ints:
        """Return the elements for each member of an all_to_all op."""
        start, end = self.col[f"{side}_start"][row : row + 2]
        elements: Ints = self._held[side][start:end]
        if end - start == num_members:
            return elements
        op = self.program.op(row)
        (region,) = op.reads if side == "read" else op.writes
        ends = self.workload.starts(region.buffer, op.rank)
        if ends is None:
            return np.repeat(elements // num_members, num_members)
        slots = region.slots().reshape(num_members, -1)
        cut: Ints = (ends[slots + 1] - ends[slots]).sum(axis=1)
        return cut


def _parts(sides: _Sides, kind: str, members: Ints, place: int) -> Parts:
    row, traits = int(members[place]), traits_of(kind)
    if traits.exchanges:
        return Parts(row, False, _exchanged(sides, members, place))
    part, whole = ("read", "write") if traits.joined else ("write", "read")
    counts = sides.whole(part, members)
    if counts.sum() != sides.whole(whole, members[place : place + 1])[0]:
        raise misfit(sides.program, row)
    in_place = traits.joined and _in_place(sides, members)
    return Parts(row, in_place, [] if np.all(counts == counts[0]) else counts.tolist())


def _exchanged(sides: _Sides, members: Ints, place: int) -> list[int]:
    """Return elements sent to each member of an all_to_all, then those received from each; empty if all are equal."""
    sent = np.stack([sides.cut("read", row, len(members)) for row in members.tolist()])
    taken = sides.cut("write", int(members[place]), len(members))
    if np.any(sent[:, place] != taken):
        raise misfit(sides.program, int(members[place]))
    return [] if np.all(sent == sent[0, 0]) else [*sent[place].tolist(), *taken.tolist()]


def _in_place(sides: _Sides, members: Ints) -> bool:
    """Whether every member's input to an all_gather is its own part of its result."""
    slots = sides.first("read", "count", members)
    return bool(
        all(np.all(sides.first(side, "blocks", members) == 1) for side in ("read", "write"))
        and np.all(sides.first("read", "buffer", members) == sides.first("write", "buffer", members))
        and np.all(sides.first("read", "offset", members) - sides.first("write", "offset", members) == _before(slots))
    )


def _before(slots: Ints) -> Ints:
    total: Ints = np.cumsum(slots) - slots
    return total


def misfit(program: Program, row: int) -> RunError:
    """Return the error for an op that moves slots into slots of another size."""
    op = program.op(row)
    found = f"{' '.join(map(str, op.reads))} and {' '.join(map(str, op.writes))}"
    return RunError(f"op {row} on rank {op.rank} moves slots into others of another size", where=op.line, found=found)
