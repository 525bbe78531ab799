"""chrome: read traces in Chrome's format, as Kineto (PyTorch's profiler), Perfetto and Dovetail write them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.core import DovetailError
from dovetail.trace.decode import KINDS
from dovetail.trace.exchange.chrome_own import is_own, read_own
from dovetail.trace.exchange.kineto import WORDS, Span, calls_of, offsets, spans_of
from dovetail.trace.trace import COLUMNS, Comm, Trace, check_ranks

_RANK = "distributedInfo must give the rank of each file, counted from 0"
FIELDS = (
    *("kind", "name", "rank", "thread", "start_s", "end_s", "num_bytes", "received_bytes", "comm", "request", "begins"),
)
_MOST_RANKS, _MOST_US = 1 << 16, 1e16  # ranks of a group; microseconds whose nanoseconds fit 64 bits
_NUM_BYTES = {"Float": 4, "Int": 4, "BFloat16": 2, "Half": 2, "Double": 8, "Long": 8, "Char": 1, "Byte": 1}


def read_chrome(paths: Sequence[str | Path]) -> Trace:
    """Return one trace from some files.

    A file that names its rank, as Kineto's do, is one rank; in other files each process is a rank. A single file that
    Dovetail exported is restored completely. From other files, spans (`X`, and `B` with `E`) and points (`i`) are read;
    from Kineto's collectives also bytes and ranks. Those on CPUs become calls of MPI, by which the clocks of the files
    are aligned (`exchange.kineto`). Raises DovetailError for a file of another kind.
    """
    table = _Table()
    for path in map(Path, paths):
        document = _document(path)
        if is_own(document) and len(paths) == 1:
            return read_own(document, str(path))
        events = document.get("traceEvents", []) if isinstance(document, dict) else document
        if not isinstance(events, list) or not any(isinstance(e, dict) and "ph" in e for e in events):
            raise DovetailError(f"{path} is no trace in Chrome's format", hint="such a file has a list `traceEvents`")
        about = document.get("distributedInfo") if isinstance(document, dict) else None
        found = [e for e in events if isinstance(e, dict)]
        table.add_rank(found, _rank(about, path), about) if about else table.add(found, None)
    try:
        return table.trace({"source": ", ".join(map(str, paths))})
    except ValueError as error:
        names = " and ".join(map(str, paths))
        raise DovetailError(f"{names}: no trace in Chrome's format", found=str(error), hint=_RANK) from error


def _rank(about: Any, path: Path) -> int:
    """Return the rank that a file names. Raise DovetailError if it is no rank."""
    rank = about.get("rank", 0) if isinstance(about, dict) else None
    if type(rank) is not int or not 0 <= rank < 1 << 31:
        raise DovetailError(f"{path} is no trace in Chrome's format", found=f"distributedInfo {about!r}", hint=_RANK)
    return rank


def _document(path: Path) -> Any:
    try:
        data = path.read_bytes()
        text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        return json.loads(text)
    except OSError as error:
        raise DovetailError(f"cannot read {path}", found=error.strerror or str(error)) from error
    except (ValueError, EOFError) as error:
        raise DovetailError(f"{path} is no trace in Chrome's format", found=str(error)) from error


def _us(value: Any) -> float:
    """Read a time in microseconds. Raises ValueError, TypeError or OverflowError for any other value."""
    found = float(value)
    if not abs(found) < _MOST_US:
        raise ValueError(f"a time of {value} us")
    return found


def _whole(value: Any, end: int) -> int:
    """Read a whole number in [0, `end`). Raises ValueError, TypeError or OverflowError for any other value."""
    found = int(value)
    if not 0 <= found < end:
        raise ValueError(f"{value} is not below {end}")
    return found


class _Table:
    """Rows, names and communicators read so far."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int, int, float, float, int, int, int, int, bool]] = []
        self.names: dict[str, int] = {}
        self.comms: dict[Comm, int] = {}
        self.threads: dict[tuple[int, Any], int] = {}
        self.pids: dict[Any, int] = {}
        self.unended = self.broken = 0
        self.calls: dict[int, list[Span]] = {}  # collectives on CPUs, by rank

    def add_rank(self, events: list[dict[str, Any]], rank: int, about: dict[str, Any]) -> None:
        """Add the file of one rank, of PyTorch's profiler; `about`: its `distributedInfo`."""
        try:
            spans, rest = spans_of(events, about)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            spans, rest = [], events  # some event is broken: `add` counts it
        if spans:
            self.calls[rank] = spans
        self.add(rest, rank)

    def add(self, events: list[dict[str, Any]], rank: int | None) -> None:
        open_: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
        for event in events:
            phase, thread = event.get("ph"), (event.get("pid"), event.get("tid"))
            try:
                if phase == "X":
                    self._row(event, rank, _us(event["ts"]), _us(event.get("dur", 0.0)))
                elif phase in ("i", "I"):
                    self._row(event, rank, _us(event["ts"]), 0.0, "point")
                elif phase == "B":
                    open_.setdefault(thread, []).append(event)
                elif phase == "E" and open_.get(thread):
                    begun = open_[thread].pop()
                    self._row(begun, rank, _us(begun["ts"]), _us(event["ts"]) - _us(begun["ts"]))
            except (KeyError, TypeError, ValueError, OverflowError):
                self.broken += 1
        self.unended += sum(map(len, open_.values()))

    def _row(self, event: dict[str, Any], rank: int | None, ts: float, dur: float, kind: str = "interval") -> None:
        at = self.pids.setdefault(event.get("pid"), len(self.pids)) if rank is None else rank
        where = self._name(str(event.get("name", "?"))), at, self._thread(at, event.get("tid"))
        args = event.get("args") if isinstance(event.get("args"), dict) else {}
        sent, got, comm = self._collective(args or {})
        kind = "collective" if comm >= 0 and kind == "interval" else kind
        self.rows.append((KINDS.index(kind), *where, ts * 1e-6, (ts + dur) * 1e-6, sent, got, comm, -1, False))

    def _name(self, text: str) -> int:
        return self.names.setdefault(text, len(self.names))

    def _thread(self, rank: int, number: Any) -> int:
        return self.threads.setdefault((rank, number), sum(1 for r, _ in self.threads if r == rank))

    def _add_calls(self) -> None:
        for call in calls_of(self.calls):
            comm = self.comms.setdefault(Comm(call.ranks), len(self.comms)) if call.ranks else -1
            where = self._name(call.name), call.rank, self._thread(call.rank, call.thread)
            times = call.start * 1e-6, call.end * 1e-6
            about = call.sent, call.got, comm, call.request, call.begins
            self.rows.append((KINDS.index(call.kind), *where, *times, *about))

    def _collective(self, args: dict[str, Any]) -> tuple[int, int, int]:
        """Return bytes sent and received, and the communicator, of a Kineto collective; (0, 0, -1) for other events."""
        if "Collective name" not in args:
            return 0, 0, -1
        size = _NUM_BYTES.get(str(args.get("dtype", "")), 1)
        text = str(args.get("Process Group Ranks", "")).strip("[]")
        ranks = tuple(int(r) for r in text.split(",") if r.strip().isdigit()) or tuple(
            range(_whole(args.get("Group size", 0), _MOST_RANKS))
        )
        comm = self.comms.setdefault(Comm(ranks), len(self.comms))
        given, got = (_whole(args.get(f"{way} msg nelems", 0), 1 << 59) for way in ("In", "Out"))
        return given * size, got * size, comm

    def faults(self) -> list[str]:
        found = [f"{self.unended} spans never end"] if self.unended else []
        return [*found, *([f"{self.broken} events are broken"] if self.broken else [])]

    def trace(self, meta: dict[str, Any]) -> Trace:
        self._add_calls()
        ahead, faults = offsets(self.calls)
        meta = meta | {"faults": [*self.faults(), *faults]} | ({"words": WORDS} if self.calls else {})
        count = len(self.rows)
        found = [np.array(column) for column in zip(*self.rows, strict=True)] if count else [np.zeros(0)] * len(FIELDS)
        columns = {name: np.zeros(count, dtype) for name, dtype in COLUMNS.items()}
        columns |= {name: column.astype(COLUMNS[name]) for name, column in zip(FIELDS, found, strict=True)}
        columns["peer"][:] = -1
        for rank, us in ahead.items():
            for name in ("start_s", "end_s"):
                columns[name][columns["rank"] == rank] += us * 1e-6
        order = np.argsort(columns["end_s"], kind="stable")
        columns = {name: column[order] for name, column in columns.items()}
        first = columns["start_s"].min(initial=0.0) if not count else columns["start_s"].min()
        columns["start_s"], columns["end_s"] = columns["start_s"] - first, columns["end_s"] - first
        num_ranks = int(columns["rank"].max(initial=-1)) + 1
        check_ranks(num_ranks, len(np.unique(columns["rank"])))
        return Trace(num_ranks, tuple(self.names), tuple(self.comms), columns, meta)
