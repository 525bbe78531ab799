"""trace_page: the HTML page of a trace: timeline of calls, messages and causes of waits; findings and statistics."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.advise.advise import Advice, advise
from dovetail.advise.causes import Causes, causes
from dovetail.advise.words import renaming
from dovetail.report.advice import Part, advice_parts
from dovetail.report.causes import causes_table, summary
from dovetail.report.html import write_page
from dovetail.report.op_details import OpDetails
from dovetail.report.trace_tables import Table, remarks, tables
from dovetail.report.units import seconds
from dovetail.timeline import Timeline
from dovetail.trace import Trace, TraceFile
from dovetail.trace.analysis.aggregate import Aggregate, aggregate
from dovetail.trace.analysis.call_classes import CLASSES, class_of
from dovetail.trace.analysis.collective_calls import collective_calls
from dovetail.trace.analysis.matching import messages
from dovetail.trace.analysis.sites import call_sites
from dovetail.trace.analysis.stats import stats
from dovetail.trace.decode import KINDS
from dovetail.trace.to_timeline import span_rows, to_timeline

MOST_ROWS = 300_000  # larger traces are drawn as sums


def write_trace_page(
    path: str | Path, traces: Sequence[Trace | TraceFile], titles: Sequence[str], head: str = ""
) -> Path:
    """Write a self-contained page of traces, one above the other; of traces on disk with more than `MOST_ROWS` rows it
    shows sums instead of calls. `head`: HTML that comes first."""
    shown = [_shown(trace) for trace in traces]
    timelines = [_named(timeline, title) for (timeline, _, _), title in zip(shown, titles, strict=True)]
    further = head + "".join(
        _section(title, trace, i, note)
        for i, (title, trace, (_, _, note)) in enumerate(zip(titles, traces, shown, strict=True))
    )
    details = [details for _, details, _ in shown]
    return write_page(path, title=" and ".join(titles), timelines=timelines, program=details, further=further)


def _shown(trace: Trace | TraceFile) -> tuple[Timeline, OpDetails, str]:
    """Return the timeline of a trace, details of its spans, and a sentence on what the page leaves out."""
    if isinstance(trace, TraceFile):
        if trace.num_rows > MOST_ROWS:
            return _summed(aggregate(trace))
        trace = trace.read()
    say = renaming(trace.meta.get("words", {}))
    timeline, details = to_timeline(trace), trace_details(trace)
    timeline = replace(timeline, names=tuple(map(say, timeline.names)))
    return timeline, replace(details, texts=list(map(say, details.texts)), outside=say(CLASSES[0])), ""


def _summed(found: Aggregate) -> tuple[Timeline, OpDetails, str]:
    none = np.zeros(0, "i8")
    col, count = found.timeline.columns, found.timeline.num_spans
    lasted = (col["end_s"] - col["start_s"]).tolist()
    bin_ = seconds(found.bin_s)
    texts = [
        f"{CLASSES[kind]}: {calls} calls begin in these {bin_}; {seconds(lasts)} are spent in such calls"
        for kind, calls, lasts in zip(found.classes.tolist(), found.calls.tolist(), lasted, strict=True)
    ]
    start = np.zeros(count + 1, "i8")
    details = OpDetails("trace", (), texts, np.full(count, -1), none, none, start, none, found.classes)
    note = f"The timeline shows sums of {found.num_calls} calls: each thread's time in each class of calls, in "
    note += f"intervals of {bin_}. Single calls and messages are not drawn."
    return found.timeline, details, note


def _named(timeline: Timeline, title: str) -> Timeline:
    """Return the timeline with each span as its own op, as texts and messages need it, and with a title."""
    columns = {**timeline.columns, "op": np.arange(timeline.num_spans, dtype="i8")}
    return replace(timeline, columns=columns, meta={**timeline.meta, "schedule": title})


def trace_details(trace: Trace) -> OpDetails:
    """Return texts, call sites and messages of the spans, and for each collective the call that it waited for."""
    rows = span_rows(trace)
    span = np.full(trace.num_rows, -1, "i8")
    span[rows] = np.arange(len(rows))
    sites = call_sites(trace, rows)
    lines = tuple(dict.fromkeys(site for site in sites if site))
    number = {line: i for i, line in enumerate(lines)}
    line = np.array([number.get(site, -1) for site in sites], "i4")
    found = messages(trace)
    both = found.received_row >= 0
    first = np.arange(trace.num_rows) - trace.columns["part"]  # the first row of each row's call
    sender, taker = span[first[found.sent_row[both]]], span[first[found.received_row[both]]]
    dep_start, dep = _waited_for(trace, span, first, len(rows))
    classes = np.array([class_of(name) for name in trace.names], "u1")[trace.columns["name"][rows]]
    return OpDetails("trace", lines, span_texts(trace, rows), line, sender, taker, dep_start, dep, classes)


def _waited_for(
    trace: Trace, span: NDArray[Any], first: NDArray[Any], count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return, in compressed rows, for each call of a collective the call of the rank that came last."""
    joins = collective_calls(trace)
    of_last = np.full(int(joins.collective.max(initial=-1)) + 1, -1, "i8")
    is_last = joins.start_s == joins.last_start_s
    of_last[joins.collective[is_last]] = span[first[joins.row[is_last]]]
    waiting, cause = span[first[joins.row]], of_last[joins.collective]
    at = np.flatnonzero((waiting != cause) & (waiting >= 0) & (cause >= 0))
    at = at[np.argsort(waiting[at], kind="stable")]
    start = np.searchsorted(waiting[at], np.arange(count + 1))
    return start.astype("i8"), cause[at]


