"""The types of a Program: kinds of ops, regions, the tables of names, and the columns."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Role = Literal["input", "output", "scratch"]
Engine = Literal["compute", "copy", "net"]
Mode = Literal["each", "all", "sum", "each_sum"]


class Kind(IntEnum):
    """Every op kind. The fused forms are made by passes, and by importers of other formats."""

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
    get = 14


SENDS = frozenset({Kind.send, Kind.recv_copy_send, Kind.recv_reduce_send, Kind.recv_reduce_copy_send})
RECVS = frozenset({Kind.recv, Kind.recv_reduce, Kind.recv_copy_send, Kind.recv_reduce_send, Kind.recv_reduce_copy_send})


def is_one_of(kind: NDArray[np.uint8], kinds: Iterable[int]) -> NDArray[np.bool_]:
    """Whether each kind is one of `kinds`: as `np.isin`, which takes longer than to look them up in a table.

    >>> is_one_of(np.array([Kind.put, Kind.send], np.uint8), SENDS).tolist()
    [False, True]
    """
    table = np.zeros(len(Kind), np.bool_)
    table[list(kinds)] = True
    found: NDArray[np.bool_] = table[kind]
    return found


class Region(NamedTuple):
    """A strided list of slots: `blocks` blocks of `count` slots, their starts `stride` slots apart.

    >>> Region("C", 4, 2, stride=8, blocks=3).slots().tolist()
    [4, 5, 12, 13, 20, 21]
    """

    buffer: str
    offset: int
    count: int  # type: ignore[assignment]  # hides tuple.count
    stride: int = 0
    blocks: int = 1

    @property
    def num_slots(self) -> int:
        return self.count * self.blocks

    def slots(self) -> NDArray[np.int64]:
        if self.num_slots == 0:
            return np.zeros(0, dtype=np.int64)
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
    """A FIFO of at most `depth` messages from rank `src` to rank `dst`; `id` numbers parallel channels."""

    src: int
    dst: int
    id: int = 0
    depth: int = 8


class Kernel(NamedTuple):
    """What a compute op calls, and which slots its results depend on, so that results can be proved.

    `modes` has one word for each region read: `each`: slot j of the result depends on slot j of the region;
    `all`: it depends on the whole region. In the others the kernel is linear: with S slots in a region of mode `sum`,
    and S for each slot of the result in one of `each_sum`, slot j of the result is the sum over s of what the kernel
    makes of slot s of the one and slot j S + s of the other; so a product is cut along what it contracts. With
    `accumulate` the result is added to what the slot held.
    """

    name: str
    modes: tuple[Mode, ...]
    accumulate: bool = False


class Collective(NamedTuple):
    """A collective of the library itself, on a group of ranks; the k-th call of each member matches."""

    kind: str
    group: tuple[int, ...]


class Term(NamedTuple):
    """One contribution to each slot j of a region: an input's slot j, or a kernel applied to operands.

    An operand is an input's region on a rank, or a term itself: what a kernel made of other operands, or with kernel
    None the sum of several, slot by slot.
    """

    kernel: str | None
    args: tuple[Arg, ...]

    @property
    def source(self) -> tuple[int, Region]:
        """Rank and region of a term that is an input itself."""
        ((rank, region),) = self.args
        assert isinstance(rank, int)
        assert isinstance(region, Region)
        return rank, region


Arg: TypeAlias = "tuple[int, Region] | Term"
MAX_NESTING = 64  # terms within terms


class Post(NamedTuple):
    """Post-condition: on each of `ranks`, slot j of `region` holds exactly the sum of slot j of all terms."""

    ranks: tuple[int, ...]
    region: Region
    terms: tuple[Term, ...]


class Op(NamedTuple):
    """One op, as people read it. `index` is its row in the columns; `after` lists rows of the same rank."""

    index: int  # type: ignore[assignment]  # hides tuple.index
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
    "chan_in": "i4",  # row of `channels` received, waited or got on, -1 for none
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
