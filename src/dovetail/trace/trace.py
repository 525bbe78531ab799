"""trace: Trace: rows of intervals, points, messages and collectives of a program's ranks, on one clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.core import check_schema, read_arrays
from dovetail.trace.decode import KINDS
from dovetail.trace.load import EMPTY, NO_WAITS, is_load, is_waits
from dovetail.trace.process_file import MOST_UNSEEN

SCHEMA = "dovetail.trace/1"
COLUMNS: dict[str, str] = {
    "kind": "u1",  # index into KINDS
    "name": "i4",  # index into `names`
    "part": "i4",  # 0 for the first row of an interval; 1, 2, … for its further messages, requests, …
    "rank": "i4",
    "thread": "i4",  # numbers above those of threads are lanes
    "start_s": "f8",
    "end_s": "f8",
    "arg": "i8",  # the user's number; for an MPI call its return address, or, if negative, the number of a Python line
    "peer": "i4",  # rank of the job; -1: any or none; -2: MPI_PROC_NULL; for a collective its root
    "tag": "i4",  # for a collective the checksum of a sample of what this rank gives; 0: unknown
    "num_bytes": "i8",  # bytes of a message as sent, posted or received; bytes that this rank gives to a collective
    "received_bytes": "i8",  # bytes that this rank gets from a collective; for a send, a checksum as above
    "comm": "i4",  # index into `comms`; -1: none; for one-sided calls the window
    "request": "i8",  # equal for all rows of one request; -1: none
    "begins": "?",  # whether the request begins here
    "is_open": "?",  # the interval never ended, for example because its rank was killed
    "repeats": "i4",  # further calls in this interval; all but the last were unsuccessful polls
    "pause_s": "f4",  # sum of the pauses between these calls
    "ready_s": "f4",  # of a send: for how long its data had been as they are, as far as earlier calls saw; 0: unknown
}


@dataclass(frozen=True)
class Comm:
    """A communicator or window.

    `ranks`: its ranks, numbered as in the job, in its order. `number`: distinguishes communicators of equal ranks.
    `remote`: ranks of the other group of an intercommunicator.
    """

    ranks: tuple[int, ...]
    number: int = 0
    remote: tuple[int, ...] = ()
    is_window: bool = False

    @property
    def peers(self) -> tuple[int, ...]:
        """Return the ranks that a message on the communicator can be sent to."""
        return self.remote or self.ranks


@dataclass(frozen=True, eq=False)
class Trace:
    """The calls and events of a program's ranks: rows ordered by end time, with times on the clock of rank 0.

    Attributes
    ----------
    num_ranks : int
        Number of ranks.
    names : tuple of str
        Names of calls, intervals and points; the column `name` indexes them.
    comms : tuple of Comm
        Communicators and windows; the column `comm` indexes them.
    columns : dict of ndarray
        One array per entry of `COLUMNS`, all of one length; times in seconds since the first event.
    meta : dict
        Provenance: `ranks` (host, pid, program, finalized, lost events, clock error, names of `lanes`, and of a program
        of MPI `library` and its `thread_level`; `has_io`: rows "libc …" are its I/O; `load`, `core_waits`: see
        `dovetail.trace.load`), `faults`, and `clocks`, the check of the clocks.
    """

    num_ranks: int
    names: tuple[str, ...]
    comms: tuple[Comm, ...]
    columns: dict[str, NDArray[Any]] = field(repr=False)
    meta: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def num_rows(self) -> int:
        """Return the number of rows."""
        return len(self.columns["kind"])

    @property
    def num_events(self) -> int:
        """Return the number of calls, intervals and points; an interval that stands for n polls counts n times."""
        first = self.columns["part"] == 0
        return int(np.count_nonzero(first) + self.columns["repeats"][first].sum())

    def rows(self, chosen: NDArray[Any] | slice) -> Trace:
        """Return the trace with the chosen rows only."""
        columns = {name: column[chosen] for name, column in self.columns.items()}
        return Trace(self.num_ranks, self.names, self.comms, columns, self.meta)

    def of_kind(self, *kinds: str) -> NDArray[np.bool_]:
        """Return a mask of the rows of these kinds."""
        return np.isin(self.columns["kind"], [KINDS.index(kind) for kind in kinds])

    def to_json(self) -> dict[str, Any]:
        """Return a document with a `schema` field, columns as lists."""
        columns = {name: self.columns[name].tolist() for name in COLUMNS}
        return {"schema": SCHEMA, **head_of(self.num_ranks, self.names, self.comms, self.meta), "columns": columns}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Trace:
        """Read what `to_json` wrote. Raise DovetailError for another schema or malformed columns."""
        check_schema(document, SCHEMA)
        return cls(*read_head(document), read_arrays(document["columns"], COLUMNS), dict(document["meta"]))


def thread_title(meta: Mapping[str, Any], rank: int, thread: int) -> str:
    """Return the name of a thread of a rank, or of a lane beside its threads, from a trace's meta."""
    ranks: list[Mapping[str, Any]] = [about for about in meta.get("ranks", ()) if about["rank"] == rank]
    lane = ranks[0].get("lanes", {}).get(str(thread)) if ranks else None
    return str(lane or (f"thread {thread}" if thread else "main"))


