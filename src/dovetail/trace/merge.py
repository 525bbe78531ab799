"""merge: merge the files of all processes into one trace, with one clock, ordered by time, a chunk at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.core import DovetailError
from dovetail.trace.analysis.matching import DONE, RECV, Matcher, check
from dovetail.trace.clock_bounds import Moved, Quickest, clock_moves, moved, quickest
from dovetail.trace.clocks import Line, RankClock, rank_clocks
from dovetail.trace.decode import NEAR_TAG, Rows, ThreadDecoder
from dovetail.trace.ended import Ends
from dovetail.trace.jobs import ranked
from dovetail.trace.load import load_of, waits_of
from dovetail.trace.partial import first_full, kept, partial_meta
from dovetail.trace.process_file import MOST_UNSEEN, Piece, ProcessFile, read_process
from dovetail.trace.spawned import joined_jobs
from dovetail.trace.store import TraceFile, TraceWriter
from dovetail.trace.trace import COLUMNS, Comm

Columns = dict[str, NDArray[Any]]
PIECE_EVENTS = 1 << 16
FEW_ROWS = 1 << 10


def merge(folder: str | Path, path: str | Path | None = None) -> TraceFile:
    """Merge the files of a run's processes into one trace file.

    Parameters
    ----------
    folder : path
        Where the processes wrote their files.
    path : path, optional
        The file to write. Default: `trace.dovetail` in `folder`.

    Raises
    ------
    DovetailError
        If there is no folder, no process's file in it, or none that can be read.
    """
    folder = Path(folder)
    files = sorted(folder.glob("*.dvt"))
    target = Path(path) if path is not None else folder / "trace.dovetail"
    if not folder.is_dir():
        raise DovetailError(f"there is no folder {folder}", hint="`dovetail trace run -o DIR` makes one")
    if not files:
        hint = "did the program start, and does it use a shared MPI library?"
        raise DovetailError(f"no process left a trace in {folder}", found="no file *.dvt", hint=hint)
    faults: list[str] = []
    processes = [process for path in files if (process := _read(path, faults)) is not None]
    processes = _of_sound_jobs(processes, faults)
    if not processes:
        hint = "trace the program again: `dovetail trace run -o DIR`"
        raise DovetailError(f"no trace in {folder} can be read", found="; ".join(faults), hint=hint)
    return _held(ranked(processes), faults, target)


def _of_sound_jobs(processes: Sequence[ProcessFile], faults: list[str]) -> list[ProcessFile]:
    """Return the processes without jobs whose headers are damaged: they claim thousands of ranks that left no file.

    Ranks are numbered across jobs, so that one wrong number of ranks would shift all later ranks.
    """
    left = Counter(process.num_ranks for process in processes)
    missing = sorted((size - left[size], size) for size in left if size > left[size])
    while missing and sum(count for count, _ in missing) > MOST_UNSEEN:
        _, size = missing.pop()
        why = f"its header is damaged: a job of {size} ranks, of which {left[size]} left a file"
        faults += [f"{p.path.name} is left out: {why}" for p in processes if p.num_ranks == size]
        processes = [process for process in processes if process.num_ranks != size]
    return list(processes)


def _held(processes: Sequence[ProcessFile], faults: list[str], target: Path) -> TraceFile:
    """Return the merged file. If messages arrived before they were sent and clocks can be moved, write it again."""
    clocks = rank_clocks(processes)
    moves = [Moved(0.0, 0.0)] * len(clocks)
    for is_last in (False, False, True):
        merging = _Merge(processes, faults, clocks, moves)
        found = merging.write(target)
        if is_last or merging.quickest is None:
            break
        again = clock_moves(merging.quickest, clocks, processes)
        if again is None:
            break
        span_s = float(merging.quickest.received_s.max())
        clocks = [moved(clock, by, merging.start_ns, span_s) for clock, by in zip(clocks, again, strict=True)]
        moves = [Moved(*map(sum, zip(*both, strict=True))) for both in zip(moves, again, strict=True)]
    return found


def _read(path: Path, faults: list[str]) -> ProcessFile | None:
    try:
        return read_process(path)
    except DovetailError as error:
        faults.append(f"{path.name}: {error.what} ({error.found})")
        return None


@dataclass
class _Table:
    """Gives equal items the same number, in the order of first appearance."""

    rows: dict[Any, int] = field(default_factory=dict)

    def number(self, key: Any) -> int:
        return self.rows.setdefault(key, len(self.rows))


class _Merge:
    def __init__(
        self,
        processes: Sequence[ProcessFile],
        faults: list[str],
        clocks: Sequence[RankClock],
        moves: Sequence[Moved],
    ) -> None:
        self.processes, self.clocks, self.moves = processes, clocks, moves
        self.faults = [*faults, *(fault for process in processes for fault in process.faults)]
        self.names, self.comms = _Table(), _Table()
        self.across = joined_jobs(_comms_by_job(self.processes))
        starts = [clock.line(process.first.clock) for process, clock in zip(self.processes, self.clocks, strict=True)]
        self.start_ns = min(starts)
        self.full = first_full(self.processes, self.clocks)
        self.unmatched = 0
        self.requests, self.matcher, self.ends = Requests(), Matcher(), Ends(processes, self.names.rows)
        self.quickest: Quickest | None = None  # the quickest messages, if some arrived before they were sent

    def write(self, target: Path) -> TraceFile:
        with TraceWriter(target) as writer:
            for batch in in_order(lane for index in range(len(self.processes)) for lane in self._lanes(index)):
                batch = kept(batch, self.full, self.start_ns)
                self.requests.settle(batch)
                name_peers(batch, list(self.comms.rows))
                self.matcher.take(batch)
                self.ends.take(batch)
                writer.add(batch)
            comms = tuple(self.comms.rows)
            num_ranks = max(process.rank for process in self.processes) + 1
            return writer.close(num_ranks, tuple(self.names.rows), comms, self._meta(comms))

    def _meta(self, comms: tuple[Comm, ...]) -> dict[str, Any]:
        processes = zip(self.processes, self.clocks, self.moves, strict=True)
        found, strays = self.matcher.messages(tuple(self.names.rows), comms)
        checked = check(found, strays)
        self.quickest = quickest(found) if checked["received_before_sent"] else None
        meta = {"ranks": [self._about(*one) for one in processes], "clocks": checked}
        return {
            **meta,
            **partial_meta(self.full, self.start_ns),
            "lost": sum(p.lost for p in self.processes),
            "ends_without_begin": self.unmatched,
            "faults": [*self.faults, *self.ends.faults()],
        }

    def _about(self, process: ProcessFile, clock: RankClock, by: Moved) -> dict[str, Any]:
        counted = load_of(process, clock, self.start_ns) | waits_of(process, clock, self.start_ns)
        return _about(process, clock, by) | counted

    def _lanes(self, index: int) -> Iterator[Iterator[Columns]]:
        process = self.processes[index]
        line, tables = self.clocks[index].line, _Numbers(process, self.names, self.comms, self.across)
        pieces: dict[int, list[Piece]] = {}
        for piece in process.pieces:
            pieces.setdefault(piece.thread, []).append(piece)
        for thread, its in pieces.items():
            yield self._lane(process, thread, its, line, tables)

    def _lane(
        self, process: ProcessFile, thread: int, pieces: Sequence[Piece], line: Line, numbers: _Numbers
    ) -> Iterator[Columns]:
        """Yield the rows of a thread, piece by piece."""
        decoder = ThreadDecoder()
        for piece in pieces:
            for events, lost in _parts_of(process, piece):
                yield self._columns(decoder.take(events, lost), process, thread, line, numbers)
        self.unmatched += decoder.unmatched
        yield self._columns(decoder.rest(process.last.clock), process, thread, line, numbers)

    def _columns(self, rows: Rows, process: ProcessFile, thread: int, line: Line, numbers: _Numbers) -> Columns:
        count = len(rows["kind"])
        columns = {name: rows[name] for name in COLUMNS if name in rows}
        for name in ("start", "end"):
            since = (rows[name] - np.uint64(line.origin_ns)).view("i8")
            columns[f"{name}_s"] = (since * line.rate + (line.offset_ns - self.start_ns)) * 1e-9
        for name in ("pause", "ready"):
            columns[f"{name}_s"] = (rows[name] * (line.rate * 1e-9)).astype(COLUMNS[f"{name}_s"])
        columns["rank"] = np.full(count, process.rank, "i4")
        columns["thread"] = numbers.threads(rows["name"], thread - 1)
        return numbers.settle(columns, rows)


def _parts_of(process: ProcessFile, piece: Piece) -> Iterator[tuple[NDArray[Any], int]]:
    """Yield a piece in parts of at most PIECE_EVENTS events, each with the number of events lost after it."""
    events = process.events(piece)
    for at in range(0, max(len(events), 1), PIECE_EVENTS):
        is_last = at + PIECE_EVENTS >= len(events)
        yield events[at : at + PIECE_EVENTS], piece.lost if is_last else 0


def _about(process: ProcessFile, clock: RankClock, by: Moved) -> dict[str, Any]:
    error_s = None if clock.error_ns is None else clock.error_ns * 1e-9
    about = {"rank": process.rank, "host": process.host, "pid": process.pid, "program": process.program}
    about |= {"finalized": process.finalized, "lost": process.lost, "file": process.path.name}
    maps, lanes = [note for note in process.notes if "map" in note], lanes_of(process)
    lines = {str(note["site"]): f"{note['file']}:{note['line']}" for note in process.notes if "site" in note}
    paths = {str(note["path"]): [int(note["call"]), note["caller"]] for note in process.notes if "path" in note}
    clocks = {
        "clock_error_s": error_s,
        "has_drift": clock.has_drift,
        "moved_s": list(by),
        "event_s": [ticks * clock.line.rate * 1e-9 for ticks in _event_ticks(process)],
        **({"lines": lines} if lines else {}),
        **({"paths": paths} if paths else {}),
    }
    library = next((note for note in process.notes if "thread_level" in note), {})
    about |= {name: str(library[name]) for name in ("library", "thread_level") if name in library}
    about |= {"has_io": True} if any("io" in note for note in process.notes) else {}
    return {**about, **clocks, "maps": maps, "lanes": {str(number): lane for lane, number in lanes.items()}}


def _event_ticks(process: ProcessFile) -> list[float]:
    """Return the cost of recording an event with reading the clock, and without; 0 if the file lacks it."""
    for note in process.notes:
        found = note.get("event_ticks")
        if isinstance(found, list) and len(found) == 2 and all(isinstance(ticks, int | float) for ticks in found):
            return [float(ticks) for ticks in found]
    return [0.0, 0.0]


def lanes_of(process: ProcessFile) -> dict[str, int]:
    """Return the numbers of a process's lanes, which follow those of its threads."""
    count = max((piece.thread for piece in process.pieces), default=0)
    return {lane: count + i for i, lane in enumerate(dict.fromkeys(process.lanes.values()))}