def span_texts(trace: Trace, rows: NDArray[Any]) -> list[str]:
    """Return what each span did, in a few words."""
    col = trace.columns
    parts = np.zeros(trace.num_rows, "i8")
    np.add.at(parts, np.arange(trace.num_rows) - col["part"], 1)
    used = ("kind", "name", "peer", "tag", "comm", "arg", "repeats")
    values = [col[name][rows].tolist() for name in used] + [_source(trace)[rows].tolist()]
    sizes = [len(comm.ranks) for comm in trace.comms]
    own = [not name.startswith("MPI_") for name in trace.names]  # the `arg` of others is an address
    texts = []
    for kind, name, peer, tag, comm, arg, repeats, source, count in zip(*values, parts[rows].tolist(), strict=True):
        size = sizes[comm] if comm >= 0 else 0
        words = _words(KINDS[kind], peer, tag, size, own[name] * arg, count)
        if source >= 0:  # a call that sends, unless to MPI_PROC_NULL, and receives
            words = f" to {peer} and" * (peer >= 0) + f" from {source}, tag {tag}"
        texts.append(f"{trace.names[name]}{words}" + (f", {repeats + 1} times" if repeats else ""))
    return texts


def _source(trace: Trace) -> NDArray[np.int64]:
    """Return, for the first row of each call that sends and receives, the rank it received from; -1 for other rows."""
    col = trace.columns
    found = np.full(trace.num_rows, -1, "i8")
    later = np.flatnonzero((col["kind"] == KINDS.index("done")) & (col["peer"] >= 0) & (col["part"] > 0))
    first = later - col["part"][later]
    sends = (col["kind"][first] == KINDS.index("send")) & (col["request"][first] < 0)
    found[first[sends]] = col["peer"][later[sends]]
    return found


