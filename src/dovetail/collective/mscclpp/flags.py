"""flags: find the ops that write the packets for which an op waits, with the flag of the current run."""

from __future__ import annotations

from collections import defaultdict

from dovetail.collective.mscclpp.lower import Give, Lowering
from dovetail.collective.mscclpp.steps import PACKET_IDS, End, Row, stuck
from dovetail.ir import Kind, Region


class Packets:
    """For each slot of each gpu, the rows that write it as a packet with the flag of the current run.

    A reader waits for that row. If several rows write a slot in one run, they write the same flag, so any of them may
    release the reader. The model assumes: with threads in lockstep the first does, with unsynchronised threads none.
    A thread that reads and writes the same packets writes after reading; other threads of its op may release it.
    """

    def __init__(self, lowering: Lowering) -> None:
        self.meetings, self.is_loose = lowering.meetings, lowering.pieces is not None
        sizes = next(buffer.slots for buffer in lowering.memory.buffers if buffer.name == "packets")
        self.writers: list[list[tuple[Row, ...]]] = [[()] * size for size in sizes]
        self._ids: dict[tuple[int, int], int] = defaultdict(int)

    def connect(self) -> None:
        """Make readers wait for writers."""
        copies = self._note()
        if not self.is_loose:  # copies do not wait for packets, but if these came later, readers would hang
            for give in copies:
                self._wait(give.row, give.source or give.row.reads[0])
        for takes in self.meetings.takes.values():
            for row, packets in takes:
                missing = self._wait(row, packets)
                if missing is not None:
                    stuck(row, self._why(row.rank, missing, copies))

    def _note(self) -> list[Give]:
        """Note the writers of each slot. Return those that copy packets unchanged: their sources need flags, too."""
        copies = [(rank, give) for rank, gives in self.meetings.gives.items() for give in gives if give.source]
        for rank, gives in self.meetings.gives.items():
            for give in gives:
                if not give.source:
                    self._write(rank, give.row)
        left = copies
        while done := [each for each in left if self._has(each[1])]:  # copies of copies
            for rank, give in done:
                self._write(rank, give.row)
            left = [each for each in left if each not in done]
        return [give for _, give in copies]

    def _has(self, give: Give) -> bool:
        source = give.source
        if source is None or source.buffer != "packets":
            return False
        return all(self.writers[give.row.rank][source.offset : source.offset + source.count])

    def _write(self, rank: int, row: Row) -> None:
        region, writers = row.writes[0], self.writers[rank]
        for slot in range(region.offset, min(region.offset + region.count, len(writers))):
            writers[slot] += (row,)

    def _wait(self, row: Row, packets: Region) -> int | None:
        """Make a row wait for the writers of packets. Return the first slot without a writer."""
        if packets.buffer != "packets":
            return None
        missing, found = None, dict[int, Row]()
        writers = self.writers[row.rank][packets.offset : packets.offset + packets.count]
        for slot, rows in enumerate(writers, packets.offset):
            others = [other for other in rows if (other.line, other.lane) != (row.line, row.lane)]
            if len(others) == 1 or (others and not self.is_loose):
                found[id(others[0])] = others[0]
            elif not others and missing is None:
                missing = slot
        for other in found.values():
            self._after(row, other)
        return missing

    def _after(self, row: Row, give: Row) -> None:
        """Order `row` after `give`: by a signal, or by a dependency within a gpu."""
        if give.rank == row.rank:
            row.flags.append(give)
            return
        pair = (give.rank, row.rank)
        flag = End(*pair, PACKET_IDS + self._ids[pair])
        self._ids[pair] += 1
        give.behind = (*give.behind, Row(Kind.signal, give.rank, give.lane, give.line, chan_out=flag))
        row.before = (*row.before, Row(Kind.wait, row.rank, row.lane, row.line, chan_in=flag))

    def _why(self, rank: int, slot: int, copies: list[Give]) -> str:
        for give in copies:
            target = give.row.writes[0]
            is_here = give in self.meetings.gives[rank] and target.offset <= slot < target.offset + target.count
            if is_here:
                where = "on a port channel copies its source as it is, and there are no packets of this run in it"
                return f"{give.row.line} {where}"
        return "nobody writes the packets that it waits for"
