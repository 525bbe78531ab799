"""Timeline: what happened, or what is predicted to happen, as spans by rank and lane."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dovetail.core import check_schema, read_arrays, reading, seconds_text

Label = Literal["predicted", "emulated", "measured"]
SCHEMA = "dovetail.timeline/1"
COLUMNS: dict[str, str] = {
    "rank": "i4",
    "lane": "i4",  # row of `lanes`
    "op": "i8",  # row of the Program's columns, -1 for a span that is no op (a wait, a poll)
    "name": "i4",  # row of `names`
    "num_bytes": "i8",  # moved by this span, 0 for compute
    "start_s": "f8",
    "end_s": "f8",
}


@dataclass(frozen=True, eq=False)
class Timeline:
    """Spans of one execution, in seconds since its common start. All ranks are on one clock.

    Attributes
    ----------
    label : {"predicted", "emulated", "measured"}
        Where the times come from.
    num_ranks : int
        Number of ranks.
    lanes, names : tuple of str
        Names of the lanes, and of what spans do. The columns `lane` and `name` index them.
    columns : dict of ndarray
        One array per entry of `COLUMNS`, all with one row per span: `rank`, `lane`, `name`, `op` (row in the Program,
        -1: none), `start_s`, `end_s`, `num_bytes`.
    meta : dict
        Provenance: machine, program, commit, clock error in seconds (`clock_error_s`).
    """

    label: Label
    num_ranks: int
    lanes: tuple[str, ...]
    names: tuple[str, ...]
    columns: dict[str, NDArray[Any]] = field(repr=False)
    meta: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        took = f"{seconds_text(self.makespan_s)} {self.label}"
        return f"<Timeline: {took}, {self.num_ranks} ranks, {self.num_spans} spans>"

    @property
    def num_spans(self) -> int:
        return len(self.columns["op"])

    @property
    def makespan_s(self) -> float:
        """End of the last span, in seconds since the common start; 0 for an empty timeline."""
        return float(self.columns["end_s"].max()) if self.num_spans else 0.0

    def busy_s(self, rank: int, lane: int) -> float:
        """Return the seconds in which lane `lane` (an index) of `rank` had at least one span open."""
        rows = (self.columns["rank"] == rank) & (self.columns["lane"] == lane)
        return union_s(self.columns["start_s"][rows], self.columns["end_s"][rows])

    def to_json(self) -> dict[str, Any]:
        """Return a document with a `schema` field, columns as lists."""
        columns = {name: self.columns[name].tolist() for name in COLUMNS}
        head = {"schema": SCHEMA, "label": self.label, "num_ranks": self.num_ranks}
        return {**head, "lanes": list(self.lanes), "names": list(self.names), "meta": self.meta, "columns": columns}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Timeline:
        """Return the timeline that `to_json` wrote. Raises DovetailError if columns do not fit together."""
        check_schema(document, SCHEMA)
        with reading("timeline document"):
            columns = read_arrays(document["columns"], COLUMNS)
            lanes, names = (tuple(map(str, document[key])) for key in ("lanes", "names"))
            found = cls(document["label"], int(document["num_ranks"]), lanes, names, columns, dict(document["meta"]))
            if len({len(column) for column in columns.values()}) != 1:
                raise ValueError("columns differ in length")
            for name, most in (("rank", found.num_ranks), ("lane", len(lanes)), ("name", len(names))):
                if len(columns[name]) and not 0 <= columns[name].min() <= columns[name].max() < most:
                    raise ValueError(f"column '{name}' has values outside its table")
            if not (columns["start_s"] <= columns["end_s"]).all() or not np.isfinite(columns["end_s"]).all():
                raise ValueError("columns 'start_s' and 'end_s' must be finite, each end after its start")
        return found


def union_s(start_s: NDArray[np.float64], end_s: NDArray[np.float64]) -> float:
    """Return the total length of a union of intervals.

    >>> union_s(np.array([0.0, 1.0, 5.0]), np.array([2.0, 3.0, 6.0]))
    4.0
    """
    if not len(start_s):
        return 0.0
    order = np.argsort(start_s, kind="stable")
    start, reach = start_s[order], np.maximum.accumulate(end_s[order])
    gaps = np.maximum(start[1:] - reach[:-1], 0.0).sum()
    return float(reach[-1] - start[0] - gaps)
