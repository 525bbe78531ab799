"""store: a Trace on disk: chunks of rows, ordered by end time, then a JSON index.

8 bytes   "dovetrac"
chunks    columns one after the other, in the order and with the types of the index, little-endian
12 bytes  "dovecrc1", CRC-32 of the index
index     JSON: schema, num_ranks, names, comms, meta, columns (name → type),
          chunks [[offset, rows, smallest start_s, largest end_s, CRC-32 of its bytes], …]
16 bytes  length of the index as a little-endian number, "dovetrac"

Older files have no checksums.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from errno import EDQUOT, EFBIG, ENOSPC
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.core import DovetailError, EnvironmentFault, check_schema
from dovetail.trace.decode import KINDS
from dovetail.trace.process_file import MOST_UNSEEN
from dovetail.trace.trace import COLUMNS, SCHEMA, Comm, Trace, check_meta, check_ranks, head_of, no_columns, read_head

MAGIC = b"dovetrac"
CHUNK_ROWS = 1 << 16
LATER = ("repeats", "pause_s", "ready_s")  # columns that older files lack
_TAIL, _CHECK = struct.Struct("<Q8s"), struct.Struct("<8sI")
_CHECKED = b"dovecrc1"
_ANEW = "merge the trace again: `dovetail trace merge`"
_FAR_S = 1e9  # about thirty years; larger times must be damaged
Columns = dict[str, NDArray[Any]]


class Chunk(NamedTuple):
    """Consecutive rows of the file, and the interval of time that they cover."""

    offset: int
    num_rows: int
    start_s: float
    end_s: float
    checksum: int | None = None


@dataclass(frozen=True)
class TraceFile:
    """A trace on disk; methods read only the chunks they need, and raise DovetailError for damaged ones."""

    path: Path
    num_ranks: int
    names: tuple[str, ...]
    comms: tuple[Comm, ...]
    meta: dict[str, Any] = field(repr=False)
    chunks: tuple[Chunk, ...] = field(repr=False)
    types: dict[str, str] = field(repr=False, default_factory=lambda: dict(COLUMNS))

    @property
    def num_rows(self) -> int:
        """Return the number of rows of all chunks."""
        return sum(chunk.num_rows for chunk in self.chunks)

    def parts(self) -> Iterator[Trace]:
        """Yield the trace chunk by chunk."""
        return (self._trace([chunk]) for chunk in self.chunks)

    def read(self) -> Trace:
        """Return the whole trace."""
        return self._trace(self.chunks)

    def chunk_rows(self, first: int, last: int) -> Trace:
        """Return the rows of the chunks from number `first` to before `last`."""
        return self._trace(self.chunks[first:last])

    def between(self, start_s: float, end_s: float) -> Trace:
        """Return the rows that overlap the interval [start_s, end_s]; reads no other chunks."""
        near = self._trace([c for c in self.chunks if c.end_s >= start_s and c.start_s <= end_s])
        return near.rows((near.columns["end_s"] >= start_s) & (near.columns["start_s"] <= end_s))

    def _trace(self, chunks: Iterable[Chunk]) -> Trace:
        found = [self._columns(chunk) for chunk in chunks]
        columns = {name: np.concatenate([c[name] for c in found]) for name in COLUMNS} if found else no_columns()
        return Trace(self.num_ranks, self.names, self.comms, columns, self.meta)

    def _columns(self, chunk: Chunk) -> Columns:
        types = {name: np.dtype(kind).newbyteorder("<") for name, kind in self.types.items()}
        data = self._bytes(chunk, sum(kind.itemsize for kind in types.values()) * chunk.num_rows)
        found = {name: np.zeros(chunk.num_rows, COLUMNS[name]) for name in LATER}
        at = 0
        for name, kind in types.items():
            found[name] = np.frombuffer(data, kind, chunk.num_rows, at)
            at += kind.itemsize * chunk.num_rows
        columns = {name: found[name].astype(COLUMNS[name], copy=False) for name in COLUMNS}
        broken = self._broken(columns)
        if broken is None and chunk.checksum is None:
            broken = doubtful_column(columns)
        if broken is not None:
            raise DovetailError(f"the trace {self.path} has broken rows", found=f"column {broken}", hint=_ANEW)
        return columns

    def _bytes(self, chunk: Chunk, num_bytes: int) -> bytes:
        """Return the bytes of a chunk. Raise DovetailError if they differ from those that were written."""
        try:
            with self.path.open("rb") as file:
                file.seek(chunk.offset)
                data = file.read(num_bytes)
        except OSError as error:
            raise DovetailError(f"cannot read the trace {self.path}", found=error.strerror) from error
        if len(data) != num_bytes:
            raise DovetailError(f"the trace {self.path} is truncated", hint=_ANEW)
        if chunk.checksum is not None and zlib.crc32(data) != chunk.checksum:
            found = f"the checksum of the rows at byte {chunk.offset} differs"
            raise DovetailError(f"the trace {self.path} is damaged", found=found, hint=_ANEW)
        return data

    def _broken(self, columns: Columns) -> str | None:
        """Return the name of a column with values out of range; None if there is none."""
        limits = {"kind": len(KINDS), "rank": self.num_ranks, "name": len(self.names), "comm": len(self.comms)}
        for name, limit in limits.items():
            column = columns[name]
            if len(column) and (column.max() >= limit or int(column.min()) < -(name == "comm")):
                return name
        return None


def doubtful_column(columns: Columns) -> str | None:
    """Return the name of a column with impossible values, for files without checksums; None if there is none."""
    for name in ("start_s", "end_s", "pause_s"):
        if not (np.abs(columns[name]) < _FAR_S).all():  # also for NaN
            return name
    for name in ("part", "thread", "repeats"):
        if (columns[name] < 0).any():
            return name
    later = np.flatnonzero(columns["part"][1:] > 0)
    return "part" if (columns["part"][later + 1] != columns["part"][later] + 1).any() else None


def open_trace(path: str | Path) -> TraceFile:
    """Open a trace on disk. Raise DovetailError for a file of another kind, or a truncated or damaged one."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            start = file.read(len(MAGIC))
            if start != MAGIC:
                hint = "`dovetail trace run` and `trace merge` write traces"
                found = f"it begins with {start!r}" if start else "an empty file"
                raise DovetailError(f"{path} is no trace", found=found, hint=hint)
            at, document = _index(path, file)
    except OSError as error:
        raise DovetailError(f"cannot read the trace {path}", found=error.strerror) from error
    try:
        check_schema(document, SCHEMA)
        return _file(path, document, at)
    except DovetailError as error:
        found = error.found or error.what
        raise DovetailError(f"the trace {path} has a broken index", found=found, hint=_ANEW) from error
    except (TypeError, ValueError, KeyError, AttributeError, IndexError, OverflowError) as error:
        found = f"{type(error).__name__}: {error}"
        raise DovetailError(f"the trace {path} has a broken index", found=found, hint=_ANEW) from error


