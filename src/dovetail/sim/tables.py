"""tables: the simulators' input: columns of a Program and its Prices, flat, checked, in fixed types."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.core import ProgramError
from dovetail.cost.prices import Prices
from dovetail.ir import RECVS, SENDS, Kind, Program
from dovetail.ir.program import check_columns, check_tables, check_types


class State(IntEnum):
    """The state of an op. Both simulators write these numbers; `stuck` reads them."""

    queued = 0  # a predecessor in its queue, or an op it is after, has not ended
    partner = 1  # waits for a message, a signal, or the other members of a collective
    taking = 2  # has its message or signal, which is still in flight
    working = 3  # local work
    place = 4  # waits for a free place in the channel's FIFO, or for its receive to be posted
    links = 5  # waits for the links of its route
    wire = 6  # occupies them
    flight = 7  # a put on its way
    meeting = 8  # a collective going on
    stored = 9  # a switch has its message: waits for the links beyond, or occupies them; a send has ended
    ended = 10


class Task(IntEnum):
    """How the simulator treats an op."""

    work = 0  # local work only
    recv = 1
    send = 2
    recv_send = 3
    put = 4  # or a get: the channel that carries the data is its `chan_out`
    signal = 5
    wait = 6
    collective = 7


TASK_OF_KIND = np.array(
    [
        Task.recv_send if kind in RECVS and kind in SENDS
        else Task.recv if kind in RECVS
        else Task.send if kind in SENDS
        else Task.put if kind == Kind.get
        else Task[kind.name] if kind.name in Task.__members__
        else Task.work
        for kind in Kind
    ],
    dtype=np.uint8,
)  # fmt: skip

# The task of every byte; one that is no kind is taken for a collective, so that `check` meets it.
TASK_BYTES = TASK_OF_KIND.tobytes().ljust(256, bytes([Task.collective]))

RECEIVES = np.array([task in (Task.recv, Task.recv_send, Task.wait) for task in Task])
SENDS_OUT = np.array([task in (Task.send, Task.recv_send, Task.put, Task.signal) for task in Task])


@dataclass(frozen=True, eq=False)
class Tables:
    """Flat input of a simulation: per op, per rank and lane, per channel and per collective."""

    num_ranks: int
    num_lanes: int
    num_links: int
    task: NDArray[np.uint8]
    rank: NDArray[np.int32]
    lane: NDArray[np.int32]
    chan_in: NDArray[np.int32]
    chan_out: NDArray[np.int32]
    call: NDArray[np.int32]
    dep_start: NDArray[np.int64]
    dep: NDArray[np.int64]
    computes: NDArray[np.bool_]  # per lane: its engine is `compute`
    chan_src: NDArray[np.int32]
    chan_dst: NDArray[np.int32]
    depth: NDArray[np.int32]
    group_start: NDArray[np.int64]  # collective c meets ranks group[group_start[c]:group_start[c + 1]]
    group: NDArray[np.int32]
    prices: Prices

    @classmethod
    def of(cls, program: Program, prices: Prices) -> Tables:
        """Return the tables, checked.

        Raises
        ------
        ProgramError
            If a channel is missing or belongs to other ranks, or a rank is outside its group.
        """
        check_columns(program)
        tables = cls.unchecked(program, prices)
        tables.check(program)
        return tables

    @classmethod
    def unchecked(cls, program: Program, prices: Prices) -> Tables:
        """Return the tables; of the columns of ops, only types and lengths are checked."""
        check_tables(program)
        check_types(program)
        prices.check_fit(program)
        col, kind = program.columns, program.columns["kind"]
        chan = np.array([c[:4] for c in program.channels], dtype=np.int32).reshape(-1, 4)
        groups = [c.group for c in program.collectives]
        kinds = kind.tobytes()
        return cls(
            num_ranks=program.num_ranks,
            num_lanes=len(program.lanes),
            num_links=prices.num_links,
            task=np.frombuffer(kinds.translate(TASK_BYTES), np.uint8),
            rank=np.ascontiguousarray(col["rank"], np.int32),
            lane=np.ascontiguousarray(col["lane"], np.int32),
            chan_in=np.ascontiguousarray(col["chan_in"], np.int32),
            chan_out=np.ascontiguousarray(
                np.where(kind == Kind.get, col["chan_in"], col["chan_out"]) if Kind.get in kinds else col["chan_out"],
                np.int32,
            ),
            call=np.ascontiguousarray(col["call"], np.int32),
            dep_start=np.ascontiguousarray(col["dep_start"], np.int64),
            dep=np.ascontiguousarray(col["dep"], np.int64),
            computes=np.array([lane.engine == "compute" for lane in program.lanes], dtype=np.bool_),
            chan_src=np.ascontiguousarray(chan[:, 0]),
            chan_dst=np.ascontiguousarray(chan[:, 1]),
            depth=np.ascontiguousarray(chan[:, 3]),
            group_start=np.cumsum([0, *map(len, groups)], dtype=np.int64),
            group=np.array([rank for group in groups for rank in group], dtype=np.int32),
            prices=prices,
        )

    @property
    def is_plain(self) -> bool:
        """Whether there are no puts, gets and collectives, whose ranks only `check` compares with their channels."""
        tasks = self.task.tobytes()
        return Task.put not in tasks and Task.collective not in tasks

    def check(self, program: Program) -> None:
        """Raise ProgramError if an op has no channel to or from its rank, or is in no group of its rank."""
        _check_channels(program, self)
        _check_collectives(program, self)


def _check_channels(program: Program, tables: Tables) -> None:
    """Check that receives, waits and gets have a channel to their rank, and sends, puts and signals one from it."""
    gets = program.columns["kind"] == Kind.get
    receives = RECEIVES[tables.task] | gets
    sends = SENDS_OUT[tables.task] & ~gets
    for way, mask, chan, end in (
        ("to", receives, tables.chan_in, tables.chan_dst),
        ("from", sends, tables.chan_out, tables.chan_src),
    ):
        rows = np.flatnonzero(mask)
        bad = rows[(chan[rows] < 0) | (chan[rows] >= len(end))]
        if not len(bad):
            bad = rows[end[chan[rows]] != tables.rank[rows]]
        if len(bad):
            what = f"{describe(program, int(bad[0]))} has no channel {way} its rank"
            raise ProgramError(what, where=_line(program, bad))


def _check_collectives(program: Program, tables: Tables) -> None:
    rows = np.flatnonzero(tables.task == Task.collective)
    bad = rows[(tables.call[rows] < 0) | (tables.call[rows] >= len(program.collectives))]
    if not len(bad):
        stride = max(program.num_ranks, 1)
        owner = np.repeat(np.arange(len(program.collectives)), np.diff(tables.group_start))
        members = owner * stride + tables.group
        if np.any(tables.group < 0) or np.any(tables.group >= stride) or len(np.unique(members)) < len(members):
            raise ProgramError("a collective's group names a rank twice, or one that does not exist")
        bad = rows[~np.isin(tables.call[rows].astype(np.int64) * stride + tables.rank[rows], members)]
    if len(bad):
        raise ProgramError(f"{describe(program, int(bad[0]))} is in no group of its rank", where=_line(program, bad))


def describe(program: Program, op: int) -> str:
    """Return an op's name in errors.

    >>> from dovetail.ir import Builder
    >>> b = Builder("one", 1)
    >>> _ = b.add(Kind.nop, 0, b.lane("net", "net"))
    >>> describe(b.build(), 0)
    "op 0 'nop' on rank 0"
    """
    col = program.columns
    return f"op {op} '{Kind(int(col['kind'][op])).name}' on rank {int(col['rank'][op])}"


def _line(program: Program, rows: NDArray[Any]) -> str | None:
    line = int(program.columns["line"][rows[0]])
    return program.lines[line] if line >= 0 else None
