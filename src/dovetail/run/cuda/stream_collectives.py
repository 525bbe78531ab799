"""stream_collectives: collectives as copies and sums among the ranks of one device, without a library.

Once all members have arrived, each fetches its data from the others' memory; none continues before all have finished.
For each piece of a sum one member computes it, in the order of the group. A real rank alone sends while it receives.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from dovetail.ir import Op, Region
from dovetail.ir.collectives import COLLECTIVES
from dovetail.run.arrays import numpy_dtype
from dovetail.run.cuda.spots import Spot, copied
from dovetail.run.cuda.stream_commands import StreamCommands


class Piece(NamedTuple):
    """A piece that a member receives: for each source its member and first byte; and its place in the result."""

    sources: list[tuple[int, int]]
    begin: int
    num_bytes: int


def join(lowering: StreamCommands, ops: Sequence[Op]) -> None:
    """Append the commands of one collective. `ops`: the ops of its members, in the order of the group."""
    _Call(lowering, ops).give()


class _Call:
    def __init__(self, lowering: StreamCommands, ops: Sequence[Op]) -> None:
        self.lowering, self.ops = lowering, ops
        self.traits = COLLECTIVES[lowering.program.collectives[ops[0].call].kind]
        self.here = [m for m, op in enumerate(ops) if lowering.real in (None, op.rank)]
        self.parts = [self._parts(m) for m in range(len(ops))]
        self.wanted = [sum(lowering.size(op.rank, region) for region in op.writes) for op in ops]
        self.pieces = [self._pieces(m) for m in range(len(ops))]
        self.sources: dict[int, Spot] = {}
        self._heard = 0
        self._sent: list[int] = []  # the last command that sends, of a real rank

    def give(self) -> None:
        arrived = [self._arrive(m) for m in self.here]
        made = {m: self._receive(m, arrived) for m in self.here}
        ended = [self.lowering.of_row[self.ops[m].index] for m in self.here]
        if self.traits.sums_everywhere:
            made = {m: self._gather(m, made, ended) for m in self.here}
        else:
            for m in self.here:
                self.lowering.give(self.ops[m], ended)
        for m, spot in made.items():
            self._deliver(m, spot)
        ended = [self.lowering.of_row[self.ops[m].index] for m in self.here] + self._sent
        for m in self.here:  # none may overwrite what another still reads
            self.lowering.give(self.ops[m], ended)

    def _parts(self, m: int) -> list[int]:
        """Numbers of bytes that a member gives: one for all members, or for an all_to_all one for each."""
        op, count = self.ops[m], len(self.ops)
        if not self.traits.exchanges:
            return [self.lowering.size(op.rank, op.reads[0])]
        if len(op.reads) == count:
            return [self.lowering.size(op.rank, region) for region in op.reads]
        slots = op.reads[0].slots()
        cuts = [slots[m * len(slots) // count : (m + 1) * len(slots) // count] for m in range(count)]
        regions = [[Region(op.reads[0].buffer, int(slot), 1) for slot in cut] for cut in cuts]
        return [sum(self.lowering.size(op.rank, region) for region in part) for part in regions]

    def _pieces(self, m: int) -> list[Piece]:
        count = range(len(self.ops))
        if self.traits.reduces:
            ends = [0, *accumulate(self.wanted)] if self.traits.cut else self._even()
            return [Piece([(i, ends[m]) for i in count], 0, ends[m + 1] - ends[m])]
        if self.traits.from_root:
            return [Piece([(0, 0)], 0, self.parts[0][0])]
        begin, found = 0, []
        for i in count:
            part = m if self.traits.exchanges else 0
            found.append(Piece([(i, sum(self.parts[i][:part]))], begin, self.parts[i][part]))
            begin += found[-1].num_bytes
        return found

    def _even(self) -> list[int]:
        """Byte offsets at which an all_reduce is cut into one piece per member."""
        element, count = numpy_dtype(self._dtype()).itemsize, len(self.ops)
        elements = self.parts[0][0] // element
        return [m * elements // count * element for m in range(count + 1)]

    def _dtype(self) -> str:
        return self.lowering.dtype_of(self.ops[0])

    def _arrive(self, m: int) -> int:
        """Wait for the dependencies of this member's op, and make its input contiguous."""
        lowering, op = self.lowering, self.ops[m]
        waits = [lowering.of_row[row] for row in op.after if row in lowering.of_row]
        for region in op.writes:
            lowering.wait_for_readers(op.rank, region, waits)
        lowering.give(op, waits)
        spots = [lowering.spot(op.rank, region) for region in op.reads]
        if len(spots) == 1 and spots[0].rows and spots[0].rows.height == 1:
            self.sources[m] = Spot.at(spots[0].rows.address, spots[0].num_bytes)
        elif spots:
            self.sources[m] = lowering.space(op, "given", sum(spot.num_bytes for spot in spots))
            begin = 0
            for spot in spots:
                lowering.give(op, [], *copied(self._part(self.sources[m], begin, spot.num_bytes), spot))
                begin += spot.num_bytes
        return lowering.of_row[op.index]

    @staticmethod
    def _part(spot: Spot, begin: int, num_bytes: int) -> Spot:
        return Spot.at(spot.place[0] + begin, num_bytes)

    def _receive(self, m: int, arrived: list[int]) -> Spot:
        """Fetch, or sum, all pieces of a member; return their place."""
        lowering, op = self.lowering, self.ops[m]
        made = self._home(m) or lowering.space(op, "received", sum(piece.num_bytes for piece in self.pieces[m]))
        lowering.give(op, arrived)
        self._tell(m)
        for piece in self.pieces[m]:
            to = self._part(made, piece.begin, piece.num_bytes)
            found = [self._source(m, i, begin, piece.num_bytes) for i, begin in piece.sources]
            if len(found) == 1:
                self._copy(op, to, found[0])
                continue
            held = found[0]
            for more in found[1:]:
                lowering.give(op, [], *lowering.combine(op, to, held, more))
                held = to
        return made

    def _home(self, m: int) -> Spot | None:
        """The place of a member's results, if they may be written directly."""
        op = self.ops[m]
        home = self.lowering.spot(op.rank, op.writes[0]) if len(op.writes) == 1 else None
        if self.traits.reduces or home is None or home.rows is None or home.rows.height > 1:
            return None
        read = {region.buffer for region in op.reads}
        if self.traits.exchanges and op.writes[0].buffer in read:
            return None
        return Spot.at(home.rows.address, home.num_bytes)

    def _source(self, m: int, i: int, begin: int, num_bytes: int) -> Spot:
        """The bytes of member i that member m reads."""
        if i in self.sources and (i == m or self.lowering.real is None):
            spot = self._part(self.sources[i], begin, num_bytes)
            return self._noted(m, spot) if i != m else spot
        return self._from_host(m, num_bytes, f"from {i}")

    def _noted(self, m: int, spot: Spot) -> Spot:
        """Return the given place; if messages to this member are recorded, also copy the bytes to host memory."""
        lowering, op = self.lowering, self.ops[m]
        if lowering.listens == op.rank:
            lowering.give(op, [], *copied(lowering.note(op.index, self._number(), spot.num_bytes), spot))
        return spot

    def _from_host(self, m: int, num_bytes: int, name: str) -> Spot:
        lowering, op = self.lowering, self.ops[m]
        message = lowering.hears(op, self._number(), num_bytes)
        return lowering.fetched(op, name, message, []) if self.traits.reduces else message

    def _number(self) -> int:
        self._heard += 1
        return self._heard

    def _tell(self, m: int) -> None:
        """Copy a real member's pieces for others to the host."""
        if self.lowering.real is None:
            return
        after = self.lowering.of_row[self.ops[m].index]
        for j, pieces in enumerate(self.pieces):
            for piece in pieces:
                for i, begin in piece.sources:
                    if i == m and j != m:
                        self._bring(m, j, self._part(self.sources[m], begin, piece.num_bytes), after)

    def _bring(self, m: int, j: int, spot: Spot, after: int) -> None:
        """Copy bytes for member j to the host after command `after`, beside what the member receives."""
        to = self.lowering.outgoing(self.ops[m], spot.num_bytes, j)
        self._sent = [self.lowering.give_beside(self.ops[m], [after], *copied(to, spot))]

    def _gather(self, m: int, made: dict[int, Spot], ended: list[int]) -> Spot:
        """Fetch all pieces of a sum, each from the member that computed it."""
        lowering, op, ends = self.lowering, self.ops[m], self._even()
        whole = lowering.space(op, "gathered", ends[-1])
        lowering.give(op, ended)
        after = lowering.of_row[op.index]
        for i in range(len(self.ops)):
            num_bytes = ends[i + 1] - ends[i]
            if i in made:
                piece = Spot.at(made[i].place[0], num_bytes)
                piece = self._noted(m, piece) if i != m else piece
            else:
                piece = self._from_host(m, num_bytes, f"from {i}")
                self._bring(m, i, made[m], after)
            self._copy(op, self._part(whole, ends[i], num_bytes), piece)
        return whole

    def _deliver(self, m: int, made: Spot) -> None:
        lowering, op, begin = self.lowering, self.ops[m], 0
        for region in op.writes:
            home = lowering.spot(op.rank, region)
            self._copy(op, home, self._part(made, begin, home.num_bytes))
            begin += home.num_bytes

    def _copy(self, op: Op, to: Spot, source: Spot) -> None:
        if to.rows is None or source.rows is None or to.rows.address != source.rows.address:
            self.lowering.give(op, [], *copied(to, source))