def _file(path: Path, document: dict[str, Any], rows_end: int) -> TraceFile:
    """Return the trace of an index; its rows end before byte `rows_end`.

    Raises ValueError, TypeError, KeyError, … if the index is damaged.
    """
    chunks = tuple(_chunk(*chunk) for chunk in document["chunks"])
    types = {str(name): _plain_type(kind) for name, kind in document["columns"].items()}
    num_ranks, names, comms = read_head(document)
    found = TraceFile(path, num_ranks, names, comms, check_meta(document["meta"], num_ranks), chunks, types)
    missing = COLUMNS.keys() - types.keys() - set(LATER)
    if missing:
        raise ValueError(f"no column {', '.join(sorted(missing))}")
    row_bytes = sum(np.dtype(kind).itemsize for kind in types.values())
    for chunk in chunks:
        if chunk.offset < len(MAGIC) or chunk.num_rows < 0 or chunk.offset + chunk.num_rows * row_bytes > rows_end:
            raise ValueError(f"{chunk.num_rows} rows at byte {chunk.offset}, which the file does not hold")
    seen = {about["rank"] for about in found.meta.get("ranks", ())}
    if found.num_ranks > len(seen) + MOST_UNSEEN:  # an imported trace, or a damaged one: check the rows
        seen.update(*(np.unique(part.columns["rank"]).tolist() for part in found.parts()))
    check_ranks(found.num_ranks, len(seen))
    return found


def _chunk(offset: int, num_rows: int, start_s: float, end_s: float, checksum: int | None = None) -> Chunk:
    whole = all(type(number) is int for number in (offset, num_rows, checksum or 0))
    if not whole or not isfinite(start_s) or not isfinite(end_s):
        raise ValueError("a chunk's place, rows or checksum is no whole number, or its times are not finite")
    return Chunk(offset, num_rows, float(start_s), float(end_s), checksum)


