"""Program: for each rank, in what order which engine does what to which bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.core import ProgramError, check_schema, read_arrays

Role = Literal["input", "output", "scratch"]
Engine = Literal["compute", "copy", "net"]
Mode = Literal["each", "all"]
SCHEMA = "dovetail.program/1"


class Kind(IntEnum):
    """Every op kind. The fused forms are made by passes and by the matmul door only."""

    nop = 0
    copy = 1
    reduce = 2
    send = 3
    recv = 4
    recv_reduce = 5
    recv_copy_send = 6
    recv_reduce_send = 7
    recv_reduce_copy_send = 8
    put = 9
    signal = 10
    wait = 11
    compute = 12
    collective = 13


SENDS = frozenset({Kind.send, Kind.recv_copy_send, Kind.recv_reduce_send, Kind.recv_reduce_copy_send})
RECVS = frozenset(
    {Kind.recv, Kind.recv_reduce, Kind.recv_copy_send, Kind.recv_reduce_send, Kind.recv_reduce_copy_send}
)


class Region(NamedTuple):
    """A strided list of slots: `blocks` blocks of `count` slots, their starts `stride` slots apart.

    >>> Region("C", 4, 2, stride=8, blocks=3).slots().tolist()
    [4, 5, 12, 13, 20, 21]
    """

    buffer: str
    offset: int
    count: int
    stride: int = 0
    blocks: int = 1

    @property
    def num_slots(self) -> int:
        return self.count * self.blocks

    def slots(self) -> NDArray[np.int64]:
        starts = self.offset + self.stride * np.arange(self.blocks, dtype=np.int64)
        return (starts[:, None] + np.arange(self.count, dtype=np.int64)).ravel()

    def __str__(self) -> str:
        span = f"{self.buffer}[{self.offset}:{self.offset + self.count}"
        return f"{span}]" if self.blocks == 1 else f"{span}; {self.blocks} x {self.stride}]"


class Buffer(NamedTuple):
    """A named buffer and how many slots of it each rank holds. Inputs start defined, the rest undefined."""

    name: str
    role: Role
    slots: tuple[int, ...]


class Lane(NamedTuple):
    """An in-order queue on one engine. Every rank has its own queue for every lane."""

    name: str
    engine: Engine


class Channel(NamedTuple):
    """A FIFO of at most `depth` messages from rank `src` to rank `dst`; `id` tells parallel ones apart."""

    src: int
    dst: int
    id: int = 0
    depth: int = 8


class Kernel(NamedTuple):
    """What a compute op calls, and which slots its results depend on, so that results can be proved.

    `modes` has one word for each region read: `each`: slot j of the result depends on slot j of the region;
    `all`: it depends on the whole region. With `accumulate` the result is added to what the slot held.
    """

    name: str
    modes: tuple[Mode, ...]
    accumulate: bool = False


class Collective(NamedTuple):
    """A collective of the library itself, on a group of ranks; the k-th call of each member matches."""

    kind: str
    group: tuple[int, ...]


class Term(NamedTuple):
    """One contribution to each slot j of a region: an input's slot j, or a kernel applied to regions of ranks."""

    kernel: str | None
    args: tuple[tuple[int, Region], ...]


class Post(NamedTuple):
    """Post-condition: on each of `ranks`, slot j of `region` holds exactly the sum of slot j of all terms."""

    ranks: tuple[int, ...]
    region: Region
    terms: tuple[Term, ...]


class Op(NamedTuple):
    """One op, as people read it. `index` is its row in the columns; `after` lists rows of the same rank."""

    index: int
    kind: Kind
    rank: int
    lane: int
    chan_in: int
    chan_out: int
    call: int
    reads: tuple[Region, ...]
    writes: tuple[Region, ...]
    after: tuple[int, ...]
    line: str | None


