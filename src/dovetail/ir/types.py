"""types: the types of a Program: kinds of ops, regions, tables, and columns."""

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
    """The kinds of ops. Fused kinds (`recv_…`) are made by passes, and by importers of other formats."""

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
    """Return whether each kind is one of `kinds`: as `np.isin`, but faster.

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
    """A named buffer, with the number of its slots on each rank. Inputs are defined at the start, others are not."""

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
    """What a compute op calls, and on which slots each slot of its results depends.

    `modes` has the mode of each region that the kernel reads. Slot j of the result depends

    - `each`: on slot j of the region;
    - `all`: on all slots of the region;
    - `sum`, `each_sum`: on slots s and j·S + s, for s < S. The kernel is bilinear in them:
      C[j] = Σ_s f(B[s], A[j·S + s]), with S slots of B (mode `sum`) and S slots of A (mode `each_sum`) for each slot of
      C. So a matrix product can be split along the dimension that it sums over.

    With `accumulate` the result is added to what its slots held.
    """

    name: str
    modes: tuple[Mode, ...]
    accumulate: bool = False


class Collective(NamedTuple):
    """A collective of the library, on the ranks of `group`. The k-th calls of all members are one call."""

    kind: str
    group: tuple[int, ...]


class Term(NamedTuple):
    """One contribution to the slots of a region: a kernel applied to operands, or (kernel None) an input's region.

    An operand is (rank, region of an input) or a term. As an operand, a term with kernel None is the sum of its
    operands, slot by slot.
    """

    kernel: str | None
    args: tuple[Arg, ...]

    @property
    def source(self) -> tuple[int, Region]:
        """The rank and region of a term that is an input's region."""
        ((rank, region),) = self.args
        assert isinstance(rank, int)
        assert isinstance(region, Region)
        return rank, region


Arg: TypeAlias = "tuple[int, Region] | Term"
MAX_NESTING = 64  # levels of nested terms


class Post(NamedTuple):
    """Post-condition: on each of `ranks`, slot j of `region` holds exactly the sum of slot j of all terms."""

    ranks: tuple[int, ...]
    region: Region
    terms: tuple[Term, ...]


class Op(NamedTuple):
    """One op. `index`: its row in the columns; `after`: rows of ops of the same rank; `line`: its source line."""

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
    "chan_in": "i4",  # row of `channels`: where it receives, waits or gets; -1: none
    "chan_out": "i4",  # row of `channels`: where it sends, signals or puts; -1: none
    "call": "i4",  # row of `kernels` (compute) or `collectives` (collective), -1: none
    "line": "i4",  # row of `lines`, -1: unknown
    "read_start": "i8",  # op i reads regions read_start[i]:read_start[i+1] of the read_* columns
    "write_start": "i8",
    "dep_start": "i8",
    "dep": "i8",  # rows of ops of the same rank that must end first
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
