"""streams: lower a Program to commands on CUDA streams: lanes are streams, dependencies and messages are events.

A message is copied once if possible: the receiver reads the sender's memory, and later writes to that memory wait for
the read. The message is copied to a separate buffer only if a write to that memory is queued before the receive, or
if the message is in no buffer.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from dovetail.core import RunError
from dovetail.ir import RECVS, SENDS, Kind, Op, Region
from dovetail.ir.op_lists import OpLists
from dovetail.ir.proof.greedy import Greedy
from dovetail.run.arrays import numpy_dtype
from dovetail.run.cuda.spots import Action, Spot, copied
from dovetail.run.cuda.stream_collectives import join
from dovetail.run.cuda.stream_commands import Command, Read, StreamCommands, span_of
from dovetail.run.engine import DTYPES, native_forms

_ADDS = frozenset({Kind.recv_reduce, Kind.recv_reduce_send, Kind.recv_reduce_copy_send})


@dataclass
class Lowering(StreamCommands):
    """Makes the commands of a program, op by op and collective by collective."""

    def __post_init__(self) -> None:
        super().__post_init__()
        depths = [channel.depth for channel in self.program.channels]
        self.run = Greedy(OpLists(self.program), depths)()
        self._ops = [self.program.op(row) for row in range(self.program.num_ops)]
        self._sender = {take: give for take, give in self.run.matched.items() if self._ops[take].kind in RECVS}
        self._taker = {give: take for take, give in self._sender.items()}
        self._held = self._find_held()
        self._products = self._find_products()
        self._messages: dict[int, Spot] = {}  # by the row that sent them
        self._numbers: dict[int, list[int]] = defaultdict(list)  # by channel: rows whose messages it has held
        self._places: dict[tuple[int, int], tuple[int, int]] = {}

    def __call__(self) -> tuple[list[Command], list[int]]:
        """Return all commands, each after those that it waits for, and each stream's rank."""
        for row in self.run.order:
            op = self._ops[row]
            if op.kind == Kind.collective:
                members = self.run.groups[row]
                if row == members[0]:
                    join(self, [self._ops[each] for each in members])
            elif self.real in (None, op.rank):
                self._op(op)
        return self.commands, [rank for rank, *_ in self.streams]

    def _find_held(self) -> set[int]:
        """Rows whose message must be copied to a separate buffer."""
        held = {row for row, op in enumerate(self._ops) if op.kind == Kind.recv_reduce_send}
        on_way: dict[tuple[int, str], dict[int, Region]] = defaultdict(dict)
        for row in self.run.order:
            op = self._ops[row]
            if row in self._sender:
                sender = self._ops[self._sender[row]]
                if (region := self._home(sender)) is not None:
                    on_way[sender.rank, region.buffer].pop(sender.index, None)
            for rank, region in self.writes(op):
                waiting = on_way[rank, region.buffer]
                for number in [number for number, other in waiting.items() if _meet(other, region)]:
                    held.add(number)
                    del waiting[number]
            if op.kind in SENDS and row not in held and (region := self._home(op)) is not None:
                on_way[op.rank, region.buffer][row] = region
        return held

    def _find_products(self) -> dict[int, tuple[int, int, int, bool]]:
        found = {}
        for rank in range(self.program.num_ranks):
            for row, m, k, n, accumulate in native_forms(self.program, rank, self.workload)[0].tolist():
                found[row] = (m, k, n, bool(accumulate))
        return found

    def _home(self, op: Op) -> Region | None:
        """The region on the op's rank that contains the message that it sends; None if there is none."""
        sent = op.reads if op.kind == Kind.send else op.writes
        return sent[0] if sent else None

    def writes(self, op: Op) -> list[tuple[int, Region]]:
        """Return (rank, region) of all that `op` writes; a put writes on its target."""
        rank = self.program.channels[op.chan_out].dst if op.kind == Kind.put else op.rank
        return [(rank, region) for region in op.writes]

    def _op(self, op: Op) -> None:
        waits = [self.of_row[row] for row in op.after if row in self.of_row]
        if op.kind == Kind.wait and (signal := self.run.matched.get(op.index)) in self.of_row:
            waits.append(self.of_row[signal])
        message = self._take(op, waits) if op.kind in RECVS else None
        for rank, region in self.writes(op):
            self.wait_for_readers(rank, region, waits)
        place = self._place(op, waits) if op.index in self._held and self.real is None else None
        if op.kind == Kind.compute:  # its operands may have to be copied first
            self.give(op, waits)
            waits = []
        if message is not None and self.real is not None and op.kind not in _ADDS:
            self.receive(op, waits, self.spot(op.rank, op.writes[0]), message)
        else:
            self.give(op, waits, *self._action(op, message, place))
        for action in self._after(op, message, place):
            self.give(op, [], *action)
        if op.kind in RECVS and op.index in self._sender:
            self._note_read(self._sender[op.index], self.of_row[op.index])

    def _take(self, op: Op, waits: list[int]) -> Spot:
        """The place of the message that an op receives."""
        if self.real is not None:
            message = self.hears(op, 0, self._size(op))
            return self.fetched(op, "message", message, waits) if op.kind in _ADDS else message
        sender = self._sender[op.index]
        waits.append(self.of_row[sender])
        return self._messages[sender]

    def _size(self, op: Op) -> int:
        regions = op.writes or op.reads
        return self.size(op.rank, regions[0])

    def _place(self, op: Op, waits: list[int]) -> Spot:
        """A place in the channel for an op's message, once the earlier message there was received."""
        channel, size = op.chan_out, self._size(op)
        numbers, depth = self._numbers[channel], self.program.channels[channel].depth
        if len(numbers) >= depth and (taker := self._taker.get(numbers[-depth])) in self.of_row:
            waits.append(self.of_row[taker])
        key = (channel, len(numbers) % depth)
        if self._places.get(key, (0, -1))[1] < size:
            self._places[key] = self.homes.allocate(op.rank, size), size
        numbers.append(op.index)
        return Spot.at(self._places[key][0], size)

    def _note_read(self, sender: int, by: int) -> None:
        op = self._ops[sender]
        if sender in self._held or (region := self._home(op)) is None or self.real is not None:
            return
        self.reads[op.rank, region.buffer].append(Read(*span_of(region), by))

    def _action(self, op: Op, message: Spot | None, place: Spot | None) -> Action:
        """The first action of an op: its data movement, or its product."""
        reads = [self.spot(self._read_rank(op), region) for region in op.reads]
        writes = [self.spot(rank, region) for rank, region in self.writes(op)]
        if op.kind in (Kind.copy, Kind.put, Kind.get):
            return copied(writes[0], reads[0])
        if op.kind == Kind.reduce:
            return self.combine(op, writes[0], writes[0], reads[0])
        if op.kind == Kind.send:
            return self._send(op, reads[0], place)
        if op.kind in _ADDS and message is not None:
            return self.combine(op, self._sum_of(op, writes, place), reads[0], message)
        if message is not None:
            return copied(writes[0], message)
        if op.kind == Kind.compute:
            return self._compute(op, reads, writes[0])
        return ()

    def _send(self, op: Op, what: Spot, place: Spot | None) -> Action:
        if self.real is not None:
            return copied(self.outgoing(op, what.num_bytes), what)
        self._messages[op.index] = place or what
        return copied(place, what) if place else ()

    def _sum_of(self, op: Op, writes: list[Spot], place: Spot | None) -> Spot:
        if writes:
            return writes[0]
        return place or self.space(op, "sum", self._size(op))

    def _after(self, op: Op, message: Spot | None, place: Spot | None) -> list[Action]:
        """Further actions: copy a result that is passed on; record a message for a run of one rank alone."""
        more = []
        if message is not None and self.listens == op.rank:
            more.append(copied(self.note(op.index, 0, message.num_bytes), message))
        if op.kind in SENDS and op.kind in RECVS:
            made = (
                place if op.kind == Kind.recv_reduce_send else self.spot(op.rank, op.writes[0]) if op.writes else None
            )
            if self.real is not None:
                made = made or self.space(op, "sum", self._size(op))
                return [*more, copied(self.outgoing(op, made.num_bytes), made)]
            assert made is not None
            self._messages[op.index] = place or made
            if place is not None and place is not made:
                more.append(copied(place, made))
        if op.kind == Kind.compute:
            more += self._unpack(op)
        return more

    def _read_rank(self, op: Op) -> int:
        return self.program.channels[op.chan_in].src if op.kind == Kind.get else op.rank

    def _compute(self, op: Op, reads: list[Spot], to: Spot) -> Action:
        if op.index not in self._products:
            name = self.program.kernels[op.call].name
            hint = "products of one floating dtype run on devices; run others by another executor"
            raise RunError(f"op {op.index}: no kernel '{name}' for devices", where=op.line, hint=hint)
        m, k, n, accumulate = self._products[op.index]
        if m * n == 0 or (k == 0 and accumulate):
            return ()
        dtype = self.workload.slots[op.writes[0].buffer][op.rank].dtype
        size = numpy_dtype(dtype).itemsize
        if k == 0:
            made = to if to.rows and to.rows.height == 1 else self.space(op, "c", to.num_bytes)
            assert made.rows is not None
            return "clear", (made.rows.address, to.num_bytes)
        a, b = (self._packed(op, name, spot, row, size) for name, spot, row in (("a", reads[0], k), ("b", reads[1], n)))
        c = to.matrix(n, size) or self._gathered(op, to, n, size, accumulate)
        return "product", (a, b, c, (m, k, n), DTYPES.index(dtype), accumulate)

    def _packed(self, op: Op, name: str, spot: Spot, columns: int, size: int) -> tuple[int, int]:
        """Address and row stride of a matrix in place, or of a contiguous copy."""
        found = spot.matrix(columns, size)
        if found is None:
            space = self.space(op, name, spot.num_bytes)
            self.give(op, [], *copied(space, spot))
            found = space.place[0], columns
        return found

    def _gathered(self, op: Op, to: Spot, columns: int, size: int, accumulate: bool) -> tuple[int, int]:
        """A temporary place for a result whose destination is no matrix; `_unpack` copies it to the destination."""
        space = self.space(op, "c", to.num_bytes)
        if accumulate:
            self.give(op, [], *copied(space, to))
        return space.place[0], columns

    def _unpack(self, op: Op) -> list[Action]:
        m, k, n, accumulate = self._products[op.index]
        to = self.spot(op.rank, op.writes[0])
        size = numpy_dtype(self.workload.slots[op.writes[0].buffer][op.rank].dtype).itemsize
        in_place = (to.rows and to.rows.height == 1) if k == 0 else to.matrix(n, size)
        if in_place or m * n == 0 or (k == 0 and accumulate):
            return []
        return [copied(to, self.space(op, "c", to.num_bytes))]


def _meet(a: Region, b: Region) -> bool:
    (first, end), (begin, last) = span_of(a), span_of(b)
    return first < last and begin < end
