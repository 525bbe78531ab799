"""What orders threadblocks and gpus beyond signals: flags of packets, barriers and semaphores within a gpu."""

from __future__ import annotations

from collections import defaultdict

from dovetail.collective.mscclpp.lower import Meetings
from dovetail.collective.mscclpp.parts import Document, Remark
from dovetail.collective.mscclpp.rows import PACKET_IDS, End, Row
from dovetail.core import ProgramError
from dovetail.ir import Kind, Region


def connect(meetings: Meetings, document: Document) -> None:
    """Add to the rows what they wait for. A row that nothing will ever let go waits for itself, and says so."""
    for (rank, number, run), acquires in meetings.acquires.items():
        value = document.gpus[rank].semaphores[number]
        _semaphore(acquires, meetings.releases[rank, number, run], value, f"semaphore {number} of gpu {rank}")
    for (rank, number, _), uses in meetings.barriers.items():
        _barrier(uses, f"barrier {number} of gpu {rank}")
    ids: dict[tuple[int, int], int] = defaultdict(int)
    for flag, takes in meetings.takes.items():
        for row, packets in takes:
            _packets(row, packets, meetings.gives[flag], ids)


def surplus(meetings: Meetings, document: Document) -> Remark | None:
    """The first semaphore that holds more after a run than before it: its next run starts with what is left."""
    for (rank, number, run), releases in meetings.releases.items():
        acquires = meetings.acquires[rank, number, run]
        if len(releases) > len(acquires):
            counts = f"{len(releases)} releases, {len(acquires)} acquires of semaphore {number} of gpu {rank}"
            return Remark(releases[-1].line, f"{counts}: what is left over meets the next run")
    return None


def _stuck(row: Row, why: str) -> None:
    row.after.append(row)
    row.line = f"{row.line}: {why}"


def _semaphore(acquires: list[Row], releases: list[Row], value: int, name: str) -> None:
    """Acquire k goes ahead once there have been k + 1 - value releases. Which these are is certain where one
    threadblock releases, or where all have to come. After a run the semaphore must hold what it held before.
    """
    takers, givers = {row.lane.split(".")[0] for row in acquires}, _by_block(releases)
    if len(takers) > 1:
        what = f"several threadblocks acquire {name}: which release meets which acquire depends on timing"
        raise ProgramError(what, where=acquires[0].line, hint="give each pair of threadblocks its own")
    free = value if len(releases) >= len(acquires) else max(0, value - (len(acquires) - len(releases)))
    for k, row in enumerate(acquires):
        needed = k + 1 - free
        if needed > len(releases):
            _stuck(row, f"{len(releases)} releases, {len(acquires)} acquires of a semaphore that starts at {value}")
        for rows in givers.values():
            certain = needed - (len(releases) - len(rows))  # of these, as the others may all have come first
            if certain > 0:
                row.after.append(rows[min(certain, len(rows)) - 1])


def _by_block(rows: list[Row]) -> dict[str, list[Row]]:
    blocks: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        blocks[row.lane.split(".")[0]].append(row)
    return blocks


def _barrier(uses: list[tuple[int, int, Row, Row]], name: str) -> None:
    """The k-th time of each threadblock is one meeting."""
    rounds: dict[int, list[tuple[int, Row, Row]]] = defaultdict(list)
    times: dict[int, int] = defaultdict(int)
    for block, wanted, arrive, leave in uses:
        rounds[times[block]].append((wanted, arrive, leave))
        times[block] += 1
    for meeting in rounds.values():
        for wanted, arrive, leave in meeting:
            if len(meeting) > wanted:
                what = f"{len(meeting)} threadblocks come to {name} for {wanted}: who meets whom depends on timing"
                raise ProgramError(what, where=arrive.line)
            leave.after += [other for _, other, _ in meeting if other is not arrive]
            if len(meeting) < wanted:
                _stuck(leave, f"{len(meeting)} of {wanted} threadblocks come")


def _packets(row: Row, packets: Region, gives: list[Row], ids: dict[tuple[int, int], int]) -> None:
    """A row that reads packets waits until each has been written: by the first that does, as the flag is the same for
    all of a run. The flag is a signal, or within a gpu a dependency.
    """
    missing = [(packets.offset, packets.offset + packets.count)]
    for give in gives:
        target = give.writes[0]
        start, end = target.offset, target.offset + target.count
        if not any(low < end and start < high for low, high in missing):
            continue
        missing = [
            part
            for low, high in missing
            for part in ((low, min(high, start)), (max(low, end), high))
            if part[0] < part[1]
        ]
        if give.rank == row.rank:
            row.after.append(give)
        else:
            pair = (give.rank, row.rank)
            flag = End(*pair, PACKET_IDS + ids[pair])
            ids[pair] += 1
            give.behind.append(Row(Kind.signal, give.rank, give.lane, give.line, chan_out=flag))
            row.before.append(Row(Kind.wait, row.rank, row.lane, row.line, chan_in=flag))
    if missing:
        _stuck(row, "nobody writes these packets")
