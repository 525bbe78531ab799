"""A Trace in Chrome's trace format, which Perfetto opens, written as it is read: a process for each rank."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.core import EnvironmentFault
from dovetail.trace import Trace, TraceFile
from dovetail.trace.chrome_own import DEFAULTS, KEY
from dovetail.trace.decode import KINDS
from dovetail.trace.matching import Matcher, Messages
from dovetail.trace.trace import SCHEMA, head_of, thread_title

Event = dict[str, Any]


def write_trace_perfetto(path: str | Path, trace: Trace | TraceFile) -> Path:
    """Write spans (`X`), points (`i`) and messages (`s` → `f`), `ts` in µs with whole nanoseconds.

    Viewers pass over what they do not know: `otherData` holds names, communicators and meta, and metadata events named
    `dovetail` the further rows of an interval, so that `trace import` makes the same trace of the file.
    """
    target, threads = Path(path), _Threads(trace.num_ranks)
    try:
        with target.open("w", encoding="utf-8") as file:
            file.write('{"displayTimeUnit":"ns","traceEvents":[')
            for number, event in enumerate(_events(trace, threads)):
                file.write((",\n" if number else "\n") + json.dumps(event, separators=(",", ":"), ensure_ascii=False))
            head = head_of(trace.num_ranks, trace.names, trace.comms, trace.meta)
            told = [[tid, rank, thread] for (rank, thread), tid in threads.known.items()]
            file.write('\n],"otherData":' + json.dumps({KEY: {"schema": SCHEMA, **head, "threads": told}}) + "}\n")
    except OSError as error:
        raise EnvironmentFault(f"cannot write {target}", found=error.strerror) from error
    return target


def _events(trace: Trace | TraceFile, threads: _Threads) -> Iterator[Event]:
    """Everything, the threads' names last. Threads have numbers of their own in the whole trace."""
    matcher = Matcher()
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


_USED = ("kind", "name", "rank", "thread", *DEFAULTS)


def _spans(part: Trace, threads: _Threads) -> Iterator[Event]:
    """An event for each first row, and one that viewers pass over for each further row."""
    col = part.columns
    start = np.rint(col["start_s"] * 1e9).astype("i8")
    end = np.rint(col["end_s"] * 1e9).astype("i8")
    values = zip(*(col[name].tolist() for name in _USED), strict=True)
    for ts, dur, row in zip((start / 1e3).tolist(), ((end - start) / 1e3).tolist(), values, strict=True):
        told = dict(zip(_USED, row, strict=True))
        kind, name, place = KINDS[told["kind"]], part.names[told["name"]], threads.at(told["rank"], told["thread"])
        args = _args(kind, name, told)
        if told["part"]:
            yield {"name": KEY, "ph": "M", **place, "args": {"kind": kind, **args}}
        elif kind == "point":
            yield {"name": name, "cat": kind, **place, "ts": ts, "ph": "i", "s": "t", "args": {"arg": 0, **args}}
        else:
            yield {"name": name, "cat": kind, **place, "ts": ts, "ph": "X", "dur": dur, "args": args}


def _args(kind: str, name: str, told: dict[str, Any]) -> dict[str, Any]:
    """What is known of a row beside its name and times: what is not as in most rows, and what people look for."""
    args = {key: told[key] for key, most in DEFAULTS.items() if told[key] != most}
    if kind == "point" or (kind == "interval" and not name.startswith("MPI_")):
        return args
    if kind in ("send", "recv", "done"):
        args["tag"] = told["tag"]
    args |= {"num_bytes": told["num_bytes"], "called_from": hex(args.pop("arg", 0))}
    if kind == "collective" and told["peer"] >= 0:
        args["root"] = args.pop("peer")
    if "repeats" in args:
        args["calls"] = args.pop("repeats") + 1
    return args


def _flows(found: Messages, threads: _Threads) -> Iterator[Event]:
    """An arrow for each message: from where its send begins to just before where it was found to be there."""
    whole = np.flatnonzero(~np.isnan(found.taken_s))
    sent, taken = (np.rint(column[whole] * 1e9) / 1e3 for column in (found.sent_s, found.taken_s))
    ends = zip(*(column[whole].tolist() for column in found[:4]), strict=True)
    for number, ((src, a, dst, b), left, came) in enumerate(zip(ends, sent.tolist(), taken.tolist(), strict=True), 1):
        head = {"name": "message", "cat": "message", "id": number}
        yield {**head, "ph": "s", **threads.at(src, a), "ts": left}
        yield {**head, "ph": "f", "bp": "e", **threads.at(dst, b), "ts": round(came - 1e-3, 3)}
