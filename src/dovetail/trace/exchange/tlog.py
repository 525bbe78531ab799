"""tlog: read and write `trace.log`, the file format of tlog, which tlogview shows.

The file consists of big-endian records of 16 bytes: rank (16 bits), event (8), arg1 (8), arg2 (32), seconds (64). They
are stored in blocks of 1 KiB, padded with zeros. Begin and end of interval n (1 to 9) are events 8 + 2n and 9 + 2n;
single event n (1 to 9) is event 30 + n.

The format has no names. A file `trace.log.names` beside it has lines like `interval 1 MPI_Send`, `event 2 saved`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.core import DovetailError, EnvironmentFault
from dovetail.trace.decode import ThreadDecoder
from dovetail.trace.process_file import EventKind
from dovetail.trace.trace import COLUMNS, Trace, check_ranks, no_columns

RECORD = np.dtype([("rank", ">u2"), ("event", "u1"), ("arg1", "u1"), ("arg2", ">i4"), ("time_s", ">f8")])
BLOCK = 1024
FIRST_IN, FIRST_SINGLE, COUNT, END = 10, 31, 9, 2
_ANEW = "use a backup of the file, or trace the program again"
MOST_S = 1e10  # longest time whose nanoseconds fit 64 bits


def read_tlog(path: str | Path) -> Trace:
    """Return the trace in a `trace.log`. Raise DovetailError for a file of another kind."""
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DovetailError(f"cannot read {path}", found=error.strerror) from error
    records = np.frombuffer(data[: len(data) // RECORD.itemsize * RECORD.itemsize], RECORD)
    records = records[records["event"] != 0]
    sound = (records["event"] < FIRST_SINGLE + COUNT) & (records["time_s"] >= 0) & (records["time_s"] < MOST_S)
    if not len(records) or not sound.all():
        raise DovetailError(
            f"{path} is no trace.log of tlog", found=f"{np.count_nonzero(~sound)} impossible records", hint=_ANEW
        )
    is_cut = bool(len(data) % RECORD.itemsize or (len(data) % BLOCK and records["event"][-1] != END))
    faults = [f"{path.name} is truncated: {len(data)} bytes, not whole blocks"] if is_cut else []
    ranks = np.unique(records["rank"]).tolist()
    try:
        check_ranks(max(ranks) + 1, len(ranks))
    except ValueError as error:
        raise DovetailError(f"{path} is no trace.log of tlog", found=str(error), hint=_ANEW) from error
    parts = [_columns_of(records[records["rank"] == rank], rank) for rank in ranks]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in COLUMNS}
    order = np.argsort(columns["end_s"], kind="stable")
    plain = [f"{what} {n + 1}" for what in ("interval", "event") for n in range(COUNT)]
    named = _names(_beside(path))
    names = tuple(named.get(name, name) for name in plain)
    meta = {"source": str(path), "faults": faults}
    return Trace(max(ranks) + 1, names, (), {name: column[order] for name, column in columns.items()}, meta)


def _beside(path: Path) -> Path:
    """Return the path of the file of names."""
    return path.with_name(path.name + ".names")


def _names(path: Path) -> dict[str, str]:
    """Return the names by `interval 1`, `event 2`, …; empty if there is no file."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return {}
    words = [line.split(" ", 2) for line in lines]
    return {f"{three[0]} {three[1]}": three[2] for three in words if len(three) == 3}


