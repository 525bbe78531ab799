"""columns: make a Program of the rows of a plan, for one run or several in a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.collective.mscclpp.launch import KERNEL
from dovetail.collective.mscclpp.lower import Lowering
from dovetail.collective.mscclpp.steps import End, Row
from dovetail.ir import Buffer, Channel, Kind, Lane, Program, Region, check_columns
from dovetail.ir.types import COLUMNS

_DEPTH = 8  # of channels: a formality, because a plan's channels hold no messages


class Launched(NamedTuple):
    """A Program, and the rows of one run: op i of the Program is row i % len(rows)."""

    program: Program
    rows: Sequence[Row]

    def row(self, index: int) -> Row:
        return self.rows[index % len(self.rows)]

    def run(self, index: int) -> int:
        return index // len(self.rows)


def alone(lowering: Lowering) -> Program:
    """Return the ops of the plan, without the starts and ends of kernels."""
    return _program(lowering, [row for row in _all(lowering) if row.lane != KERNEL], 1)


def launched(lowering: Lowering, runs: int = 1, *, has_caller: bool = True) -> Launched:
    """Return the plan launched once or several times in a row; with double scratch, runs alternate halves. Without a
    caller, only its ops touch its buffers.
    """
    rows = _all(lowering)
    return Launched(_program(lowering, rows, runs, has_caller), rows)


def _all(lowering: Lowering) -> list[Row]:
    return [row for each in lowering.rows for row in (*each.before, each, *each.behind)]


def _program(lowering: Lowering, rows: Sequence[Row], runs: int, has_caller: bool = True) -> Program:
    """A Program of all runs. For several runs, or unsynchronised threads, it has no post-conditions."""
    buffers = _buffers(lowering)
    table = _Table(rows, {buffer.name: at for at, buffer in enumerate(buffers)})
    columns = table.columns(has_caller)
    if runs > 1:
        halves = [buffer for buffer in buffers if buffer.role == "scratch" and buffer.name != "temp"]
        halves = halves if lowering.document.double_scratch else []
        other = np.arange(len(buffers))
        for at, half in enumerate(halves):
            other[buffers.index(half)] = len(buffers) + at
        buffers += [half._replace(name=f"{half.name}1") for half in halves]
        columns = _repeated(columns, runs, other)
    program = Program(
        lowering.document.name,
        len(lowering.document.gpus),
        tuple(buffers),
        tuple(Lane(name, "net") for name in table.lanes),
        tuple(Channel(*end, _DEPTH) for end in table.channels),
        (),
        (),
        lowering.memory.posts if runs == 1 and lowering.pieces is None else (),
        tuple(table.lines),
        columns,
    )
    check_columns(program)
    return program


def _buffers(lowering: Lowering) -> list[Buffer]:
    """The buffers that the plan declares, and those that it uses without declaring them."""
    used = {region.buffer for row in lowering.rows for region in (*row.reads, *row.writes)}
    known = [*lowering.memory.buffers, Buffer("temp", "scratch", tuple(lowering.temp))]
    return [buffer for buffer in known if buffer.role != "scratch" or any(buffer.slots) or buffer.name in used]


class _Table:
    """The columns of some rows, and the tables that they point to."""

    def __init__(self, rows: Sequence[Row], buffers: dict[str, int]) -> None:
        self.rows, self.buffers = rows, buffers
        self.lanes: dict[str, int] = {}
        self.channels: dict[End, int] = {}
        self.lines: dict[str, int] = {}

    def columns(self, has_caller: bool) -> dict[str, NDArray[Any]]:
        rows, lanes, lines = self.rows, self.lanes, self.lines
        bare = [not has_caller and row.lane == KERNEL for row in rows]
        found: dict[str, Any] = {
            "kind": [Kind.nop if is_bare else row.kind for row, is_bare in zip(rows, bare, strict=True)],
            "rank": [row.rank for row in rows],
            "lane": [lanes.setdefault(row.lane, len(lanes)) for row in rows],
            "chan_in": [self._channel(row.chan_in) if row.chan_in else -1 for row in rows],
            "chan_out": [self._channel(row.chan_out) if row.chan_out else -1 for row in rows],
            "call": np.full(len(rows), -1),
            "line": [lines.setdefault(row.line, len(lines)) for row in rows],
        }
        found |= self._dependencies()
        found |= self._regions("read", [() if b else row.reads for row, b in zip(rows, bare, strict=True)])
        found |= self._regions("write", [() if b else row.writes for row, b in zip(rows, bare, strict=True)])
        return {name: np.array(found[name], dtype=dtype) for name, dtype in COLUMNS.items()}

    def _channel(self, end: End) -> int:
        return self.channels.setdefault(end, len(self.channels))

    def _dependencies(self) -> dict[str, Any]:
        number = {id(row): at for at, row in enumerate(self.rows)}
        after = [[number[id(other)] for other in (*row.after, *row.flags) if id(other) in number] for row in self.rows]
        return {"dep": [each for found in after for each in found], "dep_start": _starts(after)}

    def _regions(self, side: str, found: Sequence[Sequence[Region]]) -> dict[str, Any]:
        flat = [region for regions in found for region in regions]
        parts = {
            "buffer": [self.buffers[region.buffer] for region in flat],
            "offset": [region.offset for region in flat],
            "count": [region.count for region in flat],
            "stride": np.zeros(len(flat)),
            "blocks": np.ones(len(flat)),
            "start": _starts(found),
        }
        return {f"{side}_{part}": values for part, values in parts.items()}


def _starts(lists: Sequence[Sequence[Any]]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum([len(each) for each in lists], dtype=np.int64)])


def _repeated(columns: dict[str, NDArray[Any]], runs: int, other: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """The rows once for each run; every second run uses the `other` buffers."""
    num_ops, found = len(columns["kind"]), {}
    for name, column in columns.items():
        if name.endswith("_start"):
            found[name] = np.concatenate([[0], *(column[1:] + run * column[-1] for run in range(runs))])
        elif name == "dep":
            found[name] = np.concatenate([column + run * num_ops for run in range(runs)])
        elif name.endswith("_buffer"):
            found[name] = np.concatenate([other[column] if run % 2 else column for run in range(runs)])
        else:
            found[name] = np.tile(column, runs)
    return {name: np.array(found[name], dtype=dtype) for name, dtype in COLUMNS.items()}
