"""process_file: read the file of one traced process, piece by piece. Format: native/trace/dovetail_trace_file.h."""

from __future__ import annotations

import json
import os
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.core import DovetailError

MAGIC = b"dovetrc1"
PAGE = 4096
KEEP_NEWEST = 1
REPEAT_BITS = 20
MOST_UNSEEN = 4096  # most ranks of a job without a file; a header that claims more is damaged
_MOST_NAMES, _MOST_COMMS, _MOST_RANKS = 1 << 12, 1 << 24, 1 << 24
_HEAD = "8s8I2iQQqqQqq64s256s"


class EventKind(IntEnum):
    """Kinds of events in the file: `enum dvt_kind` in C."""

    empty, thread, point, begin, end, send, recv, done, request, collective, root, put, get, window, wide, comm = range(
        16
    )


class Anchor(NamedTuple):
    """Three clocks, read at one moment: the event clock, CLOCK_MONOTONIC_RAW and CLOCK_REALTIME."""

    clock: int
    raw_ns: int
    real_ns: int


class Piece(NamedTuple):
    """Consecutive events of one thread, after which `lost` events did not fit into the file."""

    thread: int
    part: int
    offset: int
    num_events: int
    lost: int


@dataclass(frozen=True)
class ProcessFile:
    """One process: its identity, and its events by thread.

    Attributes
    ----------
    path : Path
        The file.
    host, pid, program : str, int, str
        Host, process id and command of the process.
    rank, num_ranks : int
        Rank and number of ranks of its job; -1 if it never recorded them.
    finalized : bool
        Whether it ended its trace itself.
    lost : int
        Events that did not fit, or that newer ones have overwritten.
    first, last : Anchor
        The clocks at begin and end.
    pieces : tuple of Piece
        Its events.
    names, lanes : dict
        Text by number of a name; lane by number of a name whose intervals lie in a lane beside the threads.
    notes : tuple of dict
        Communicators, clock comparisons, memory maps, Python lines, and the kernel's counters (native/trace/load.c).
    event_type : dtype
        Type of an event in the file.
    faults : tuple of str
        What could not be read.
    base : int
        First rank of its job, if ranks are numbered across jobs.
    """

    path: Path
    host: str
    pid: int
    program: str
    rank: int
    num_ranks: int
    finalized: bool
    lost: int
    first: Anchor
    last: Anchor
    pieces: tuple[Piece, ...]
    names: dict[int, str] = field(repr=False)
    lanes: dict[int, str] = field(repr=False)
    notes: tuple[dict[str, Any], ...] = field(repr=False)
    event_type: np.dtype[Any] = field(repr=False)
    faults: tuple[str, ...] = ()
    base: int = 0

    def events(self, piece: Piece) -> NDArray[Any]:
        """Return the events of a piece: fields `word` and `about`, in the host's byte order."""
        with self.path.open("rb") as file:
            file.seek(piece.offset)
            found = np.fromfile(file, self.event_type, piece.num_events)
        return found.astype([("word", "u8"), ("about", "u8")], copy=False)


