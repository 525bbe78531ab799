"""ordered_builder: a Builder that makes each op wait for earlier ops of its rank on the same slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.ir import Builder, Kind, Region

Ints = NDArray[np.int32]
FEW = 64  # number of slots below which a Python set is faster than NumPy


class OrderedBuilder(Builder):
    """Add the ops of each rank in serial order. Lanes overtake one another where ops share no slots.

    >>> b = OrderedBuilder("swap", 2)
    >>> x, y = b.buffer("x", "input", 1), b.buffer("y", "output", 1)
    >>> net, compute = b.lane("n", "net"), b.lane("c", "copy")
    >>> for rank in (0, 1):
    ...     _ = b.add(Kind.recv, rank, net, writes=[Region("x", 0, 1)], chan_in=b.channel(1 - rank, rank))
    ...     _ = b.add(Kind.copy, rank, compute, reads=[Region("x", 0, 1)], writes=[Region("y", 0, 1)])
    >>> [op.after for op in b.build().ops()]
    [(), (0,), (), (2,)]
    """

    def __init__(self, name: str, num_ranks: int) -> None:
        super().__init__(name, num_ranks)
        self._writers: dict[tuple[int, str], Ints] = {}
        self._readers: dict[tuple[int, str], dict[int, Ints]] = {}  # by lane
        self._lane_of: list[int] = []

    def add(
        self,
        kind: Kind,
        rank: int,
        lane: int,
        *,
        reads: Sequence[Region] = (),
        writes: Sequence[Region] = (),
        after: Sequence[int] = (),
        **rest: Any,
    ) -> int:
        """Append one op. It waits for `after` and for earlier ops on the same slots."""
        found = set(after)
        for region in (*reads, *writes):
            found |= self._rows(_seen(self._writer(rank, region.buffer), region))
        for region in writes:
            for other, rows in self._readers.get((rank, region.buffer), {}).items():
                if other != lane:
                    found |= self._rows(_seen(rows, region))
        latest = dict[int, int]()
        for row in sorted(found):
            latest[self._lane_of[row]] = row
        waits = sorted(row for other, row in latest.items() if other != lane)
        row = super().add(kind, rank, lane, reads=reads, writes=writes, after=waits, **rest)
        self._lane_of.append(lane)
        for region in reads:
            _seen(self._reader(rank, region.buffer, lane), region)[...] = row
        for region in writes:
            _seen(self._writer(rank, region.buffer), region)[...] = row
        return row

    def move(self, lanes: tuple[int, int, int], source: int, here: Region, target: int, there: Region) -> None:
        """Append ops that move a region to a target rank, which may be the source. `lanes`: copies, sends, receives."""
        copies, sends, receives = lanes
        if source == target:
            self.add(Kind.copy, source, copies, reads=[here], writes=[there])
            return
        channel = self.channel(source, target)
        self.add(Kind.send, source, sends, reads=[here], chan_out=channel)
        self.add(Kind.recv, target, receives, writes=[there], chan_in=channel)

    def _rows(self, found: Ints) -> set[int]:
        """The distinct rows among slots. Consecutive slots often have equal rows."""
        found = found.ravel()
        if len(found) < FEW:
            rows = set(found.tolist())
        else:
            changes = (found[1:] != found[:-1]).nonzero()[0]
            rows = {int(found[0]), *found[changes + 1].tolist()}
        rows.discard(-1)
        return rows

    def _writer(self, rank: int, buffer: str) -> Ints:
        if (rank, buffer) not in self._writers:
            self._writers[rank, buffer] = self._none(rank, buffer)
        return self._writers[rank, buffer]

    def _reader(self, rank: int, buffer: str, lane: int) -> Ints:
        by_lane = self._readers.setdefault((rank, buffer), {})
        if lane not in by_lane:
            by_lane[lane] = self._none(rank, buffer)
        return by_lane[lane]

    def _none(self, rank: int, buffer: str) -> Ints:
        return np.full(self._buffers[buffer].slots[rank], -1, np.int32)


def _seen(slots: Ints, region: Region) -> Ints:
    """A view of the slots of a region, block after block."""
    if region.blocks == 1:
        return slots[region.offset : region.offset + region.count]
    step = slots.itemsize
    strides = region.stride * step, step
    return np.ndarray((region.blocks, region.count), slots.dtype, slots, region.offset * step, strides)
