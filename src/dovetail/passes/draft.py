"""draft: the unfinished program that a rewrite builds, where ops may refer to old ops before these are replaced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from dovetail.ir import Builder, Channel, Collective, Kernel, Kind, Lane, Op, Program, Region


class OldOp(NamedTuple):
    """A dependency on the replacement of row `row` of the old program: on its piece `piece`, or (-1) on its ends."""

    row: int
    piece: int = -1


class _Entry(NamedTuple):
    kind: Kind
    rank: int
    lane: Lane
    reads: Sequence[Region]
    writes: Sequence[Region]
    chan_in: Channel | None
    chan_out: Channel | None
    call: Kernel | Collective | None
    after: Sequence[int | OldOp]
    line: str | None


class Draft:
    """Collects ops; `build` numbers them and drops lanes, channels and collectives that no op uses any more.

    New ops are named by the number that `add` returns, old ones by OldOp; an old op's replacement is named by
    `replaced`. Every old op must have one (a nop if nothing is left to do), so that no order is lost.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.buffers, self.lanes = list(program.buffers), list(program.lanes)
        self._entries: list[_Entry] = []
        self._pieces: dict[int, Sequence[int]] = {}
        self._ends: dict[int, Sequence[int]] = {}

    def add(
        self,
        kind: Kind,
        rank: int,
        lane: Lane,
        *,
        reads: Sequence[Region] = (),
        writes: Sequence[Region] = (),
        chan_in: Channel | None = None,
        chan_out: Channel | None = None,
        call: Kernel | Collective | None = None,
        after: Sequence[int | OldOp] = (),
        line: str | None = None,
    ) -> int:
        """Append one op to the queue of `lane` on `rank`; returns its number."""
        self._entries.append(_Entry(kind, rank, lane, reads, writes, chan_in, chan_out, call, after, line))
        return len(self._entries) - 1

    def keep(
        self,
        op: Op,
        *,
        kind: Kind | None = None,
        reads: Sequence[Region] | None = None,
        writes: Sequence[Region] | None = None,
        chan_out: int | None = None,
        after: Sequence[int | OldOp] | None = None,
    ) -> int:
        """Append old op `op` with the given changes, and return its number. The caller must still call `replaced`."""
        table = self.program.kernels if op.kind == Kind.compute else self.program.collectives
        return self.add(
            op.kind if kind is None else kind,
            op.rank,
            self.program.lanes[op.lane],
            reads=op.reads if reads is None else reads,
            writes=op.writes if writes is None else writes,
            chan_in=self._channel(op.chan_in),
            chan_out=self._channel(op.chan_out if chan_out is None else chan_out),
            call=table[op.call] if op.call >= 0 else None,
            after=[OldOp(row) for row in op.after] if after is None else after,
            line=op.line,
        )

    def replaced(self, row: int, pieces: Sequence[int], ends: Sequence[int] | None = None) -> None:
        """Declare that `pieces` replace op `row`. Ops that waited for it wait for `ends` (default: the last piece)."""
        self._pieces[row] = pieces
        self._ends[row] = pieces[-1:] if ends is None else ends

    def build(self) -> Program:
        """Return the new program, with `buffers` and `lanes` in their order, and the old name, kernels and posts."""
        old = self.program
        builder = Builder(old.name, old.num_ranks)
        for buffer in self.buffers:
            builder.buffer(*buffer)
        for post in old.posts:
            builder.post(*post)
        for kernel in old.kernels:
            builder.kernel(*kernel)
        self._declare(builder)
        for entry in self._entries:
            self._play(builder, entry)
        return builder.build()

    def _declare(self, builder: Builder) -> None:
        lanes = {entry.lane for entry in self._entries}
        channels = {c for entry in self._entries for c in (entry.chan_in, entry.chan_out) if c is not None}
        for lane in self.lanes:
            if lane in lanes:
                builder.lane(*lane)
        old = self.program.channels
        for channel in (*old, *sorted(channels.difference(old))):
            if channel in channels:
                builder.channel(*channel)

    def _play(self, builder: Builder, entry: _Entry) -> None:
        call = -1
        if isinstance(entry.call, Kernel):
            call = builder.kernel(*entry.call)
        elif isinstance(entry.call, Collective):
            call = builder.collective(*entry.call)
        builder.add(
            entry.kind,
            entry.rank,
            builder.lane(*entry.lane),
            reads=entry.reads,
            writes=entry.writes,
            chan_in=-1 if entry.chan_in is None else builder.channel(*entry.chan_in),
            chan_out=-1 if entry.chan_out is None else builder.channel(*entry.chan_out),
            call=call,
            after=list(dict.fromkeys(row for name in entry.after for row in self._rows(name))),
            line=entry.line,
        )

    def _rows(self, name: int | OldOp) -> Sequence[int]:
        if not isinstance(name, OldOp):
            return (name,)
        return self._ends[name.row] if name.piece < 0 else (self._pieces[name.row][name.piece],)

    def _channel(self, row: int) -> Channel | None:
        return self.program.channels[row] if row >= 0 else None


def with_depths(program: Program, old: Program, depths: Sequence[int]) -> Program:
    """Return `program` with depth `depths[i]` for the channel that is channel i of `old`."""
    deep = {channel[:3]: depth for channel, depth in zip(old.channels, depths, strict=True)}
    channels = (channel._replace(depth=deep.get(channel[:3], channel.depth)) for channel in program.channels)
    return replace(program, channels=tuple(channels))
