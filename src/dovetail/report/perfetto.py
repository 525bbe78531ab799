"""Chrome trace format, which Perfetto and chrome://tracing open: a process for each rank, a thread for each track."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.core import save_text
from dovetail.ir import Program
from dovetail.report.kinds import GROUPS, span_groups
from dovetail.report.optext import op_texts
from dovetail.report.tracks import Track, tracks
from dovetail.timeline import Timeline
from dovetail.timeline.partners import message_of

_US = 1e6


def write_perfetto(path: str | Path, timelines: Sequence[Timeline], program: Program | None = None) -> Path:
    """Write `chrome_trace` to `path`, whole or not at all; returns the path."""
    return save_text(path, json.dumps(chrome_trace(timelines, program), separators=(",", ":")))


def chrome_trace(timelines: Sequence[Timeline], program: Program | None = None) -> dict[str, Any]:
    """The trace as a document: metadata, spans (`X`, `ts` and `dur` in µs), messages (`s` → `f`).

    Processes are named `measured · rank 0`. Where spans of a lane overlap, the lane has further threads. With
    `program`, spans tell op and source line, and flow events join each send to the receive that takes its message.
    """
    events: list[dict[str, Any]] = []
    texts = op_texts(program) if program is not None else []
    sources = message_of(program) if program is not None else np.zeros(0, dtype=np.int64)
    first_pid = 1
    for number, timeline in enumerate(timelines):
        found, order = tracks(timeline)
        threads = {track: thread for thread, track in enumerate(found, 1)}
        events += _names(timeline, found, threads, first_pid)
        spans = list(_spans(timeline, program, texts, found, order, threads, first_pid))
        events += spans
        events += _flows(timeline, spans, order, sources, number)
        first_pid += timeline.num_ranks
    other = {"labels": [t.label for t in timelines], "meta": [_plain(t.meta) for t in timelines]}
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}


def _names(
    timeline: Timeline, found: Sequence[Track], threads: dict[Track, int], first_pid: int
) -> Iterator[dict[str, Any]]:
    """Metadata events: processes and threads with names, in the order of ranks and lanes."""
    title = f"{timeline.meta['schedule']} · {timeline.label}" if timeline.meta.get("schedule") else timeline.label
    for rank in range(timeline.num_ranks):
        head = {"ph": "M", "pid": first_pid + rank}
        yield {**head, "name": "process_name", "args": {"name": f"{title} · rank {rank}"}}
        yield {**head, "name": "process_sort_index", "args": {"sort_index": first_pid + rank}}
    for track in found:
        name = timeline.lanes[track.lane] + (f" ({track.depth + 1})" if track.depth else "")
        head = {"ph": "M", "pid": first_pid + track.rank, "tid": threads[track]}
        yield {**head, "name": "thread_name", "args": {"name": name}}
        yield {**head, "name": "thread_sort_index", "args": {"sort_index": threads[track]}}


def _spans(
    timeline: Timeline,
    program: Program | None,
    texts: Sequence[str],
    found: Sequence[Track],
    order: np.ndarray[Any, Any],
    threads: dict[Track, int],
    first_pid: int,
) -> Iterator[dict[str, Any]]:
    """A complete event for each span, track by track."""
    col = {name: column[order].tolist() for name, column in timeline.columns.items()}
    groups = [GROUPS[g].name for g in span_groups(timeline, program)[order].tolist()]
    lines = program.columns["line"].tolist() if program is not None else []
    for track in found:
        head = {"ph": "X", "pid": first_pid + track.rank, "tid": threads[track]}
        for i in range(track.first, track.first + track.num_spans):
            op, args = col["op"][i], {}
            if op >= 0:
                args["op"] = op
            if 0 <= op < len(texts):
                args["text"] = texts[op]
                if program is not None and lines[op] >= 0:
                    args["written_at"] = program.lines[lines[op]]
            if col["num_bytes"][i]:
                args["num_bytes"] = col["num_bytes"][i]
            start, end = col["start_s"][i] * _US, col["end_s"][i] * _US
            yield {
                **head,
                "name": timeline.names[col["name"][i]],
                "cat": groups[i],
                "ts": round(start, 4),
                "dur": round(max(end - start, 0.0), 4),
                "args": args,
            }


def _flows(
    timeline: Timeline,
    spans: Sequence[dict[str, Any]],
    order: np.ndarray[Any, Any],
    sources: np.ndarray[Any, Any],
    number: int,
) -> Iterator[dict[str, Any]]:
    """A start inside the sending span and an end inside the taking span, for each message whose two ops both ran."""
    place = {op: i for i, op in enumerate(timeline.columns["op"][order].tolist()) if op >= 0}
    for target, source in enumerate(sources.tolist()):
        if source not in place or target not in place:
            continue
        head = {"name": "message", "cat": "message", "id": f"{number}.{target}"}
        sent, taken = spans[place[source]], spans[place[target]]
        yield {**head, "ph": "s", "pid": sent["pid"], "tid": sent["tid"], "ts": sent["ts"]}
        end = round(taken["ts"] + taken["dur"], 4)
        yield {**head, "ph": "f", "bp": "e", "pid": taken["pid"], "tid": taken["tid"], "ts": end}


def _plain(meta: dict[str, Any]) -> dict[str, Any]:
    """Provenance as JSON: what has no plain form is told as text."""
    return {key: v if isinstance(v, str | int | float | bool | None) else str(v) for key, v in meta.items()}