def _columns_of(records: NDArray[Any], rank: int) -> dict[str, NDArray[Any]]:
    """Return the rows of one rank; the names of intervals are numbered before those of single events."""
    event = records["event"].astype("i8")
    is_single = event >= FIRST_SINGLE
    nested = (event >= FIRST_IN) & (event < FIRST_IN + 2 * COUNT)
    kind = np.where(is_single, EventKind.point, np.where(event % 2, EventKind.end, EventKind.begin))
    field = np.where(is_single, COUNT + event - FIRST_SINGLE, (event - FIRST_IN) // 2)
    events = np.zeros(len(records), [("word", "u8"), ("about", "u8")])
    events["word"] = np.rint(records["time_s"] * 1e9).astype("u8")
    arg = np.where(kind == EventKind.end, 0, records["arg2"].astype("i8"))  # the decoder reads an end's as a request
    events["about"] = (arg << 16 | field << 4 | kind).view("u8")
    decoder = ThreadDecoder()
    chosen = events[is_single | nested]
    rows = decoder.take(chosen)
    left = decoder.rest(int(events["word"].max()))
    joined = {name: np.concatenate([rows[name], left[name]]) for name in rows}
    columns = no_columns() | {name: joined[name] for name in COLUMNS if name in joined}
    count = len(joined["kind"])
    columns["rank"], columns["thread"] = np.full(count, rank, "i4"), np.zeros(count, "i4")
    columns["start_s"], columns["end_s"] = joined["start"] * 1e-9, joined["end"] * 1e-9
    columns["request"] = np.full(count, -1, "i8")
    columns["pause_s"], columns["ready_s"] = np.zeros(count, "f4"), np.zeros(count, "f4")
    return columns


def write_tlog(path: str | Path, trace: Trace) -> dict[str, int]:
    """Write intervals and points as a `trace.log`, and their names to a file beside it; return the number of each name.

    The format has nine numbers for intervals and nine for points: for the intervals that take most time, and for the
    most frequent points. Others are left out. Raises EnvironmentFault if the file cannot be written.
    """
    chosen = {**_longest(trace), **_most_frequent(trace)}
    blocks = [block for rank in range(trace.num_ranks) for block in _blocks(trace, rank, chosen)]
    lines = [
        f"{'event' if is_point else 'interval'} {number} {trace.names[name]}".replace("\n", " ")
        for (is_point, name), number in chosen.items()
    ]
    path = Path(path)
    try:
        path.write_bytes(b"".join(blocks))
        _beside(path).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    except OSError as error:
        for half in (path, _beside(path)):
            if half.is_file():
                half.unlink()
        hint = "free some space, or give another path"
        raise EnvironmentFault(f"cannot write {path}", found=error.strerror, hint=hint) from error
    return {trace.names[name]: number for (_, name), number in chosen.items()}


def _longest(trace: Trace) -> dict[tuple[bool, int], int]:
    """Return the numbers 1 to 9 of the nine names of intervals that take most time, by (False, name)."""
    col = trace.columns
    rows = (col["part"] == 0) & ~trace.of_kind("point")
    spent = np.bincount(col["name"][rows], (col["end_s"] - col["start_s"])[rows], len(trace.names))
    used = np.bincount(col["name"][rows], minlength=len(trace.names)) > 0
    order = [name for name in np.argsort(-spent, kind="stable").tolist() if used[name]][:COUNT]
    return {(False, name): number for number, name in enumerate(sorted(order), 1)}


def _most_frequent(trace: Trace) -> dict[tuple[bool, int], int]:
    counts = np.bincount(trace.columns["name"][trace.of_kind("point")], minlength=len(trace.names))
    order = [name for name in np.argsort(-counts, kind="stable").tolist() if counts[name]][:COUNT]
    return {(True, name): number for number, name in enumerate(sorted(order), 1)}


def _blocks(trace: Trace, rank: int, chosen: dict[tuple[bool, int], int]) -> Iterator[bytes]:
    """Yield the records of a rank in the order of time, then an end record, in whole blocks."""
    col = trace.columns
    mine = trace.rows((col["rank"] == rank) & (col["part"] == 0))
    single = np.zeros(len(trace.names), "u1")
    into = np.zeros(len(trace.names), "u1")
    for (is_point, name), number in chosen.items():
        (single if is_point else into)[name] = FIRST_SINGLE + number - 1 if is_point else FIRST_IN + 2 * (number - 1)
    col, points = mine.columns, mine.of_kind("point")
    ins = ~points & (into[col["name"]] > 0)
    at = points & (single[col["name"]] > 0)
    events = [
        (single[col["name"][at]], col["start_s"][at], col["arg"][at], np.zeros(np.count_nonzero(at))),
        (into[col["name"][ins]], col["start_s"][ins], col["arg"][ins], -col["end_s"][ins]),
        (into[col["name"][ins]] + 1, col["end_s"][ins], col["arg"][ins], -col["start_s"][ins]),
    ]
    event, time_s, arg, _ = (np.concatenate([part[i] for part in events]) for i in range(4))
    order = np.lexsort((_order_of_simultaneous(events), time_s))
    records = np.zeros(len(order) + 1, RECORD)
    records["rank"] = rank
    records["event"][:-1], records["time_s"][:-1] = event[order], time_s[order]
    records["arg2"][:-1] = np.clip(arg[order], -(1 << 31), (1 << 31) - 1)
    records[-1] = (rank, END, 0, 0, time_s.max(initial=0.0))
    data = records.tobytes()
    yield data + bytes(-len(data) % BLOCK)


def _order_of_simultaneous(events: Sequence[tuple[NDArray[Any], ...]]) -> NDArray[Any]:
    """Return a sort key for simultaneous events: ends (inner first), then points, then begins (outer first)."""
    points, begins, ends = (part[3] for part in events)
    far = max(np.abs(np.concatenate([begins, ends, [0.0]])).max(), 1.0) * 2
    return np.concatenate([points, 2 * far + begins, -2 * far + ends])
