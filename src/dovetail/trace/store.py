"""A Trace on disk: chunks of rows in the order of their ends, then a JSON index by which a reader seeks.

8 bytes   "dovetrac"
chunks    columns one after the other, in the order and with the types of the index, little-endian
index     JSON: schema, num_ranks, names, comms, meta, columns (name → type),
          chunks [[offset, rows, least start_s, greatest end_s], …]
16 bytes  length of the index as a little-endian number, "dovetrac"
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from errno import ENOSPC
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.core import DovetailError, EnvironmentFault, check_schema
from dovetail.trace.decode import KINDS
from dovetail.trace.trace import COLUMNS, SCHEMA, Comm, Trace, head_of, no_columns, read_head

MAGIC = b"dovetrac"
CHUNK_ROWS = 1 << 16
LATER = ("repeats", "pause_s")  # columns that files of before lack
_TAIL = "<Q8s"
Columns = dict[str, NDArray[Any]]


class Chunk(NamedTuple):
    """Rows that lie together, and the time that they cover."""

    offset: int
    num_rows: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class TraceFile:
    """A trace on disk, read as far as it is asked for."""

    path: Path
    num_ranks: int
    names: tuple[str, ...]
    comms: tuple[Comm, ...]
    meta: dict[str, Any] = field(repr=False)
    chunks: tuple[Chunk, ...] = field(repr=False)
    types: dict[str, str] = field(repr=False, default_factory=lambda: dict(COLUMNS))

    @property
    def num_rows(self) -> int:
        return sum(chunk.num_rows for chunk in self.chunks)

    def parts(self) -> Iterator[Trace]:
        """The trace chunk by chunk."""
        return (self._trace([chunk]) for chunk in self.chunks)

    def read(self) -> Trace:
        """The whole trace."""
        return self._trace(self.chunks)

    def chunk_rows(self, first: int, last: int) -> Trace:
        """The rows of some chunks, from number `first` to before `last`."""
        return self._trace(self.chunks[first:last])

    def between(self, start_s: float, end_s: float) -> Trace:
        """Rows that overlap [start_s, end_s]; other chunks are not read."""
        near = self._trace([c for c in self.chunks if c.end_s >= start_s and c.start_s <= end_s])
        return near.rows((near.columns["end_s"] >= start_s) & (near.columns["start_s"] <= end_s))

    def _trace(self, chunks: Iterable[Chunk]) -> Trace:
        found = [self._columns(chunk) for chunk in chunks]
        columns = {name: np.concatenate([c[name] for c in found]) for name in COLUMNS} if found else no_columns()
        return Trace(self.num_ranks, self.names, self.comms, columns, self.meta)

    def _columns(self, chunk: Chunk) -> Columns:
        with self.path.open("rb") as file:
            file.seek(chunk.offset)
            found = {
                name: np.fromfile(file, np.dtype(t).newbyteorder("<"), chunk.num_rows) for name, t in self.types.items()
            }
        found = {name: np.zeros(chunk.num_rows, COLUMNS[name]) for name in LATER} | found
        if any(len(column) != chunk.num_rows for column in found.values()):
            raise DovetailError(f"the trace {self.path} is cut short", hint="merge it anew: `dovetail trace merge`")
        told = {name: found[name].astype(COLUMNS[name], copy=False) for name in COLUMNS}
        limits = {"kind": len(KINDS), "rank": self.num_ranks, "name": len(self.names), "comm": len(self.comms)}
        for name, limit in limits.items():
            if len(told[name]) and (told[name].max() >= limit or int(told[name].min()) < -(name == "comm")):
                hint = "merge it anew: `dovetail trace merge`"
                raise DovetailError(f"the trace {self.path} has broken rows", found=f"column {name}", hint=hint)
        return told


def open_trace(path: str | Path) -> TraceFile:
    """A trace on disk. Raises DovetailError for a file of another kind, or one that is cut short."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            start = file.read(len(MAGIC))
            if start != MAGIC:
                hint = "`dovetail trace run` and `trace merge` write traces"
                raise DovetailError(f"{path} is no trace", found=f"it opens with {start!r}", hint=hint)
            document = _index(path, file)
    except OSError as error:
        raise DovetailError(f"cannot read the trace {path}", found=error.strerror) from error
    try:
        check_schema(document, SCHEMA)
        return _file(path, document)
    except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
        raise DovetailError(f"the trace {path} has a broken index", found=str(error), hint="merge it anew") from error


