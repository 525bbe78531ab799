"""A Trace in Chrome's trace format, which Perfetto opens, written as it is read: a process for each rank."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.core import EnvironmentFault
from dovetail.trace import Trace, TraceFile
from dovetail.trace.decode import KINDS
from dovetail.trace.matching import Matcher, Messages
from dovetail.trace.trace import thread_title

Event = dict[str, Any]
_POINT = KINDS.index("point")
_BATCH = 1 << 16  # messages that are written at a time


def write_trace_perfetto(path: str | Path, trace: Trace | TraceFile) -> Path:
    """Write spans (`X`), points (`i`) and messages (`s` → `f`), `ts` in µs with whole nanoseconds."""
    target = Path(path)
    try:
        with target.open("w", encoding="utf-8") as file:
            file.write('{"displayTimeUnit":"ns","traceEvents":[')
            for number, batch in enumerate(filter(None, _batches(trace))):
                file.write((",\n" if number else "\n") + ",\n".join(batch))
            file.write("\n]}\n")
    except OSError as error:
        raise EnvironmentFault(f"cannot write {target}", found=error.strerror) from error
    return target


def _batches(trace: Trace | TraceFile) -> Iterator[list[str]]:
    """The text of every event, the threads' names last. Threads have numbers of their own in the whole trace."""
    matcher, threads = Matcher(), _Threads(trace.num_ranks)
    for part in trace.parts() if isinstance(trace, TraceFile) else [trace]:
        matcher.take(part.columns)
        yield list(_spans(part, threads))
    found, _ = matcher.messages(trace.names, trace.comms)
    yield from _flows(found, threads)
    yield [_text(event) for event in threads.names(trace.meta)]


def _text(event: Event) -> str:
    return json.dumps(event, separators=(",", ":"), ensure_ascii=False)


class _Threads:
    """Numbers of processes and threads: rank + 1, and from there on."""

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self.known: dict[tuple[int, int], int] = {}

    def at(self, rank: int, thread: int) -> Event:
        tid = self.known.setdefault((rank, thread), self.num_ranks + 1 + len(self.known))
        return {"pid": rank + 1, "tid": tid}

    def names(self, meta: dict[str, Any]) -> Iterator[Event]:
        hosts = {about["rank"]: about["host"] for about in meta.get("ranks", ())}
        for rank in range(self.num_ranks):
            name = f"rank {rank}" + (f" on {hosts[rank]}" if rank in hosts else "")
            yield {"ph": "M", "pid": rank + 1, "name": "process_name", "args": {"name": name}}
        for (rank, thread), tid in self.known.items():
            name = thread_title(meta, rank, thread)
            yield {"ph": "M", "pid": rank + 1, "tid": tid, "name": "thread_name", "args": {"name": name}}


def _spans(part: Trace, threads: _Threads) -> Iterator[str]:
    """The text of a row: what rows share is made once."""
    col = part.columns
    rows = np.flatnonzero(col["part"] == 0)
    start = np.rint(col["start_s"][rows] * 1e9).astype("i8")
    end = np.rint(col["end_s"][rows] * 1e9).astype("i8")
    heads: dict[tuple[int, ...], str] = {}
    tails: dict[tuple[int, ...], str] = {}
    of_head = zip(*(col[name][rows].tolist() for name in ("kind", "name", "rank", "thread")), strict=True)
    used = ("kind", "name", "arg", "peer", "tag", "num_bytes", "received_bytes", "repeats")
    of_tail = zip(*(col[name][rows].tolist() for name in used), strict=True)
    times = (start / 1e3).tolist(), ((end - start) / 1e3).tolist(), col["request"][rows].tolist()
    for head, tail, ts, dur, request in zip(of_head, of_tail, *times, strict=True):
        begin, args = heads.get(head), tails.get(tail)
        if begin is None:
            begin = heads[head] = _head(part.names, threads, *head)
        if args is None:
            args = tails[tail] = _tail(part.names, *tail)
        length = "" if head[0] == _POINT else f',"dur":{dur!r}'
        about = f'{args},"request":{request}' if request >= 0 and head[0] != _POINT and args[-1] != "{" else args
        yield f"{begin}{ts!r}{length}{about}}}}}"


def _head(names: Sequence[str], threads: _Threads, kind: int, name: int, rank: int, thread: int) -> str:
    """The text of an event up to its `ts`."""
    how = {"ph": "i", "s": "t"} if kind == _POINT else {"ph": "X"}
    return _text({"name": names[name], "cat": KINDS[kind], **threads.at(rank, thread), **how})[:-1] + ',"ts":'


def _tail(names: Sequence[str], kind: int, name: int, *told: int) -> str:
    """The text of an event's `args`, but for its request and the brackets that close it."""
    args = {"arg": told[0]} if kind == _POINT else _args(kind, names[name], told)
    return ',"args":' + _text(args)[:-1]


def _args(kind: int, name: str, told: Sequence[int]) -> dict[str, Any]:
    """What is known of a call beside its name and times."""
    arg, peer, tag, num_bytes, received, repeats = told
    if KINDS[kind] == "interval" and not name.startswith("MPI_"):
        return {"arg": arg} if arg else {}
    args: dict[str, Any] = {"num_bytes": num_bytes, "called_from": hex(arg)}
    if peer >= 0:
        args["root" if KINDS[kind] == "collective" else "peer"] = peer
    if KINDS[kind] in ("send", "recv", "done"):
        args["tag"] = tag
    if received:
        args["received_bytes"] = received
    if repeats:
        args["calls"] = repeats + 1
    return args


def _flows(found: Messages, threads: _Threads) -> Iterator[list[str]]:
    """An arrow for each message: from where its send begins to just before where it was found to be there."""
    whole = np.flatnonzero(~np.isnan(found.taken_s))
    for begin in range(0, len(whole), _BATCH):
        yield list(_arrows(found, whole[begin : begin + _BATCH], begin + 1, threads))


def _arrows(found: Messages, at: NDArray[np.int64], number: int, threads: _Threads) -> Iterator[str]:
    sent, taken = ((np.rint(column[at] * 1e9) / 1e3).tolist() for column in (found.sent_s, found.taken_s))
    ends = (zip(found[i][at].tolist(), found[i + 1][at].tolist(), strict=True) for i in (0, 2))
    places: dict[tuple[int, int], str] = {}

    def place(end: tuple[int, int]) -> str:
        if end not in places:
            places[end] = _text(threads.at(*end))[1:-1]
        return places[end]

    for i, (src, dst, left, came) in enumerate(zip(*ends, sent, taken, strict=True), number):
        head = f'{{"name":"message","cat":"message","id":{i}'
        yield f'{head},"ph":"s",{place(src)},"ts":{left!r}}}'
        yield f'{head},"ph":"f","bp":"e",{place(dst)},"ts":{round(came - 1e-3, 3)!r}}}'