def head_of(num_ranks: int, names: tuple[str, ...], comms: tuple[Comm, ...], meta: dict[str, Any]) -> dict[str, Any]:
    """Return everything but the columns, for JSON."""
    groups = [
        {"ranks": list(c.ranks), "number": c.number, "remote": list(c.remote), "window": c.is_window} for c in comms
    ]
    return {"num_ranks": num_ranks, "names": list(names), "comms": groups, "meta": meta}


def check_ranks(num_ranks: int, num_seen: int) -> None:
    """Raise ValueError if a trace claims far more ranks than the `num_seen` that have a file or a row.

    Tables by sender and receiver have `num_ranks²` cells, so a damaged number would exhaust the memory.
    """
    if not 0 <= num_ranks <= num_seen + MOST_UNSEEN:
        raise ValueError(f"{num_ranks} ranks, of which only {num_seen} have events")


def read_head(document: dict[str, Any]) -> tuple[int, tuple[str, ...], tuple[Comm, ...]]:
    """Read what `head_of` wrote, without the meta. Raises ValueError, TypeError or KeyError if it is malformed."""
    num_ranks = document["num_ranks"]
    if type(num_ranks) is not int or not isinstance(document["names"], list):
        raise ValueError("no number of ranks, or no list of names")
    comms = tuple(
        Comm(_ranks(c["ranks"]), int(c["number"]), _ranks(c["remote"]), bool(c["window"])) for c in document["comms"]
    )
    return num_ranks, tuple(map(str, document["names"])), comms


def _ranks(found: Any) -> tuple[int, ...]:
    if not isinstance(found, list) or not all(type(rank) is int and -1 <= rank < 1 << 31 for rank in found):
        raise ValueError("a communicator with invalid ranks")
    return tuple(found)


def check_meta(meta: Any, num_ranks: int) -> dict[str, Any]:
    """Return a trace's meta. Raise ValueError if it lacks fields that its readers need."""
    if not isinstance(meta, dict):
        raise ValueError("its meta is not a JSON object")
    ranks, faults = meta.get("ranks", []), meta.get("faults", [])
    kinds = {"rank": int, "host": str, "maps": list, "lanes": dict, "lines": dict, "paths": dict, "event_s": list}
    is_sound = isinstance(ranks, list) and isinstance(faults, list) and all(isinstance(text, str) for text in faults)
    is_sound = is_sound and isinstance(meta.get("clocks", {}), dict) and isinstance(meta.get("lost", 0), int)
    for about in ranks if is_sound else []:
        is_sound = is_sound and isinstance(about, dict) and {"rank", "host"} <= about.keys()
        is_sound = is_sound and about["rank"] in range(num_ranks)
        is_sound = is_sound and all(isinstance(about[name], kind) for name, kind in kinds.items() if name in about)
        is_sound = is_sound and _are_places(about.get("maps", []), about.get("lines", {}), about.get("paths", {}))
        is_sound = is_sound and is_load(about.get("load", EMPTY)) and is_waits(about.get("core_waits", NO_WAITS))
    if not is_sound:
        raise ValueError("its meta is malformed")
    return meta


def _are_places(maps: list[Any], lines: dict[Any, Any], paths: dict[Any, Any]) -> bool:
    """Return whether a process's memory maps, Python lines and paths have the form that `call_sites` reads."""
    kinds = {"map": str, "start": int, "end": int, "offset": int}
    known = all(isinstance(it, dict) and all(isinstance(it.get(k), t) for k, t in kinds.items()) for it in maps)
    known = known and all(isinstance(line, str) for line in lines.values())
    return known and all(_is_path(name, path) for name, path in paths.items())


def _is_path(name: str, path: Any) -> bool:
    """Return whether a path is its call and the number of an earlier path, so that none leads to itself."""
    is_pair = isinstance(path, list) and len(path) == 2 and all(type(number) is int for number in path)
    return is_pair and name.isdecimal() and 0 <= path[1] < int(name)


def no_columns() -> dict[str, NDArray[Any]]:
    """Return the columns of a trace without rows."""
    return {name: np.zeros(0, dtype) for name, dtype in COLUMNS.items()}
