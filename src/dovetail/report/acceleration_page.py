"""acceleration_page: the report of `dovetail accelerate` as a file: a JSON document, or a page with the timeline."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from dovetail.accelerate.contest import Ratio
from dovetail.accelerate.counts import Counts
from dovetail.accelerate.expected import Prospects, is_replaceable
from dovetail.accelerate.learn import Learned
from dovetail.core import seconds_text, share_text
from dovetail.report.acceleration import size_text
from dovetail.report.html import write_page
from dovetail.report.trace_page import write_trace_page
from dovetail.trace import TraceFile

SCHEMA = "dovetail.acceleration/1"
MOST_ROWS = 40


def document(
    words: Sequence[str],
    counts: Counts | None,
    learned: Learned | None,
    prospects: Prospects | None,
    ratio: Ratio | None,
    lines: Sequence[str],
) -> dict[str, Any]:
    """Return the report as a document with a `schema` field: what is unknown is null. `lines`: the report in words."""
    return {
        "schema": SCHEMA,
        "command": shlex.join(words),
        "run": counts_document(counts) if counts else None,
        "traced": counts_document(prospects.counts) if prospects else None,
        "predicted": _predicted(prospects) if prospects else None,
        "learned": learned.to_json() if learned else None,
        "checked": ratio.to_json() if ratio else None,
        "lines": list(lines),
    }


def counts_document(counts: Counts) -> dict[str, Any]:
    """Return counts with their sums; seconds are summed over ranks but for `elapsed_s`."""
    known_s, skew_s = counts.known_skew
    served_s = sum(bucket.seconds for bucket in counts.buckets if is_replaceable(bucket, counts))
    found = {name: getattr(counts, name) for name in ("library", "ranks", "elapsed_s", "rank_s", "missing")}
    found |= {"hosts": list(counts.hosts), "in_mpi_s": counts.in_mpi_s, "in_collectives_s": counts.in_collectives_s}
    found |= {"in_replaceable_s": served_s, "skew_s": skew_s, "skew_known_of_s": known_s}
    found |= {"knobs_reported": dict(counts.readback), "buckets": [bucket._asdict() for bucket in counts.buckets]}
    replacing = counts.replacing
    found["replaced"] = None if replacing is None else [row._asdict() for row in replacing.rows]
    found["left"] = None if replacing is None else dict(replacing.left)
    found["learning_s"] = None if replacing is None else replacing.spent_s
    return found


def _predicted(found: Prospects) -> dict[str, Any]:
    levers = [
        {
            "lever": "shared memory" if each.is_memory else "knobs",
            "knobs": dict(each.knobs),
            "saves_s": each.saves_s,
            "times": [{**row.bucket._asdict(), "was_s": row.was_s, "now_s": row.now_s} for row in each.times],
        }
        for each in found.expected
    ]
    return {"served_s": found.served_s, "levers": levers, "why_unmeasured": found.why_unmeasured, "level": found.level}


def write_acceleration_page(path: str | Path, found: Mapping[str, Any], trace: TraceFile | None = None) -> Path:
    """Write the page: the report in words, tables of calls and of replaced collectives, and the timeline of a trace."""
    words = "".join(f'<p class="lines">{escape(line)}</p>' for line in found["lines"])
    head = _section("Report", f'<div class="notes">{words}</div>')
    for title, counts in (("Calls of the run", found["run"]), ("Calls of the trace", found["traced"])):
        head += _section(title, _calls(counts)) if counts else ""
    if found["run"] and found["run"]["replaced"]:
        head += _section("Collectives that may be replaced", _replaced(found["run"]["replaced"]))
    if trace is not None:
        return write_trace_page(path, [trace], [found["command"]], head)
    return write_page(path, title=found["command"], further=head)


def _calls(counts: Mapping[str, Any]) -> str:
    rows = []
    for it in counts["buckets"][:MOST_ROWS]:
        skew = share_text(it["waited_s"] / it["sampled_s"]) if it["sampled_s"] else ""
        each, share = it["seconds"] / max(it["calls"], 1), it["seconds"] / max(counts["rank_s"], 1e-12)
        size = it["comm_size"] or ""
        texts = f"MPI_{it['call']}", size, size_text(it["log2_bytes"]), it["calls"], seconds_text(each)
        rows.append((*texts, share_text(share), skew))
    head = ("call", "ranks", "bytes", "calls", "time of a call", "of the ranks' time", "of it skew")
    return _table(head, rows, texts=1)


def _replaced(found: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for it in found[:MOST_ROWS]:
        times = (seconds_text(it["was_s"]), seconds_text(it["now_s"])) if it["was_s"] else ("", "")
        ratio = f"{it['low']:.2f} to {it['high']:.2f}" if it["was_s"] else ""
        what = f"MPI_{it['call']} {it['dtype']} {it['op']}".strip()
        texts = what, it["state"], it["comm_size"], size_text(it["log2_bytes"]), it["calls"], it["moved"]
        rows.append((*texts, *times, ratio))
    head = ("call", "state", "ranks", "bytes", "calls", "replaced", "was", "now", "ratio")
    return _table(head, rows, texts=2)


def _table(head: Sequence[str], rows: Iterable[Sequence[object]], texts: int) -> str:
    """Return a table that scrolls where it is wider than the page; `texts`: columns at the left that are no numbers."""

    def line(tag: str, cells: Sequence[object]) -> str:
        kinds = ["" if i < texts else ' class="number"' for i in range(len(cells))]
        made = (f"<{tag}{kind}>{escape(str(cell))}</{tag}>" for kind, cell in zip(kinds, cells, strict=True))
        return f"<tr>{''.join(made)}</tr>"

    lines = line("th", head) + "".join(line("td", row) for row in rows)
    return f'<div class="scroll"><table>{lines}</table></div>'


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>"