COLUMNS: dict[str, str] = {
    "kind": "u1",  # Kind
    "rank": "i4",
    "lane": "i4",  # row of `lanes`
    "chan_in": "i4",  # row of `channels` received or waited on, -1 for none
    "chan_out": "i4",  # row of `channels` sent, signalled or put on, -1 for none
    "call": "i4",  # row of `kernels` (compute) or `collectives` (collective), -1 for none
    "line": "i4",  # row of `lines`, -1 where unknown
    "read_start": "i8",  # op i reads regions read_start[i]:read_start[i+1] of the read_* columns
    "write_start": "i8",
    "dep_start": "i8",
    "dep": "i8",  # rows of ops of the same rank that must have ended
    "read_buffer": "i4",
    "read_offset": "i8",
    "read_count": "i8",
    "read_stride": "i8",
    "read_blocks": "i8",
    "write_buffer": "i4",
    "write_offset": "i8",
    "write_count": "i8",
    "write_stride": "i8",
    "write_blocks": "i8",
}


@dataclass(frozen=True, eq=False)
class Program:
    """The only schedule IR (DESIGN section 4): tables of names, and columns of arrays with a row for each op.

    Ops of one (rank, lane) run in the order of their rows. What an op's regions mean:

    | kind | reads | writes |
    |---|---|---|
    | copy | src | dst |
    | reduce | src | dst, to which src is added |
    | send | src | |
    | recv | | dst |
    | recv_reduce | src | dst = src + message |
    | recv_copy_send | | dst = message, forwarded |
    | recv_reduce_send | src | (src + message forwarded, not stored) |
    | recv_reduce_copy_send | src | dst = src + message, forwarded |
    | put | src | dst on the channel's other rank |
    | compute | the kernel's arguments | its results |
    | collective | src | dst |
    """

    name: str
    num_ranks: int
    buffers: tuple[Buffer, ...]
    lanes: tuple[Lane, ...]
    channels: tuple[Channel, ...]
    kernels: tuple[Kernel, ...]
    collectives: tuple[Collective, ...]
    posts: tuple[Post, ...]
    lines: tuple[str, ...]
    columns: dict[str, NDArray[Any]] = field(repr=False)

    @property
    def num_ops(self) -> int:
        return len(self.columns["kind"])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Program):
            return NotImplemented
        return self.to_json() == other.to_json()

    def __getattr__(self, name: str) -> NDArray[Any]:
        if name in COLUMNS:
            column: NDArray[Any] = self.columns[name]
            return column
        raise AttributeError(f"Program has no attribute '{name}'")

    def op(self, index: int) -> Op:
        """Row `index` of the columns as one readable Op."""
        col = self.columns
        line = int(col["line"][index])
        return Op(
            index,
            Kind(int(col["kind"][index])),
            int(col["rank"][index]),
            int(col["lane"][index]),
            int(col["chan_in"][index]),
            int(col["chan_out"][index]),
            int(col["call"][index]),
            self._regions("read", index),
            self._regions("write", index),
            tuple(int(d) for d in col["dep"][col["dep_start"][index] : col["dep_start"][index + 1]]),
            self.lines[line] if line >= 0 else None,
        )

    def ops(self) -> Iterator[Op]:
        return map(self.op, range(self.num_ops))

    def queues(self) -> dict[tuple[int, int], NDArray[np.int64]]:
        """Rows of each (rank, lane) that has any, in the order in which they run."""
        key = self.columns["rank"].astype(np.int64) * max(len(self.lanes), 1) + self.columns["lane"]
        order = np.argsort(key, kind="stable").astype(np.int64)
        keys, starts = np.unique(key[order], return_index=True)
        parts = np.split(order, starts[1:])
        return {(int(k) // len(self.lanes), int(k) % len(self.lanes)): part for k, part in zip(keys, parts)}

    def positions(self) -> NDArray[np.int64]:
        """For each op, its index within its own queue: the second half of the (lane, index) that names it."""
        position = np.empty(self.num_ops, dtype=np.int64)
        for rows in self.queues().values():
            position[rows] = np.arange(len(rows))
        return position

    def slots_of(self, buffer: str, rank: int) -> int:
        """How many slots of `buffer` rank `rank` holds."""
        return self.buffer(buffer).slots[rank]

    def buffer(self, name: str) -> Buffer:
        for entry in self.buffers:
            if entry.name == name:
                return entry
        raise ProgramError(f"program '{self.name}' has no buffer '{name}'")

    def with_depth(self, depth: int) -> Program:
        """The same program with every channel `depth` messages deep."""
        return replace(self, channels=tuple(c._replace(depth=depth) for c in self.channels))

    def to_json(self) -> dict[str, Any]:
        tables = {
            "buffers": [list(b) for b in self.buffers],
            "lanes": [list(lane) for lane in self.lanes],
            "channels": [list(c) for c in self.channels],
            "kernels": [list(k) for k in self.kernels],
            "collectives": [list(c) for c in self.collectives],
            "posts": [_post_to_json(p) for p in self.posts],
            "lines": list(self.lines),
        }
        columns = {name: self.columns[name].tolist() for name in COLUMNS}
        return {"schema": SCHEMA, "name": self.name, "num_ranks": self.num_ranks, **tables, "columns": columns}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Program:
        """Read what `to_json` wrote; shapes of the columns are checked, meaning is `verify`'s business."""
        check_schema(document, SCHEMA)
        try:
            program = cls(
                str(document["name"]),
                int(document["num_ranks"]),
                tuple(Buffer(b[0], b[1], tuple(int(n) for n in b[2])) for b in document["buffers"]),
                tuple(Lane(*lane) for lane in document["lanes"]),
                tuple(Channel(*map(int, c)) for c in document["channels"]),
                tuple(Kernel(k[0], tuple(k[1]), bool(k[2])) for k in document["kernels"]),
                tuple(Collective(c[0], tuple(c[1])) for c in document["collectives"]),
                tuple(_post_from_json(p) for p in document["posts"]),
                tuple(document["lines"]),
                read_arrays(document["columns"], COLUMNS),
            )
        except (KeyError, TypeError, IndexError) as error:
            raise ProgramError("malformed program document", found=f"{type(error).__name__}: {error}") from error
        check_columns(program)
        return program

    def _regions(self, side: Literal["read", "write"], index: int) -> tuple[Region, ...]:
        col = self.columns
        rows = range(int(col[f"{side}_start"][index]), int(col[f"{side}_start"][index + 1]))
        return tuple(
            Region(
                self.buffers[int(col[f"{side}_buffer"][row])].name,
                *(int(col[f"{side}_{part}"][row]) for part in ("offset", "count", "stride", "blocks")),
            )
            for row in rows
        )


def check_columns(program: Program) -> None:
    """Refuse columns whose lengths or table rows do not fit together (so that C++ may trust them)."""
    col, n = program.columns, program.num_ops
    for name in ("rank", "lane", "chan_in", "chan_out", "call", "line"):
        _require(len(col[name]) == n, f"column '{name}' has {len(col[name])} rows, not {n}")
    for side in ("read", "write", "dep"):
        start, first = col[f"{side}_start"], "dep" if side == "dep" else f"{side}_buffer"
        size = len(col[first])
        good = len(start) == n + 1 and start[0] == 0 and start[-1] == size and bool(np.all(np.diff(start) >= 0))
        _require(good, f"column '{side}_start' does not index '{first}'")
    for side in ("read", "write"):
        sizes = {len(col[f"{side}_{part}"]) for part in ("buffer", "offset", "count", "stride", "blocks")}
        _require(len(sizes) == 1, f"the {side}_* columns differ in length")
    limits = (
        ("kind", 0, len(Kind)),
        ("rank", 0, program.num_ranks),
        ("lane", 0, len(program.lanes)),
        ("chan_in", -1, len(program.channels)),
        ("chan_out", -1, len(program.channels)),
        ("line", -1, len(program.lines)),
        ("read_buffer", 0, len(program.buffers)),
        ("write_buffer", 0, len(program.buffers)),
        ("dep", 0, n),
    )
    for name, low, high in limits:
        values = col[name]
        _require(not len(values) or (values.min() >= low and values.max() < high), f"column '{name}' leaves its table")


def _require(good: bool, what: str) -> None:
    if not good:
        raise ProgramError(f"malformed program: {what}")


def _post_to_json(post: Post) -> dict[str, Any]:
    terms = [[t.kernel, [[rank, list(region)] for rank, region in t.args]] for t in post.terms]
    return {"ranks": list(post.ranks), "region": list(post.region), "terms": terms}


def _post_from_json(document: dict[str, Any]) -> Post:
    terms = tuple(
        Term(kernel, tuple((int(rank), Region(*region)) for rank, region in args))
        for kernel, args in document["terms"]
    )
    return Post(tuple(document["ranks"]), Region(*document["region"]), terms)
