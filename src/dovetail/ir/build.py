"""Builder: write a Program op by op. The builder checks hardly anything; `verify` checks the program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dovetail.core import ProgramError
from dovetail.ir.program import Program
from dovetail.ir.types import (
    COLUMNS,
    Buffer,
    Channel,
    Collective,
    Engine,
    Kernel,
    Kind,
    Lane,
    Mode,
    Post,
    Region,
    Role,
    Term,
)

OP = ("kind", "rank", "lane", "chan_in", "chan_out", "call", "line")
REGION = ("buffer", "offset", "count", "stride", "blocks")


class Builder:
    """Collect ops into a Program. `add` returns the op's row, to be named in the `after` of later ops.

    >>> b = Builder("swap", 2)
    >>> x, y = b.buffer("x", "input", 1), b.buffer("y", "output", 1)
    >>> net = b.lane("net", "net")
    >>> for rank in (0, 1):
    ...     _ = b.add(Kind.send, rank, net, reads=[Region("x", 0, 1)], chan_out=b.channel(rank, 1 - rank))
    ...     _ = b.add(Kind.recv, rank, net, writes=[Region("y", 0, 1)], chan_in=b.channel(1 - rank, rank))
    >>> b.build().num_ops
    4
    """

    def __init__(self, name: str, num_ranks: int) -> None:
        self.name, self.num_ranks = name, num_ranks
        self._buffers: dict[str, Buffer] = {}
        self._buffer_row: dict[str, int] = {}
        self._lanes: dict[Lane, int] = {}
        self._channels: dict[tuple[int, int, int], int] = {}
        self._channel_list: list[Channel] = []
        self._kernels: dict[Kernel, int] = {}
        self._collectives: dict[Collective, int] = {}
        self._posts: list[Post] = []
        self._lines: dict[str, int] = {}
        self._ops: list[int] = []  # for each op, the values of its OP columns
        self._regions: dict[str, list[int]] = {"read": [], "write": []}  # for each region, the values of REGION
        self._starts: dict[str, list[int]] = {"read": [0], "write": [0], "dep": [0]}
        self._deps: list[int] = []

    def buffer(self, name: str, role: Role, slots: int | Sequence[int]) -> str:
        """Declare a buffer of `slots` slots on every rank, or of `slots[rank]` on each; return its name."""
        counts = (slots,) * self.num_ranks if isinstance(slots, int) else tuple(slots)
        if len(counts) != self.num_ranks or name in self._buffers:
            raise ProgramError(f"buffer '{name}' is declared twice, or not for {self.num_ranks} ranks")
        self._buffer_row[name] = len(self._buffers)
        self._buffers[name] = Buffer(name, role, counts)
        return name

    def lane(self, name: str, engine: Engine) -> int:
        """Return the row of lane `name`; declare it at first use."""
        return self._lanes.setdefault(Lane(name, engine), len(self._lanes))

    def channel(self, src: int, dst: int, id: int = 0, depth: int = 8) -> int:
        """Return the row of channel (src, dst, id), `depth` messages deep; declare it at first use."""
        key = (src, dst, id)
        if key not in self._channels:
            self._channels[key] = len(self._channels)
            self._channel_list.append(Channel(src, dst, id, depth))
        return self._channels[key]

    def kernel(self, name: str, modes: Sequence[Mode], accumulate: bool = False) -> int:
        """Return the row of a kernel; declare it at first use."""
        return self._kernels.setdefault(Kernel(name, tuple(modes), accumulate), len(self._kernels))

    def collective(self, kind: str, group: Sequence[int]) -> int:
        """Return the row of a collective among the ranks of `group`; declare it at first use."""
        return self._collectives.setdefault(Collective(kind, tuple(group)), len(self._collectives))

    def post(self, ranks: Sequence[int], region: Region, terms: Sequence[Term]) -> None:
        """Require that on `ranks` each slot of `region` holds exactly the sum of `terms`."""
        self._posts.append(Post(tuple(ranks), region, tuple(terms)))

    def add(
        self,
        kind: Kind,
        rank: int,
        lane: int,
        *,
        reads: Sequence[Region] = (),
        writes: Sequence[Region] = (),
        chan_in: int = -1,
        chan_out: int = -1,
        call: int = -1,
        after: Sequence[int] = (),
        line: str | None = None,
    ) -> int:
        """Append one op to the queue (rank, lane); return its row.

        `chan_in`, `chan_out`, `call`: rows of the channels that the op receives from and sends to, and of its kernel or
        collective (-1: none). `after`: rows of ops of this rank that must end first. `line`: the user's source line.
        """
        source = -1 if line is None else self._lines.setdefault(line, len(self._lines))
        self._ops += (int(kind), rank, lane, chan_in, chan_out, call, source)
        self._add_regions("read", reads)
        self._add_regions("write", writes)
        self._deps += after
        self._starts["dep"].append(len(self._deps))
        return len(self._starts["dep"]) - 2

    def add_bare(
        self, kind: int, rank: int, lane: int, chan_in: int, chan_out: int, call: int, after: Sequence[int]
    ) -> int:
        """Append one op that reads and writes no regions, and return its row: `add` in half the time."""
        self._ops += (kind, rank, lane, chan_in, chan_out, call, -1)
        self._deps += after
        self._starts["dep"].append(len(self._deps))
        return len(self._starts["dep"]) - 2

    def build(self) -> Program:
        """Return the Program."""
        columns: dict[str, Any] = {
            name: np.array(values, dtype=COLUMNS[name]) for name, values in self._values().items()
        }
        for column in columns.values():
            column.flags.writeable = False
        return Program(
            self.name,
            self.num_ranks,
            tuple(self._buffers.values()),
            tuple(self._lanes),
            tuple(self._channel_list),
            tuple(self._kernels),
            tuple(self._collectives),
            tuple(self._posts),
            tuple(self._lines),
            columns,
        )

    def _add_regions(self, side: str, regions: Sequence[Region]) -> None:
        rows, starts = self._buffer_row, self._starts[side]
        self._fill(starts)
        for buffer, offset, count, stride, blocks in regions:
            if buffer not in rows:
                raise ProgramError(f"no buffer '{buffer}' in program '{self.name}'")
            self._regions[side] += (rows[buffer], offset, count, stride, blocks)
        starts.append(starts[-1] + len(regions))

    def _fill(self, starts: list[int]) -> None:
        """Let the regions of the bare ops so far begin where those before them end."""
        starts += [starts[-1]] * (len(self._starts["dep"]) - len(starts))

    def _values(self) -> dict[str, list[int]]:
        """Return the columns, by name."""
        self._fill(self._starts["read"])
        self._fill(self._starts["write"])
        found = {name: self._ops[place :: len(OP)] for place, name in enumerate(OP)} | {"dep": self._deps}
        for side, values in self._regions.items():
            found |= {f"{side}_{part}": values[place :: len(REGION)] for place, part in enumerate(REGION)}
        found |= {f"{side}_start": starts for side, starts in self._starts.items()}
        return {name: found[name] for name in COLUMNS}