def read_process(path: str | Path) -> ProcessFile:
    """Read a process's file; a truncated or unfinished file is read as far as possible.

    Raises DovetailError for a file of another kind.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            page = file.read(PAGE)
            size = os.fstat(file.fileno()).st_size  # read after the header: a running process makes the file longer
    except OSError as error:
        raise DovetailError(f"cannot read the trace {path}", found=error.strerror) from error
    order, head = _head(path, page)
    _, _, header_bytes, segment_bytes, declared, keep, _, state, pid, rank, num_ranks, dropped, *rest = head
    event_type = np.dtype([("word", f"{order}u8"), ("about", f"{order}u8")])
    if header_bytes != PAGE or segment_bytes <= PAGE or (segment_bytes - PAGE) % event_type.itemsize:
        raise DovetailError(f"the trace {path} has a broken header", found=f"segments of {segment_bytes} bytes")
    if not (-1 <= rank < max(num_ranks, 1) and -1 <= num_ranks <= _MOST_RANKS):
        raise DovetailError(f"the trace {path} has a broken header", found=f"rank {rank} of {num_ranks}")
    faults = []
    if PAGE + declared * segment_bytes > size:
        faults.append(f"{path.name} is truncated: {size} bytes of {PAGE + declared * segment_bytes}")
    pieces, overwritten = _Scan(path, event_type, segment_bytes, keep == KEEP_NEWEST).pieces(size)
    names, lanes, notes = _lines(path.with_suffix(".jsonl"), num_ranks, faults)
    host, program = (text.split(b"\0")[0].decode(errors="replace") for text in rest[6:])
    first, last = Anchor(*rest[:3]), Anchor(*rest[3:6])
    return ProcessFile(
        *(path, host, pid, program, rank, num_ranks, state == 2, dropped + overwritten, first, last),
        *(pieces, names, lanes, notes, event_type, tuple(faults)),
    )


def _head(path: Path, page: bytes) -> tuple[str, tuple[Any, ...]]:
    """Return byte order and fields of the header. Raise DovetailError for a file of another kind."""
    if page[: len(MAGIC)] != MAGIC:
        found = "an empty file" if not page else f"it begins with {page[:8]!r}"
        raise DovetailError(f"{path} is no trace of a process", found=found, hint="give the folder of `trace run`")
    if len(page) < struct.calcsize("<" + _HEAD):
        raise DovetailError(f"the trace {path} is truncated", found=f"{len(page)} bytes, less than its header")
    order = "<" if page[8:12] == b"\4\3\2\1" else ">"
    return order, struct.unpack_from(order + _HEAD, page)


@dataclass(frozen=True)
class _Scan:
    """Finds the pieces in the segments of a file."""

    path: Path
    event_type: np.dtype[Any]
    segment_bytes: int
    is_ring: bool

    def pieces(self, size: int) -> tuple[tuple[Piece, ...], int]:
        """Return the pieces, ordered by thread and time, and the number of events that newer ones have overwritten."""
        found: list[Piece] = []
        overwritten = 0
        with self.path.open("rb") as file:
            for at in range(PAGE, size - PAGE, self.segment_bytes):
                file.seek(at)
                count, thread = np.fromfile(file, self.event_type[0], 2).tolist()
                room = (min(self.segment_bytes, size - at) - PAGE) // self.event_type.itemsize
                if not thread:
                    continue
                if self.is_ring and count > room:
                    file.seek(at + PAGE)
                    found += self._ring(np.fromfile(file, self.event_type, room), thread, at + PAGE, count % room)
                    overwritten += count - room
                else:
                    file.seek(at + PAGE)
                    events = np.fromfile(file, self.event_type, min(count, room))
                    found += self._parts(events, at + PAGE, max(count - room, 0))
        return tuple(sorted(found)), overwritten

    def _ring(self, events: NDArray[Any], thread: int, start: int, oldest: int) -> Iterator[Piece]:
        """Yield the pieces of a full ring buffer, from its oldest event on: one per thread that used it.

        A piece that passes the end of the buffer is cut in two. The last thread is `thread`; each other is named by the
        mark at which the next thread begins.
        """
        order = np.roll(np.arange(len(events)), -oldest)
        marks = np.flatnonzero((events["about"][order] & 15) == EventKind.thread)
        begins = [0, *(marks + 1).tolist()]
        ends = [*marks.tolist(), len(events)]
        threads = [int(events["about"][order[at]]) >> 16 for at in marks]
        parts: Counter[int] = Counter()
        for begin, end, its in zip(begins, ends, [*threads, thread], strict=True):
            turn = min(max(len(events) - oldest, begin), end)
            for at, until in ((begin, turn), (turn, end)):
                if its and at < until:
                    offset = start + int(order[at]) * self.event_type.itemsize
                    yield Piece(its, parts[its], offset, until - at, 0)
                    parts[its] += 1

    def _parts(self, events: NDArray[Any], start: int, lost: int) -> Iterator[Piece]:
        """Yield the pieces of a segment that did not overflow: one per thread that used it."""
        kinds = events["about"] & 15
        marks = [*np.flatnonzero(kinds == EventKind.thread).tolist(), len(events)]
        for i, (at, end) in enumerate(pairwise(marks)):
            word = int(events["word"][at])
            missing = lost if i == len(marks) - 2 else 0
            offset = start + (at + 1) * self.event_type.itemsize
            yield Piece(word >> 32, word & 0xFFFFFFFF, offset, end - at - 1, missing)


def _lines(
    path: Path, num_ranks: int, faults: list[str]
) -> tuple[dict[int, str], dict[int, str], tuple[dict[str, Any], ...]]:
    """Return names, their lanes, and notes. Adds unreadable lines to `faults`. `num_ranks`: of the job; -1: unknown."""
    names: dict[int, str] = {}
    lanes: dict[int, str] = {}
    notes, bad = [], 0
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        faults.append(f"{path.name} cannot be read: {error.strerror}; names are missing")
        text = ""
    for line in text.splitlines():
        try:
            note = json.loads(line)
            if not isinstance(note, dict):
                raise ValueError("no object")
            if "name" in note:
                number = _whole(note, "name", _MOST_NAMES)
                names[number] = str(note["text"])
                lanes |= {number: str(note["lane"])} if "lane" in note else {}
            else:
                _check(note, num_ranks if num_ranks >= 0 else MOST_UNSEEN)
                notes.append(note)
        except (ValueError, TypeError, KeyError, RecursionError):
            bad += 1
    if bad:
        faults.append(f"{path.name} has {bad} broken lines")
    return names, lanes, tuple(notes)


def _whole(note: dict[str, Any], key: str, end: int = 1 << 64) -> int:
    """Return a whole number of a note in [0, `end`). Raise ValueError or KeyError otherwise."""
    number = note[key]
    if type(number) is not int or not 0 <= number < end:
        raise ValueError(f"{key} is {number!r}")
    return int(number)


def _check(note: dict[str, Any], num_ranks: int) -> None:
    """Raise ValueError or KeyError if a note lacks fields that its readers need, or has ranks outside the job."""
    if "comm" in note:
        _whole(note, "comm", _MOST_COMMS)
        if "ranks" not in note:
            _whole(note, "size", num_ranks + 1)
        for ranks in (note.get("ranks", []), note.get("remote", [])):
            if not isinstance(ranks, list) or not all(type(rank) is int and -1 <= rank < num_ranks for rank in ranks):
                raise ValueError("invalid ranks")
        note["number"] = _whole({"number": 0, **note}, "number", 1 << 31)
    if "site" in note:
        _whole(note, "site"), _whole(note, "line"), str(note["file"])
    if "path" in note:
        _whole(note, "path"), _whole(note, "caller", note["path"]), int(note["call"])
    if "map" in note:
        _whole(note, "start"), _whole(note, "end"), _whole(note, "offset"), str(note["map"])
    if "load" in note and (len(note["load"]) != 8 or not all(type(count) is int for count in note["load"])):
        raise ValueError("invalid counters")
    if "waits" in note:
        about = dict(zip(("thread", "clock", "waited_ns"), note["waits"], strict=True))
        _whole(about, "thread", 1 << 31), _whole(about, "clock"), _whole(about, "waited_ns", 1 << 63)
    if "limit_bytes" in note:
        _whole(note, "limit_bytes")
    if "booted_ns" in note:
        _whole(note, "booted_ns"), [_whole({"cpu": cpu}, "cpu") for cpu in note["cpus"]]
    if "clock" in note:
        for key in ("mine_ns", "peer_ns", "half_trip_ns"):
            _whole(note["clock"], key, 1 << 63)
