"""A Trace in Chrome's trace format, which Perfetto opens, written as it is read: a process for each rank."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.core import EnvironmentFault
from dovetail.trace import Trace, TraceFile
from dovetail.trace.decode import KINDS
from dovetail.trace.matching import Matcher, Messages
from dovetail.trace.trace import thread_title

Event = dict[str, Any]
_POINT = KINDS.index("point")


def write_trace_perfetto(path: str | Path, trace: Trace | TraceFile) -> Path:
    """Write spans (`X`), points (`i`) and messages (`s` → `f`), `ts` in µs with whole nanoseconds."""
    target = Path(path)
    try:
        with target.open("w", encoding="utf-8") as file:
            file.write('{"displayTimeUnit":"ns","traceEvents":[')
            for number, event in enumerate(_events(trace)):
                file.write((",\n" if number else "\n") + json.dumps(event, separators=(",", ":"), ensure_ascii=False))
            file.write("\n]}\n")
    except OSError as error:
        raise EnvironmentFault(f"cannot write {target}", found=error.strerror) from error
    return target


def _events(trace: Trace | TraceFile) -> Iterator[Event]:
    """Everything, the threads' names last. Threads have numbers of their own in the whole trace."""
    matcher, threads = Matcher(), _Threads(trace.num_ranks)
    for part in trace.parts() if isinstance(trace, TraceFile) else [trace]:
        matcher.take(part.columns)
        yield from _spans(part, threads)
    found, _ = matcher.messages(trace.names, trace.comms)
    yield from _flows(found, threads)
    yield from threads.names(trace.meta)


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


def _spans(part: Trace, threads: _Threads) -> Iterator[Event]:
    col = part.columns
    rows = np.flatnonzero(col["part"] == 0)
    start = np.rint(col["start_s"][rows] * 1e9).astype("i8")
    end = np.rint(col["end_s"][rows] * 1e9).astype("i8")
    used = ("kind", "name", "rank", "thread", "arg", "peer", "tag", "num_bytes", "received_bytes", "request", "repeats")
    values = (col[name][rows].tolist() for name in used)
    for ts, dur, kind, name, rank, thread, *told in zip(start / 1e3, (end - start) / 1e3, *values, strict=True):
        head = {"name": part.names[name], "cat": KINDS[kind], **threads.at(rank, thread), "ts": float(ts)}
        if kind == _POINT:
            yield {**head, "ph": "i", "s": "t", "args": {"arg": told[0]}}
        else:
            yield {**head, "ph": "X", "dur": float(dur), "args": _args(kind, part.names[name], told)}


def _args(kind: int, name: str, told: list[int]) -> dict[str, Any]:
    """What is known of a call beside its name and times."""
    arg, peer, tag, num_bytes, received, request, repeats = told
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
    return {**args, "request": request} if request >= 0 else args


def _flows(found: Messages, threads: _Threads) -> Iterator[Event]:
    """An arrow for each message: from where its send begins to just before where it was found to be there."""
    whole = np.flatnonzero(~np.isnan(found.taken_s))
    sent, taken = (np.rint(column[whole] * 1e9) / 1e3 for column in (found.sent_s, found.taken_s))
    ends = zip(*(column[whole].tolist() for column in found[:4]), strict=True)
    for number, ((src, a, dst, b), left, came) in enumerate(zip(ends, sent.tolist(), taken.tolist(), strict=True), 1):
        head = {"name": "message", "cat": "message", "id": number}
        yield {**head, "ph": "s", **threads.at(src, a), "ts": left}
        yield {**head, "ph": "f", "bp": "e", **threads.at(dst, b), "ts": round(came - 1e-3, 3)}
