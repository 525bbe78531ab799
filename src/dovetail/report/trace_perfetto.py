"""trace_perfetto: write a Trace in one pass in Chrome's trace format, for Perfetto: a process per rank."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.core import EnvironmentFault
from dovetail.trace import Trace, TraceFile
from dovetail.trace.analysis.matching import Matcher, Messages
from dovetail.trace.decode import KINDS
from dovetail.trace.exchange.chrome_own import DEFAULTS, KEY
from dovetail.trace.trace import SCHEMA, head_of, thread_title

Event = dict[str, Any]
_BATCH = 1 << 16  # messages that are written at a time


def write_trace_perfetto(path: str | Path, trace: Trace | TraceFile) -> Path:
    """Write spans (`X`), points (`i`) and messages (`s` → `f`), `ts` in µs with whole nanoseconds.

    `otherData` holds names, communicators and `meta`; metadata events named `dovetail` hold the second and later rows
    of an interval. Viewers ignore both; `trace import` restores the trace from them.
    """
    target, threads = Path(path), _Threads(trace.num_ranks)
    try:
        with target.open("w", encoding="utf-8") as file:
            file.write('{"displayTimeUnit":"ns","traceEvents":[')
            for number, batch in enumerate(filter(None, _batches(trace, threads))):
                file.write((",\n" if number else "\n") + ",\n".join(batch))
            head = head_of(trace.num_ranks, trace.names, trace.comms, trace.meta)
            listed = [[tid, rank, thread] for (rank, thread), tid in threads.known.items()]
            file.write('\n],"otherData":' + json.dumps({KEY: {"schema": SCHEMA, **head, "threads": listed}}) + "}\n")
    except OSError as error:
        if target.is_file():
            target.unlink()  # incomplete
        hint = "free some space, or name a file elsewhere"
        raise EnvironmentFault(f"cannot write {target}", found=error.strerror, hint=hint) from error
    return target


def _batches(trace: Trace | TraceFile, threads: _Threads) -> Iterator[list[str]]:
    """Yield the text of every event, the names of threads last."""
    matcher = Matcher()
    for part in trace.parts() if isinstance(trace, TraceFile) else [trace]:
        matcher.take(part.columns)
        yield list(_spans(part, threads))
    found, _ = matcher.messages(trace.names, trace.comms)
    yield from _flows(found, threads)
    yield [_text(event) for event in threads.names(trace.meta)]


def _text(event: Event) -> str:
    return json.dumps(event, separators=(",", ":"), ensure_ascii=False)


class _Threads:
    """Numbers of processes (rank + 1) and of threads (from num_ranks + 1 on), unique in the trace."""

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


_USED = ("kind", "name", *(name for name in DEFAULTS if name != "request"))


def _spans(part: Trace, threads: _Threads) -> Iterator[str]:
    """Yield an event for each interval's first row, metadata for later ones; text that rows share is made once."""
    col = part.columns
    start = np.rint(col["start_s"] * 1e9).astype("i8")
    end = np.rint(col["end_s"] * 1e9).astype("i8")
    heads: dict[tuple[int, ...], tuple[str, str]] = {}
    tails: dict[tuple[Any, ...], str] = {}
    of_head = zip(*((col[name] > 0 if name == "part" else col[name]).tolist() for name in _OF_HEAD), strict=True)
    of_tail = zip(*(col[name].tolist() for name in _USED), strict=True)
    times = (start / 1e3).tolist(), ((end - start) / 1e3).tolist(), col["request"].tolist()
    for head, tail, ts, dur, request in zip(of_head, of_tail, *times, strict=True):
        if head not in heads:
            heads[head] = _head(part.names, threads, *head)
        if tail not in tails:
            tails[tail] = _tail(part.names, tail)
        (begin, form), args = heads[head], tails[tail]
        if request != -1:
            args += f'{"" if args[-1] == "{" else ","}"request":{request}'
        yield f"{begin}{form % (ts, dur) if form else ''},{args}}}}}"


_OF_HEAD = ("kind", "name", "rank", "thread", "part")


def _head(
    names: Sequence[str], threads: _Threads, kind: int, name: int, rank: int, thread: int, part: int
) -> tuple[str, str]:
    """Return the text of an event before its times, and a format string for `ts` and `dur`."""
    place = threads.at(rank, thread)
    if part:
        return _text({"name": KEY, "ph": "M", **place})[:-1], ""
    head = {"name": names[name], "cat": KINDS[kind], **place}
    if KINDS[kind] == "point":
        return _text({**head, "ph": "i", "s": "t"})[:-1], ',"ts":%r%.0s'
    return _text({**head, "ph": "X"})[:-1], ',"ts":%r,"dur":%r'


def _tail(names: Sequence[str], row: Sequence[Any]) -> str:
    """Return the text of an event's `args`, without its request and closing brackets."""
    fields = dict(zip(_USED, row, strict=True))
    kind = KINDS[fields["kind"]]
    args = _args(kind, names[fields["name"]], fields)
    if fields["part"]:
        args = {"kind": kind, **args}
    elif kind == "point":
        args = {"arg": 0, **args}
    return '"args":' + _text(args)[:-1]


def _args(kind: str, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the `args` of a row: fields that differ from their defaults, and the fields that users expect."""
    args = {key: fields[key] for key, usual in DEFAULTS.items() if key in fields and fields[key] != usual}
    if kind == "point" or (kind == "interval" and not name.startswith("MPI_")):
        return args
    if kind in ("send", "recv", "done"):
        args["tag"] = fields["tag"]
    args |= {"num_bytes": fields["num_bytes"], "called_from": hex(args.pop("arg", 0))}
    if kind == "collective" and fields["peer"] >= 0:
        args["root"] = args.pop("peer")
    if "repeats" in args:
        args["calls"] = args.pop("repeats") + 1
    return args


def _flows(found: Messages, threads: _Threads) -> Iterator[list[str]]:
    """Yield an arrow for each message: from its send's start to just before its receive is known to be complete."""
    received = np.flatnonzero(~np.isnan(found.received_s))
    for begin in range(0, len(received), _BATCH):
        yield list(_arrows(found, received[begin : begin + _BATCH], begin + 1, threads))


def _arrows(found: Messages, at: NDArray[np.int64], number: int, threads: _Threads) -> Iterator[str]:
    sent, taken = ((np.rint(column[at] * 1e9) / 1e3).tolist() for column in (found.sent_s, found.received_s))
    ends = (zip(found[i][at].tolist(), found[i + 1][at].tolist(), strict=True) for i in (0, 2))
    places: dict[tuple[int, int], str] = {}

    def place(end: tuple[int, int]) -> str:
        if end not in places:
            places[end] = _text(threads.at(*end))[1:-1]
        return places[end]

    for i, (src, dst, left, arrived) in enumerate(zip(*ends, sent, taken, strict=True), number):
        head = f'{{"name":"message","cat":"message","id":{i}'
        yield f'{head},"ph":"s",{place(src)},"ts":{left!r}}}'
        yield f'{head},"ph":"f","bp":"e",{place(dst)},"ts":{round(arrived - 1e-3, 3)!r}}}'
