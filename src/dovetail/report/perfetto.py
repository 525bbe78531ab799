"""perfetto: timelines in Chrome's trace format, which Perfetto opens: a process per rank, a thread per track."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.core import save_text
from dovetail.ir import Program
from dovetail.ir.text.lines import op_lines
from dovetail.report.span_classes import GROUPS, span_groups
from dovetail.report.template import programs_of
from dovetail.report.tracks import Track, tracks
from dovetail.timeline import Timeline
from dovetail.timeline.partners import message_of

Event = dict[str, Any]


def write_perfetto(
    path: str | Path, timelines: Sequence[Timeline], program: Program | Sequence[Program | None] | None = None
) -> Path:
    """Write `chrome_trace` to `path`, completely or not at all; return the path."""
    document = chrome_trace(timelines, program)
    return save_text(path, json.dumps(document, separators=(",", ":"), ensure_ascii=False))


def chrome_trace(
    timelines: Sequence[Timeline], program: Program | Sequence[Program | None] | None = None
) -> dict[str, Any]:
    """Return the trace as a document: metadata, spans (`X`, `ts` and `dur` in µs, whole ns), messages (`s` → `f`).

    Processes are named like `measured rank 0`. Where spans of a lane overlap, the lane has further threads. With
    `program` (one for all, or one for each timeline), spans name op and source line, and flow events join each send to
    its receive. As Perfetto requires, thread ids are unique in the trace and differ from process ids, spans of a thread
    never overlap, and flow ids are whole numbers.
    """
    events: list[Event] = []
    pid, tid, flow = 1, 1 + sum(t.num_ranks for t in timelines), 1
    for timeline, ran in zip(timelines, programs_of(timelines, program), strict=True):
        part = _Part(timeline, ran, pid, tid)
        spans = list(part.spans())
        flows = list(part.flows(spans, flow))
        events += [*part.names(), *spans, *flows]
        pid, tid, flow = pid + timeline.num_ranks, tid + len(part.tracks), flow + len(flows) // 2
    other = {"labels": [t.label for t in timelines], "meta": [_plain(t.meta) for t in timelines]}
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}


@dataclass(frozen=True)
class _Part:
    """One timeline's share of the trace; its processes are `pid` + rank, its threads `tid` + track."""

    timeline: Timeline
    program: Program | None
    pid: int
    tid: int

    @cached_property
    def _sorted(self) -> tuple[list[Track], NDArray[np.int64]]:
        return tracks(self.timeline)

    @property
    def tracks(self) -> list[Track]:
        return self._sorted[0]

    def names(self) -> Iterator[Event]:
        """Yield metadata events: the names of processes and threads, in the order of ranks and lanes."""
        title = " ".join(filter(None, (str(self.timeline.meta.get("schedule") or ""), self.timeline.label)))
        for rank in range(self.timeline.num_ranks):
            head = {"ph": "M", "pid": self.pid + rank}
            yield {**head, "name": "process_name", "args": {"name": f"{title} rank {rank}"}}
            yield {**head, "name": "process_sort_index", "args": {"sort_index": self.pid + rank}}
        for tid, track in enumerate(self.tracks, self.tid):
            name = self.timeline.lanes[track.lane] + (f" ({track.depth + 1})" if track.depth else "")
            head = {"ph": "M", "pid": self.pid + track.rank, "tid": tid}
            yield {**head, "name": "thread_name", "args": {"name": name}}
            yield {**head, "name": "thread_sort_index", "args": {"sort_index": tid}}

    def spans(self) -> Iterator[Event]:
        """Yield a complete event (`X`) for each span, track by track."""
        order = self._sorted[1]
        col = self.timeline.columns
        groups = span_groups(self.timeline, self.program)[order].tolist()
        names, args = col["name"][order].tolist(), list(self._args(order))
        for tid, track in enumerate(self.tracks, self.tid):
            rows = slice(track.first, track.first + track.num_spans)
            start = np.rint(col["start_s"][order[rows]] * 1e9).astype(np.int64)
            end = np.maximum(np.rint(col["end_s"][order[rows]] * 1e9).astype(np.int64), start)
            end[:-1] = np.minimum(end[:-1], start[1:])  # removes overlaps of a nanosecond, from rounding or the clock
            head = {"ph": "X", "pid": self.pid + track.rank, "tid": tid}
            for i, ts, dur in zip(range(rows.start, rows.stop), start / 1e3, (end - start) / 1e3, strict=True):
                about = {"name": self.timeline.names[names[i]], "cat": GROUPS[groups[i]].name}
                yield {**head, **about, "ts": float(ts), "dur": float(dur), "args": args[i]}

    def _args(self, order: NDArray[np.int64]) -> Iterator[dict[str, Any]]:
        """Yield each span's op, text, source line and bytes."""
        texts = op_lines(self.program, source=False) if self.program is not None else []
        lines = self.program.columns["line"].tolist() if self.program is not None else []
        ops, sizes = (self.timeline.columns[name][order].tolist() for name in ("op", "num_bytes"))
        for op, size in zip(ops, sizes, strict=True):
            args: dict[str, Any] = {"op": op} if op >= 0 else {}
            if 0 <= op < len(texts):
                args["text"] = texts[op]
                if self.program is not None and lines[op] >= 0:
                    args["written_at"] = self.program.lines[lines[op]]
            yield {**args, "num_bytes": size} if size else args

    def flows(self, spans: Sequence[Event], first: int) -> Iterator[Event]:
        """Yield flow events of messages whose two ops both ran: from the start of the send into the receive's span."""
        if self.program is None:
            return
        place = {span["args"]["op"]: span for span in spans if "op" in span["args"]}
        for target, source in enumerate(message_of(self.program).tolist()):
            if source < 0 or source not in place or target not in place:
                continue
            sent, received = place[source], place[target]
            head = {"name": "message", "cat": "message", "id": first}
            inside = received["ts"] + max(received["dur"] - 1e-3, 0.0)
            yield {**head, "ph": "s", "pid": sent["pid"], "tid": sent["tid"], "ts": sent["ts"]}
            at = {"pid": received["pid"], "tid": received["tid"], "ts": round(inside, 3)}
            yield {**head, "ph": "f", "bp": "e", **at}
            first += 1


def _plain(meta: dict[str, Any]) -> dict[str, Any]:
    """Return `meta` for JSON: values of other types as text."""
    return {key: v if isinstance(v, str | int | float | bool | None) else str(v) for key, v in meta.items()}
