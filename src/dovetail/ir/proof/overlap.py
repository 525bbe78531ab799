"""overlap: whether one op writes a slot twice, or reads it at one place of its regions and writes it at another."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.ir.collectives import traits_of
from dovetail.ir.op_lists import slots
from dovetail.ir.program import Program
from dovetail.ir.types import Kind, Op, Region


def self_conflict(program: Program, op: Op, members: Sequence[Op] = ()) -> tuple[str, int] | None:
    """Return a slot (buffer, number) that `op` writes twice, or reads as part j and writes as another part, or None.

    Working in place is allowed: slot j of the source may be slot j of the destination; in an all_to_all, within the
    regions of one member. `members` are the ops of a collective call in the order of its group: an all_gather may read
    its own part of what it writes. A kernel may overwrite what it reads as an `all` or `sum` argument, because it reads
    these completely before it writes. For `each_sum`, the S slots that are summed into slot j of the result form part j
    of the argument.
    """
    written: dict[tuple[str, int], tuple[int, int]] = {}  # slot -> index of its region, and place in it
    if not _may_conflict(op):
        return None
    for number, region in enumerate(op.writes):
        for j, slot in enumerate(slots(region)):
            if (region.buffer, slot) in written:
                return region.buffer, slot
            written[region.buffer, slot] = number, j
    if op.kind in (Kind.put, Kind.get):
        return None  # it reads one rank's memory and writes another's
    for number, region in enumerate(op.reads):
        shift = _shift(program, op, members, number)
        if shift is None:
            continue
        per = max(region.num_slots // max(op.writes[0].num_slots, 1), 1) if op.kind == Kind.compute and op.writes else 1
        for j, slot in enumerate(slots(region)):
            mine = j // per + shift
            other, place = written.get((region.buffer, slot), (number, mine))
            if place != mine or (other != number and op.kind == Kind.collective):
                return region.buffer, slot
    return None


def _may_conflict(op: Op) -> bool:
    """A cheap test: return False only if the op touches no slot twice."""
    spans = [(region.buffer, region.offset, _end(region)) for region in op.writes]
    if any(region.blocks > 1 and region.stride < region.count for region in op.writes):
        return True
    for number, (buffer, start, end) in enumerate(spans):
        others = spans[number + 1 :] + [(r.buffer, r.offset, _end(r)) for r in op.reads]
        if any(buffer == other and start < high and low < end for other, low, high in others):
            return True
    return False


def _end(region: Region) -> int:
    return region.offset + region.count + region.stride * max(region.blocks - 1, 0)


def _shift(program: Program, op: Op, members: Sequence[Op], number: int) -> int | None:
    """Return `shift`: part j of the region read corresponds to part j + shift of the regions written; None if any."""
    if op.kind == Kind.compute:
        return 0 if program.kernels[op.call].modes[number] in ("each", "each_sum") else None
    if op.kind != Kind.collective:
        return 0
    traits = traits_of(program.collectives[op.call].kind)
    if not (traits.input_is_part or traits.output_is_part):
        return 0
    before = members[: [member.index for member in members].index(op.index)]
    if traits.input_is_part:
        return sum(member.reads[0].num_slots for member in before)
    return -sum(member.writes[0].num_slots for member in before)
