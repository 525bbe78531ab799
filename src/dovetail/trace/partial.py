"""partial: traces of processes that reached the limit of their file: how far they are whole, and the words for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dovetail.trace.clocks import RankClock
from dovetail.trace.process_file import EventKind, Piece, ProcessFile

_CLOCKED = (EventKind.point, EventKind.begin, EventKind.end)
_LAST = 64  # events at the end of a piece, of which at least one has a clock


class Full(NamedTuple):
    """The first process that reached its limit: its rank, its limit, and when a thread of it recorded last."""

    until_ns: float
    rank: int
    limit_bytes: int


def first_full(processes: Sequence[ProcessFile], clocks: Sequence[RankClock]) -> Full | None:
    """Return the process whose events ended first for lack of room below its limit; None if all are whole."""
    found = (_full(process, clock) for process, clock in zip(processes, clocks, strict=True))
    return min((it for it in found if it is not None), default=None)


def _full(process: ProcessFile, clock: RankClock) -> Full | None:
    limit = next((int(note["limit_bytes"]) for note in process.notes if "limit_bytes" in note), None)
    ends = [end for piece in process.pieces if piece.lost and (end := _end(process, piece)) is not None]
    if limit is None or not ends:
        return None
    return Full(clock.line(min(ends)), process.rank, limit)


def _end(process: ProcessFile, piece: Piece) -> int | None:
    """Return the clock of a piece's last event that has one."""
    last = process.events(piece)[-_LAST:]
    at = np.flatnonzero(np.isin(last["about"] & 15, _CLOCKED))
    return int(last["word"][at].max()) if len(at) else None


def kept(batch: dict[str, Any], full: Full | None, start_ns: float) -> dict[str, Any]:
    """Return the rows that ended before the first process reached its limit: later ones lack their partners."""
    if full is None:
        return batch
    chosen = batch["end_s"] <= (full.until_ns - start_ns) * 1e-9
    return {name: column[chosen] for name, column in batch.items()}


def partial_meta(full: Full | None, start_ns: float) -> dict[str, Any]:
    """Return `{"partial": {"until_s", "rank", "limit_bytes"}}` for a trace's meta; empty if the trace is whole."""
    if full is None:
        return {}
    until_s = (full.until_ns - start_ns) * 1e-9
    return {"partial": {"until_s": until_s, "rank": full.rank, "limit_bytes": full.limit_bytes}}


def partial_words(meta: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence if a trace holds the first part of a run only."""
    if found := meta.get("partial"):
        yield (
            f"This trace holds the first {found['until_s']:.3g} s of the run only: then the file of rank "
            f"{found['rank']} had reached its limit of {found['limit_bytes']} bytes, and {meta.get('lost', 0)} later "
            "events were left out. DOVETAIL_TRACE_LIMIT=BYTES raises it for each process; DOVETAIL_TRACE_KEEP=newest "
            "keeps the end"
        )