class _Numbers:
    """Converts a process's numbers of names and communicators to those of the whole trace."""

    def __init__(self, process: ProcessFile, names: _Table, comms: _Table, across: Mapping[Comm, Comm]) -> None:
        self.texts, self.trace_names = process.names, names
        self.names: dict[int, int] = {}
        found = {number: across.get(comm, comm) for number, comm in comms_of(process).items()}
        self.comms = self._table({n: comms.number(comm) for n, comm in found.items()}, -1)
        lanes = lanes_of(process)
        self.lanes = self._table({name: lanes[lane] for name, lane in process.lanes.items()}, -1)

    def threads(self, names: NDArray[Any], thread: int) -> NDArray[Any]:
        """Return the lane of each name's intervals; without a lane, the thread that recorded them."""
        lane = self.lanes[np.clip(names, 0, len(self.lanes) - 1)]
        found: NDArray[Any] = np.where(lane < 0, thread, lane).astype("i4")
        return found

    @staticmethod
    def _table(rows: dict[int, int], other: int) -> NDArray[Any]:
        table = np.full(max(rows, default=0) + 2, other, "i4")
        table[list(rows)] = list(rows.values())
        return table

    def settle(self, columns: Columns, rows: Rows) -> Columns:
        columns["name"] = self._names(rows["name"])
        columns["comm"] = np.where(rows["comm"] >= 0, self.comms[np.clip(rows["comm"], -1, len(self.comms) - 1)], -1)
        return columns

    def _names(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Map a file's names to the trace's, which has only names in use. A damaged file may contain any number."""
        used, place = np.unique(numbers, return_inverse=True)
        for number in set(used.tolist()) - self.names.keys():
            self.names[number] = self.trace_names.number(self.texts.get(number, f"name {number}"))
        found: NDArray[Any] = np.array([self.names[number] for number in used.tolist()], "i4")[place.ravel()]
        return found


def comms_of(process: ProcessFile) -> dict[int, Comm]:
    """Return the communicators that a process recorded, by its own numbers, in the order of their creation."""
    return {int(note["comm"]): _comm(note, process.base) for note in process.notes if "comm" in note}


def _comms_by_job(processes: Sequence[ProcessFile]) -> list[list[Comm]]:
    """Return the communicators of each job, in the order of jobs and ranks."""
    jobs: dict[int, list[Comm]] = {}
    for process in processes:
        jobs.setdefault(process.base, []).extend(comms_of(process).values())
    return list(jobs.values())


def _comm(note: dict[str, Any], base: int) -> Comm:
    """Return a communicator from a process's note; `base`: the first rank of the process's job."""
    own = note["ranks"] if "ranks" in note else range(int(note["size"]))
    both = (own, note.get("remote", ()))
    ranks, remote = (tuple(rank + base if rank >= 0 else -1 for rank in each) for each in both)
    return Comm(ranks, int(note.get("number", 0)), remote, bool(note.get("window")))


def name_peers(columns: Columns, comms: Sequence[Comm]) -> None:
    """Replace the ranks in `peer`, which count within communicators, by ranks of the job."""
    at = np.flatnonzero((columns["comm"] >= 0) & (columns["peer"] >= 0))
    at = at[np.argsort(columns["comm"][at], kind="stable")]
    numbers, first = np.unique(columns["comm"][at], return_index=True)
    for number, those in zip(numbers.tolist(), np.split(at, first[1:]), strict=False):
        table = np.array(comms[number].peers, "i4")
        inside = those[columns["peer"][those] < len(table)]
        columns["peer"][inside] = table[columns["peer"][inside]]


class Requests:
    """Gives each request a number, because the library reuses handles, and finds the begin of each completion."""

    def __init__(self) -> None:
        self.next = 0
        self.latest: dict[tuple[int, int], tuple[int, int, bool]] = {}  # (rank, handle) -> number, comm, is a receive

    def settle(self, columns: Columns) -> None:
        """Replace handles by numbers that are equal for all rows of one request and different for other requests.

        A completed receive gets its communicator; the status of a completed send is undefined.
        """
        handle = columns["request"]
        at = np.flatnonzero(handle)
        order = at[np.lexsort((at, handle[at], columns["rank"][at]))]
        number, comm, receives = self._numbers(columns, order)
        columns["request"] = np.full(len(handle), -1, "i8")
        columns["request"][order] = number
        over = columns["kind"][order] == DONE
        columns["comm"][order[over]] = comm[over]
        other = order[over & ~receives]
        columns["peer"][other], columns["tag"][other], columns["num_bytes"][other] = -1, 0, 0

    def _numbers(self, columns: Columns, order: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Return number, communicator, and whether it is a receive, of rows ordered by rank, handle and time."""
        begins, rank, handle = (columns[name][order] for name in ("begins", "rank", "request"))
        starts = np.append(True, (np.diff(rank) != 0) | (np.diff(handle) != 0))[: len(order)]
        latest = np.maximum.accumulate(np.where(begins | starts, np.arange(len(order)), 0))
        news = begins & ~_continues(columns, order, begins & ~starts)
        number = np.where(begins, self.next + np.cumsum(news) - 1, -1)
        comm, receives = columns["comm"][order], columns["kind"][order] == RECV
        receives &= columns["tag"][order] != NEAR_TAG
        self.next += int(np.count_nonzero(news))
        for i in np.flatnonzero(starts & ~begins).tolist():  # begun in an earlier batch, or its begin is missing
            number[i], comm[i], receives[i] = self.latest.get((int(rank[i]), int(handle[i])), (-1, -1, False))
        number, comm, receives = number[latest], comm[latest], receives[latest]
        for i in np.flatnonzero(np.append(starts[1:], True)[: len(order)]).tolist():
            self.latest[int(rank[i]), int(handle[i])] = int(number[i]), int(comm[i]), bool(receives[i])
        return number, comm, receives


def _continues(columns: Columns, order: NDArray[Any], begins: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which of these rows that begin a request belong to the call of the row before, and so to its request."""
    found = begins.copy()
    for name in ("start_s", "end_s", "thread"):
        found[1:] &= columns[name][order[1:]] == columns[name][order[:-1]]
    found[1:] &= columns["begins"][order[:-1]]
    return found


class _Lane:
    """The next rows of a lane: at least `FEW_ROWS`, or all that are left."""

    def __init__(self, batches: Iterator[Columns]) -> None:
        self.batches, self.is_over = batches, False
        self.rows: Columns = {name: np.empty(0, kind) for name, kind in COLUMNS.items()}
        self.fill()

    def fill(self) -> None:
        while not self.is_over and len(self.rows["kind"]) < FEW_ROWS:
            batch = next(self.batches, None)
            if batch is None:
                self.is_over = True
            else:
                self.rows = _joined([self.rows, batch]) if len(self.rows["kind"]) else batch

    def take(self, horizon: float) -> Columns:
        """Remove and return the rows that end by `horizon`. Ends are ascending, except in damaged files."""
        count = int(np.searchsorted(np.maximum.accumulate(self.rows["end_s"]), horizon, side="right"))
        taken = {name: column[:count] for name, column in self.rows.items()}
        self.rows = {name: column[count:] for name, column in self.rows.items()}
        self.fill()
        return taken

    @property
    def first(self) -> float:
        return float(self.rows["end_s"][0]) if len(self.rows["kind"]) else np.inf

    @property
    def last(self) -> float:
        """Return the time up to which all rows of the lane are known."""
        return np.inf if self.is_over else float(self.rows["end_s"].max())


def in_order(batches: Iterable[Iterator[Columns]]) -> Iterator[Columns]:
    """Merge lanes, each ordered by end, into batches of rows ordered by end. Holds about one batch per lane."""
    lanes = [_Lane(each) for each in batches]
    firsts, lasts = (np.array([getattr(lane, name) for lane in lanes]) for name in ("first", "last"))
    while (firsts < np.inf).any():
        horizon = lasts.min()
        chosen = np.flatnonzero((firsts <= horizon) & (firsts < np.inf)).tolist()
        joined = _joined([lanes[at].take(horizon) for at in chosen])
        for at in chosen:
            firsts[at], lasts[at] = lanes[at].first, lanes[at].last
        order = np.argsort(joined["end_s"], kind="stable")
        yield {name: column[order] for name, column in joined.items()}


def _joined(parts: Sequence[Columns]) -> Columns:
    return {name: np.concatenate([part[name] for part in parts]) for name in COLUMNS}