def _file(path: Path, document: dict[str, Any]) -> TraceFile:
    """The trace that an index tells of; a ValueError, or its like, where that is none."""
    chunks = tuple(Chunk(*chunk) for chunk in document["chunks"])
    types = {str(name): np.dtype(kind).str for name, kind in document["columns"].items()}
    found = TraceFile(path, *read_head(document), document["meta"], chunks, types)
    missing = COLUMNS.keys() - types.keys() - set(LATER)
    if missing or not isinstance(found.meta, dict) or found.num_ranks < 0 or found.num_rows < 0:
        raise ValueError(f"no {', '.join(sorted(missing))}" if missing else "impossible numbers")
    return found


def _index(path: Path, file: Any) -> dict[str, Any]:
    size = file.seek(0, 2)
    file.seek(max(size - struct.calcsize(_TAIL), 0))
    tail = file.read()
    length, magic = struct.unpack(_TAIL, tail) if len(tail) == struct.calcsize(_TAIL) else (0, b"")
    if magic != MAGIC or length > size:
        raise DovetailError(f"the trace {path} is cut short", found=f"{size} bytes", hint="merge it anew")
    file.seek(size - len(tail) - length)
    try:
        document: dict[str, Any] = json.loads(file.read(length))
    except ValueError as error:
        raise DovetailError(f"the trace {path} has a broken index", found=str(error)) from error
    return document


class TraceWriter:
    """Writes a trace as its rows come; `close` says what they are rows of. A context: an error removes the file."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._partial = self.path.with_name(f".{self.path.name}.partial")
        self._chunks: list[Chunk] = []
        self._waiting: list[Columns] = []
        self._num_waiting = 0
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._partial.open("wb")
            self._file.write(MAGIC)
        except OSError as error:
            raise EnvironmentFault(f"cannot write {path}", found=error.strerror) from error

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self._file.closed:
            self._file.close()
        self._partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            hint = f"`dovetail trace merge {self.path.parent} --out FILE` writes it elsewhere"
            full = hint if error.errno == ENOSPC else None
            raise EnvironmentFault(f"cannot write {self.path}", found=error.strerror, hint=full) from error

    def add(self, columns: Columns) -> None:
        """Further rows, in the order of their ends."""
        for start in range(0, len(columns["kind"]), CHUNK_ROWS):
            rows = {name: column[start : start + CHUNK_ROWS] for name, column in columns.items()}
            self._waiting.append(rows)
            self._num_waiting += len(rows["kind"])
            if self._num_waiting >= CHUNK_ROWS:
                self._flush()

    def close(self, num_ranks: int, names: tuple[str, ...], comms: tuple[Comm, ...], meta: dict[str, Any]) -> TraceFile:
        """Write the index; the file has its name from here on."""
        self._flush()
        head = head_of(num_ranks, names, comms, meta)
        index = json.dumps({"schema": SCHEMA, **head, "columns": COLUMNS, "chunks": self._chunks}).encode()
        self._file.write(index + struct.pack(_TAIL, len(index), MAGIC))
        self._file.close()
        self._partial.replace(self.path)
        return open_trace(self.path)

    def _flush(self) -> None:
        if not self._num_waiting:
            return
        columns = {name: np.concatenate([part[name] for part in self._waiting]) for name in COLUMNS}
        bounds = float(columns["start_s"].min()), float(columns["end_s"].max())
        self._chunks.append(Chunk(self._file.tell(), self._num_waiting, *bounds))
        for name, dtype in COLUMNS.items():
            self._file.write(np.ascontiguousarray(columns[name], np.dtype(dtype).newbyteorder("<")).data)
        self._waiting, self._num_waiting = [], 0


def save_trace(path: str | Path, trace: Trace) -> TraceFile:
    """Write a Trace that is in memory."""
    with TraceWriter(path) as writer:
        writer.add(trace.columns)
        return writer.close(trace.num_ranks, trace.names, trace.comms, trace.meta)
