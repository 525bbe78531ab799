"""stream_commands: the commands that streams are given, the memory that they use, and what each command waits for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dovetail.ir import Op, Program, Region, Workload
from dovetail.run.engine import DTYPES
from dovetail.run.reduce import REDUCE_OPS
from dovetail.run.spots import Action, Spot, copied

Address = Callable[[int, str], int]
Allocate = Callable[[int, int], int]


class Command(NamedTuple):
    """What a stream is given: commands before it that it waits for, and what it does."""

    stream: int
    row: int
    waits: list[int]
    what: str
    action: Any


class Read(NamedTuple):
    """Slots that another rank's op reads."""

    begin: int
    end: int
    by: int


@dataclass
class Homes:
    """Where buffers lie, and what takes more memory: on the device, or of the host where the device's copies reach."""

    address: Address
    starts: Address  # address on the device of a table of the slots' first bytes
    allocate: Allocate  # by rank and size
    allocate_on_host: Callable[[int], int]
    make_up: Callable[[int, str], int] | None = None  # allocates n random bytes of a dtype on the device


@dataclass
class StreamCommands:
    """Commands for the ops of a program; with `real`, of that rank alone: its messages come from and go to the host.

    `heard`: what comes to one rank from others, by the row that takes it and a number: where it lies in the host's
    memory. Commands of all ranks that `listens` for that rank fill it; those of the rank alone read it, and make up
    what was not heard.
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
        self.streams: dict[tuple[int, int], int] = {}
        self.reads: dict[tuple[int, str], list[Read]] = defaultdict(list)
        self._spaces: dict[tuple[int, str, int], int] = {}

    def give(self, op: Op, waits: list[int], what: str = "", action: Any = None) -> None:
        stream = self.streams.setdefault((op.rank, op.lane), len(self.streams))
        others = sorted({number for number in waits if self.commands[number].stream != stream})
        self.of_row[op.index] = len(self.commands)
        self.commands.append(Command(stream, op.index, others, what, action))

    def note(self, row: int, number: int, size: int) -> Spot:
        """Where the host notes what the rank that is listened for takes."""
        self.heard[row, number] = self.homes.allocate_on_host(size)
        return Spot.at(self.heard[row, number], size)

    def hears(self, op: Op, number: int, size: int) -> Spot:
        """What the host holds for the real rank."""
        key = (op.index, number)
        if key not in self.heard and self.homes.make_up is not None:
            self.heard[key] = self.homes.make_up(size, self.dtype_of(op))
        return Spot.at(self.heard[key], size)

    def outgoing(self, op: Op, size: int, peer: int = 0) -> Spot:
        """Where the host takes what a real rank sends."""
        key = (op.rank, f"to the host through {op.chan_out}, {peer}", size)
        if key not in self._spaces:
            self._spaces[key] = self.homes.allocate_on_host(size)
        return Spot.at(self._spaces[key], size)

    def fetched(self, op: Op, name: str, message: Spot, waits: list[int]) -> Spot:
        """A copy on the device of what lies in the host's memory, for a kernel to read."""
        space = self.space(op, name, message.num_bytes)
        self.give(op, waits, *copied(space, message))
        waits.clear()
        return space

    def wait_for_readers(self, rank: int, region: Region, waits: list[int]) -> None:
        """Who reads these slots from another rank must have ended; what is overwritten whole is waited for once."""
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
        """Of what an op moves."""
        return self.workload.slots[(op.reads or op.writes)[0].buffer][op.rank].dtype

    def size(self, rank: int, region: Region) -> int:
        """Bytes of a region, wherever it lies."""
        return Spot.of(self.program, self.workload, rank, region, 0, 0).num_bytes

    def spot(self, rank: int, region: Region) -> Spot:
        buffer = region.buffer
        base, starts = self.homes.address(rank, buffer), self.homes.starts(rank, buffer)
        return Spot.of(self.program, self.workload, rank, region, base, starts)

    def space(self, op: Op, name: str, size: int) -> Spot:
        """Memory that the ops of a lane use one after the other."""
        key = (self.streams.setdefault((op.rank, op.lane), len(self.streams)), name, size)
        if key not in self._spaces:
            self._spaces[key] = self.homes.allocate(op.rank, size)
        return Spot.at(self._spaces[key], size)


def span_of(region: Region) -> tuple[int, int]:
    return region.offset, region.offset + max(region.blocks - 1, 0) * region.stride + region.count