def _plain_type(kind: Any) -> str:
    """Return the type of a column. Raise ValueError unless it is a number of at most 8 bytes."""
    found = np.dtype(kind) if isinstance(kind, str) else None
    if found is None or found.kind not in "biuf" or found.itemsize > 8:
        raise ValueError(f"a column of type {kind!r}")
    return str(found.str)


def _index(path: Path, file: Any) -> tuple[int, dict[str, Any]]:
    """Return the byte at which the rows end, and the index. Raise DovetailError if they are damaged."""
    size = file.seek(0, 2)
    file.seek(max(size - _TAIL.size, 0))
    tail = file.read()
    length, magic = _TAIL.unpack(tail) if len(tail) == _TAIL.size else (0, b"")
    if magic != MAGIC or size < len(MAGIC) + _TAIL.size:
        found = f"its {size} bytes do not end with the mark of a trace"
        raise DovetailError(f"the trace {path} is truncated", found=found, hint=_ANEW)
    at = size - _TAIL.size - length
    if at < len(MAGIC):
        found = f"an index of {length} bytes in a file of {size}"
        raise DovetailError(f"the trace {path} has a broken index", found=found, hint=_ANEW)
    file.seek(max(at - _CHECK.size, 0))
    mark, checksum = _CHECK.unpack(file.read(_CHECK.size))
    file.seek(at)
    text = file.read(length)
    if mark == _CHECKED and zlib.crc32(text) != checksum:
        raise DovetailError(f"the trace {path} has a broken index", found="its checksum differs", hint=_ANEW)
    try:
        document = json.loads(text)
        if not isinstance(document, dict):
            raise ValueError("not a JSON object")
    except (ValueError, RecursionError) as error:
        raise DovetailError(f"the trace {path} has a broken index", found=str(error), hint=_ANEW) from error
    return at, document


class TraceWriter:
    """Writes batches of rows, then, by `close`, the index. A context manager: an error removes the file."""

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
        with suppress(OSError):  # closing flushes the buffer, which fails again on a full disk
            self._file.close()
        self._partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            hint = f"write it to another disk: `dovetail trace merge {self.path.parent} --out FILE`"
            full = hint if error.errno in (ENOSPC, EDQUOT, EFBIG) else None
            raise EnvironmentFault(f"cannot write {self.path}", found=error.strerror, hint=full) from error

    def add(self, columns: Columns) -> None:
        """Append rows, which must be ordered by end time."""
        for start in range(0, len(columns["kind"]), CHUNK_ROWS):
            rows = {name: column[start : start + CHUNK_ROWS] for name, column in columns.items()}
            self._waiting.append(rows)
            self._num_waiting += len(rows["kind"])
            if self._num_waiting >= CHUNK_ROWS:
                self._flush()

    def close(self, num_ranks: int, names: tuple[str, ...], comms: tuple[Comm, ...], meta: dict[str, Any]) -> TraceFile:
        """Write the index, rename the file to its final name, and open it."""
        self._flush()
        head = head_of(num_ranks, names, comms, meta)
        index = json.dumps({"schema": SCHEMA, **head, "columns": COLUMNS, "chunks": self._chunks}).encode()
        self._file.write(_CHECK.pack(_CHECKED, zlib.crc32(index)) + index + _TAIL.pack(len(index), MAGIC))
        self._file.close()
        self._partial.replace(self.path)
        return open_trace(self.path)

    def _flush(self) -> None:
        if not self._num_waiting:
            return
        columns = {name: np.concatenate([part[name] for part in self._waiting]) for name in COLUMNS}
        bounds = float(columns["start_s"].min()), float(columns["end_s"].max())
        at, checksum = self._file.tell(), 0
        for name, dtype in COLUMNS.items():
            data = np.ascontiguousarray(columns[name], np.dtype(dtype).newbyteorder("<")).data
            checksum = zlib.crc32(data, checksum)
            self._file.write(data)
        self._chunks.append(Chunk(at, self._num_waiting, *bounds, checksum))
        self._waiting, self._num_waiting = [], 0


def save_trace(path: str | Path, trace: Trace) -> TraceFile:
    """Write a Trace to a file, and open it."""
    with TraceWriter(path) as writer:
        writer.add(trace.columns)
        return writer.close(trace.num_ranks, trace.names, trace.comms, trace.meta)
