"""order: order threadblocks and gpus by flags of packets, and by barriers and semaphores within a gpu."""

from __future__ import annotations

from collections import defaultdict

from dovetail.collective.mscclpp.flags import Packets
from dovetail.collective.mscclpp.lower import Lowering, Meetings
from dovetail.collective.mscclpp.parts import UNJUDGED, Remark
from dovetail.collective.mscclpp.steps import Row, stuck
from dovetail.core import ProgramError


def connect(lowering: Lowering) -> dict[str, Remark]:
    """Make rows wait for the rows that release them. A row that none releases waits for itself, with a reason in `why`.
    Returns other faults by the check that fails.
    """
    meetings, document = lowering.meetings, lowering.document
    for (rank, number), acquires in meetings.acquires.items():
        value = document.gpus[rank].semaphores[number]
        _semaphore(acquires, meetings.releases[rank, number], value, f"semaphore {number} of gpu {rank}")
    for (rank, number), uses in meetings.barriers.items():
        _barrier(uses, f"barrier {number} of gpu {rank}")
    Packets(lowering).connect()
    over = _surplus(meetings)
    return {"deadlock": over} if over else {}


def _surplus(meetings: Meetings) -> Remark | None:
    """The first semaphore whose value is larger after a run than before it."""
    for (rank, number), releases in meetings.releases.items():
        acquires = meetings.acquires[rank, number]
        if len(releases) > len(acquires):
            counts = f"{len(releases)} releases, {len(acquires)} acquires of semaphore {number} of gpu {rank}"
            return Remark(releases[-1].line, f"{counts}: the surplus affects the next run")
    return None


def _semaphore(acquires: list[Row], releases: list[Row], value: int, name: str) -> None:
    """Acquire k continues after k + 1 - value releases. It is certain which ones if only one
    threadblock releases, or if all must have happened. A run must leave the semaphore's value unchanged.
    """
    takers, givers = {row.lane.split(".")[0] for row in acquires}, _by_block(releases)
    if len(takers) > 1:
        what = f"several threadblocks acquire {name}, and which release meets which acquire depends on timing"
        hint = "give each pair of threadblocks a separate semaphore"
        raise ProgramError(f"{UNJUDGED}: {what}", where=acquires[0].line, hint=hint)
    free = value if len(releases) >= len(acquires) else max(0, value - (len(acquires) - len(releases)))
    for k, row in enumerate(acquires):
        needed = k + 1 - free
        if needed > len(releases):
            stuck(row, f"{len(releases)} releases, {len(acquires)} acquires of a semaphore that starts at {value}")
        for rows in givers.values():
            certain = needed - (len(releases) - len(rows))  # of these, because all others may have come first
            if certain > 0:
                row.after.append(rows[min(certain, len(rows)) - 1])


def _by_block(rows: list[Row]) -> dict[str, list[Row]]:
    blocks: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        blocks[row.lane.split(".")[0]].append(row)
    return blocks


def _barrier(uses: list[tuple[int, int, Row, Row]], name: str) -> None:
    """Make the k-th use by each threadblock one meeting: all leave after all have arrived."""
    rounds: dict[int, list[tuple[int, Row, Row]]] = defaultdict(list)
    times: dict[int, int] = defaultdict(int)
    for block, wanted, arrive, leave in uses:
        rounds[times[block]].append((wanted, arrive, leave))
        times[block] += 1
    for meeting in rounds.values():
        for wanted, arrive, leave in meeting:
            if len(meeting) > wanted:
                what = f"{len(meeting)} threadblocks come to {name} for {wanted}, and who meets whom depends on timing"
                hint = "give those that meet a separate barrier"
                raise ProgramError(f"{UNJUDGED}: {what}", where=arrive.line, hint=hint)
            leave.after += [other for _, other, _ in meeting if other is not arrive]
            if len(meeting) < wanted:
                stuck(leave, f"{len(meeting)} of {wanted} threadblocks come")
