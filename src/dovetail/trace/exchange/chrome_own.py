"""chrome_own: read Dovetail's own export to Chrome's format: every row, with times in whole nanoseconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dovetail.core import DovetailError, check_schema
from dovetail.trace.decode import KINDS
from dovetail.trace.store import doubtful_column
from dovetail.trace.trace import COLUMNS, SCHEMA, Trace, check_meta, check_ranks, no_columns, read_head

KEY = "dovetail"  # key in `otherData`, and name of the metadata events with further rows of an interval
DEFAULTS: dict[str, float] = {
    "peer": -1,
    "tag": 0,
    "num_bytes": 0,
    "received_bytes": 0,
    "comm": -1,
    "request": -1,
    "begins": False,
}
DEFAULTS |= {"is_open": False, "pause_s": 0.0, "ready_s": 0.0, "arg": 0, "repeats": 0, "part": 0}
_KINDS = {kind: number for number, kind in enumerate(KINDS)}


def is_own(document: Any) -> bool:
    """Return whether a document is Dovetail's own export, which contains the whole trace."""
    about = document.get("otherData") if isinstance(document, dict) else None
    return isinstance(about, dict) and isinstance(about.get(KEY), dict)


def read_own(document: Mapping[str, Any], source: str) -> Trace:
    """Return the trace in a Chrome document that Dovetail wrote. Raise DovetailError if it was edited wrongly."""
    about = document["otherData"][KEY]
    try:
        check_schema(about, SCHEMA)
        num_ranks, names, comms = read_head(about)
        number = {name: i for i, name in enumerate(names)}
        threads = {int(tid): (int(rank), int(thread)) for tid, rank, thread in about["threads"]}
        columns = no_columns()
        rows = list(_rows(document["traceEvents"], number, threads))
        for name, kind in COLUMNS.items():
            columns[name] = np.array([row[name] for row in rows], kind)
        _check(columns, num_ranks, len(comms))
        if (broken := doubtful_column(columns)) is not None:
            raise ValueError(f"column {broken}")
        check_ranks(num_ranks, len(np.unique(columns["rank"])))
        return Trace(num_ranks, names, comms, columns, check_meta(about["meta"], num_ranks) | {"source": source})
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, AttributeError) as error:
        why = error.what if isinstance(error, DovetailError) else f"{type(error).__name__}: {error}"
        raise DovetailError(
            f"{source} is no trace in Chrome's format", found=f"Dovetail's export, but edited: {why}"
        ) from error


def _rows(events: Any, names: Mapping[str, int], threads: Mapping[int, tuple[int, int]]) -> Iterator[dict[str, Any]]:
    """Yield the rows in order; further rows of an interval follow its event."""
    last: dict[str, Any] = {}
    for event in events:
        if event["ph"] == "M" and event["name"] == KEY:
            yield {**last, **_values(event["args"]), "kind": _KINDS[event["args"]["kind"]]}
        if event["ph"] not in ("X", "i"):
            continue
        rank, thread = threads[event["tid"]]
        start_ns = round(event["ts"] * 1e3)
        end_ns = start_ns + round(event.get("dur", 0.0) * 1e3)
        last = {"name": names[event["name"]], "rank": rank, "thread": thread}
        last |= {"start_s": start_ns * 1e-9, "end_s": end_ns * 1e-9}
        yield {**last, **_values(event["args"]), "kind": _KINDS[event["cat"]]}


def _values(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event's arguments as column values; missing columns have their defaults."""
    found = DEFAULTS | {name: args[name] for name in DEFAULTS if name in args}
    if "called_from" in args:
        found["arg"] = int(args["called_from"], 16)
    if "root" in args:
        found["peer"] = args["root"]
    if "calls" in args:
        found["repeats"] = args["calls"] - 1
    return found


def _check(columns: Mapping[str, Any], num_ranks: int, num_comms: int) -> None:
    limits = {"rank": (0, num_ranks), "comm": (-1, num_comms), "thread": (0, 1 << 31), "part": (0, 1 << 31)}
    for name, (least, end) in limits.items():
        if len(columns[name]) and not (least <= columns[name].min() and columns[name].max() < end):
            raise ValueError(f"{name} {columns[name].min()} to {columns[name].max()}")
