"""stream_commands: the commands for streams, the memory that they use, and the commands that each one waits for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dovetail.ir import Op, Program, Region, Workload
from dovetail.run.cuda.spots import Action, Spot, copied
from dovetail.run.engine import DTYPES
from dovetail.run.reduce import REDUCE_OPS

Address = Callable[[int, str], int]
Allocate = Callable[[int, int], int]


class Command(NamedTuple):
    """A command for a stream: the earlier commands that it waits for, and its actions."""

    stream: int
    row: int
    waits: list[int]
    what: str
    action: Any


class Read(NamedTuple):
    """Slots that another rank's op reads. `by`: the index of that command."""

    begin: int
    end: int
    by: int


@dataclass
class Homes:
    """Addresses of buffers, and functions to allocate more memory, on the device or pinned on the host."""

    address: Address
    starts: Address  # address on the device of a table of the slots' first bytes
    allocate: Allocate  # by rank and size
    allocate_on_host: Callable[[int], int]
    make_up: Callable[[int, str], int] | None = None  # allocates n random bytes of a dtype on the host
    sink: Callable[[int], int] | None = None  # memory of the host for messages that nobody reads


@dataclass
class StreamCommands:
    """Commands for the ops of a program; with `real`, of that rank only: it exchanges its messages with the host.

    `heard`: addresses in host memory of the recorded messages to one rank, by receiving row and a number. Commands of
    all ranks with `listens` set to that rank fill it. Commands of the rank alone read it, and use random data for
    messages that were not recorded.
    """

    program: Program
    workload: Workload
    homes: Homes
    reduce_op: str = "sum"
    real: int | None = None
    listens: int | None = None
    heard: dict[tuple[int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.commands: list[Command] = []
        self.of_row: dict[int, int] = {}
        self.streams: dict[tuple[int, int, str], int] = {}
        self._last: dict[int, int] = {}  # by stream, its last command
        self.reads: dict[tuple[int, str], list[Read]] = defaultdict(list)
        self._spaces: dict[tuple[int, str, int], int] = {}

    def give(self, op: Op, waits: list[int], what: str = "", action: Any = None) -> None:
        """Append a command to the stream of the op's lane; ops that wait for this op wait for it."""
        self.of_row[op.index] = self._append(self._stream(op), op, waits, what, action)

    def give_beside(self, op: Op, waits: list[int], what: str = "", action: Any = None) -> int:
        """Append a command to a second stream of the op's lane, which sends while the first receives; return its
        number, for which a later command of the op must wait."""
        return self._append(self._stream(op, "sends"), op, waits, what, action)

    def receive(self, op: Op, waits: list[int], to: Spot, message: Spot) -> None:
        """Copy a message from host memory. Messages come one after the other, whatever their lanes, as through one
        port; at once they would all come late."""
        before = self._last.get(self._stream(op))
        came = self._append(
            self.streams.setdefault((op.rank, -1, "receives"), len(self.streams)),
            op,
            waits if before is None else [*waits, before],
            *(copied(to, message) or ("", None)),
        )
        self.give(op, [came])

    def _append(self, stream: int, op: Op, waits: list[int], what: str, action: Any) -> int:
        others = sorted({number for number in waits if self.commands[number].stream != stream})
        self.commands.append(Command(stream, op.index, others, what, action))
        self._last[stream] = len(self.commands) - 1
        return self._last[stream]

    def _stream(self, op: Op, which: str = "") -> int:
        return self.streams.setdefault((op.rank, op.lane, which), len(self.streams))

    def note(self, row: int, number: int, size: int) -> Spot:
        """Allocate and return the place in host memory for a recorded message."""
        self.heard[row, number] = self.homes.allocate_on_host(size)
        return Spot.at(self.heard[row, number], size)

    def hears(self, op: Op, number: int, size: int) -> Spot:
        """Return the place in host memory of a message to the real rank."""
        key = (op.index, number)
        if key not in self.heard and self.homes.make_up is not None:
            self.heard[key] = self.homes.make_up(size, self.dtype_of(op))
        return Spot.at(self.heard[key], size)

    def outgoing(self, op: Op, size: int, peer: int = 0) -> Spot:
        """Return the place in host memory for a message from the real rank."""
        key = (op.rank, f"to the host through {op.chan_out}, {peer}", size)
        if key not in self._spaces:
            self._spaces[key] = (self.homes.sink or self.homes.allocate_on_host)(size)
        return Spot.at(self._spaces[key], size)

    def fetched(self, op: Op, name: str, message: Spot, waits: list[int]) -> Spot:
        """Copy a message from host memory to the device, for a kernel to read; return the copy's place."""
        space = self.space(op, name, message.num_bytes)
        self.receive(op, waits, space, message)
        waits.clear()
        return space

    def wait_for_readers(self, rank: int, region: Region, waits: list[int]) -> None:
        """Add other ranks' ops that read these slots to `waits`. Forget reads that are overwritten entirely."""
        begin, end = span_of(region)
        kept = []
        for read in self.reads[rank, region.buffer]:
            meets = read.begin < end and begin < read.end
            if meets:
                waits.append(read.by)
            if not (meets and region.blocks == 1 and begin <= read.begin and read.end <= end):
                kept.append(read)
        self.reads[rank, region.buffer] = kept

    def combine(self, op: Op, to: Spot, held: Spot, more: Spot) -> Action:
        if to.num_bytes == 0:
            return ()
        dtype = self.dtype_of(op)
        number = REDUCE_OPS.index("sum" if self.reduce_op == "avg" else self.reduce_op)
        return "move", (to.place, held.place, more.place, DTYPES.index(dtype), number)

    def dtype_of(self, op: Op) -> str:
        """Return the dtype of the data that an op moves."""
        return self.workload.slots[(op.reads or op.writes)[0].buffer][op.rank].dtype

    def size(self, rank: int, region: Region) -> int:
        """Return the bytes of a region."""
        return Spot.of(self.program, self.workload, rank, region, 0, 0).num_bytes

    def spot(self, rank: int, region: Region) -> Spot:
        buffer = region.buffer
        base, starts = self.homes.address(rank, buffer), self.homes.starts(rank, buffer)
        return Spot.of(self.program, self.workload, rank, region, base, starts)

    def space(self, op: Op, name: str, size: int) -> Spot:
        """Return memory that the ops of a lane use one after the other."""
        key = (self._stream(op), name, size)
        if key not in self._spaces:
            self._spaces[key] = self.homes.allocate(op.rank, size)
        return Spot.at(self._spaces[key], size)


def span_of(region: Region) -> tuple[int, int]:
    return region.offset, region.offset + max(region.blocks - 1, 0) * region.stride + region.count