def _words(kind: str, peer: int, tag: int, size: int, arg: int, count: int) -> str:
    more = f", {count} requests" if count > 1 and kind in ("done", "request") else ""
    other = str(peer) if peer >= 0 else "nobody" if peer == -2 else "any"
    if kind == "send":
        return f" to {other}, tag {tag}{more}"
    if kind == "recv" or (kind == "done" and peer >= 0):
        return f" from {other}, tag {'any' if tag < 0 else tag}{more}"
    if kind == "collective":
        return f" of {size} ranks" + (f", root {peer}" if peer >= 0 else "")
    if kind in ("put", "get"):
        return f" {'to' if kind == 'put' else 'from'} {other}"
    return f" {arg}" if kind == "interval" and arg else more


def _section(title: str, trace: Trace | TraceFile, number: int, note: str) -> str:
    """Return what the timeline leaves out, advice, causes of waits, statistics, and remarks.

    `number`: of the trace's timeline on the page.
    """
    found = stats(trace)
    shown = "".join(_table(table) for table in tables(found))
    notes = "".join(f"<p>{escape(remark)}</p>" for remark in remarks(found))
    left_out = f"<p>{escape(note)}</p>" * bool(note)
    spans = Spans(trace) if not note else None
    say = renaming(trace.meta.get("words", {}))
    head = f"<h2>{escape(title)}</h2>{left_out}{_advice(advise(trace), number, spans)}{_causes(causes(trace), say)}"
    return f'<section class="notes">{head}<div class="sums">{shown}</div>{notes}</section>'


def _causes(found: Causes, say: Callable[[str], str]) -> str:
    """Return what made the ranks wait; empty if none waited. `say`: names calls as the traced program does."""
    if not found.causes:
        return ""
    table = causes_table(found)
    shown = _table(table._replace(rows=[[say(cell) for cell in row] for row in table.rows]))
    return f"<h2>Causes of waits</h2><p>{escape(summary(found))}</p>{shown}"


def _advice(advice: Advice, number: int, spans: Spans | None) -> str:
    """Return the findings, the most useful first, each a button that shows its calls."""
    parts = "".join(_part(part, number, spans) for part in advice_parts(advice))
    hint = "<p>A click on a finding shows its longest calls, one after the other.</p>" * bool(advice.findings)
    return f"<h2>What to change</h2>{hint}{parts}"


def _part(part: Part, number: int, spans: Spans | None) -> str:
    text = f'<p class="lines">{escape(part.text)}</p>'
    if part.finding is None or not part.finding.calls:
        return text
    longest = sorted(part.finding.calls, key=lambda call: call[1] - call[2])
    calls = [[-1 if spans is None else spans.of(rank, start_s), start_s, end_s] for rank, start_s, end_s in longest]
    about = f'data-timeline="{number}" data-calls="{escape(json.dumps(calls))}"'
    return f'<button type="button" class="finding" aria-pressed="false" {about}>{text}</button>'


class Spans:
    """Finds the span of a call on the page's timeline."""

    def __init__(self, trace: Trace | TraceFile) -> None:
        trace = trace.read() if isinstance(trace, TraceFile) else trace
        rows = span_rows(trace)
        rank, start_s = (trace.columns[name][rows].tolist() for name in ("rank", "start_s"))
        self._spans = {both: i for i, both in enumerate(zip(rank, start_s, strict=True))}

    def of(self, rank: int, start_s: float) -> int:
        """Return the number of the span of a rank's call that starts then; -1: none."""
        return self._spans.get((rank, start_s), -1)


def _table(table: Table) -> str:
    marks = ["" if align == "left" else ' class="number"' for align in table.aligns]
    head = "".join(f"<th{mark}>{escape(text)}</th>" for text, mark in zip(table.headers, marks, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{mark}>{_cell(cell)}</td>" for cell, mark in zip(row, marks, strict=True)) + "</tr>"
        for row in table.rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(text: str) -> str:
    """Return the cell's text; a text of `#` only becomes a bar."""
    if not text.strip("#") and text:
        look = f"display:inline-block;height:.7em;width:{len(text)}ch;background:currentColor;opacity:.35"
        return f'<span style="{look}"></span>'
    return escape(text)
