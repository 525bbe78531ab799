"""places: call sites of the rows of a trace, for findings."""

from __future__ import annotations

import numpy as np

from dovetail.trace import Trace
from dovetail.trace.analysis.sites import call_sites


class Places:
    """Call sites of all rows of a trace."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        rows = np.flatnonzero(trace.columns["part"] == 0)
        self.sites = dict(zip(rows.tolist(), call_sites(trace, rows), strict=True))
        names = enumerate(trace.columns["name"].tolist())
        self._shown = [self.sites.get(row) or trace.names[name] for row, name in names]

    def site(self, row: int) -> str:
        return self._shown[row]

    def of(self, rows: tuple[int, ...]) -> str:
        """Return the sites and the names of some calls, at most three of each."""
        known = [row for row in rows if row >= 0]
        names = dict.fromkeys(self.trace.names[int(self.trace.columns["name"][row])] for row in known)
        places = dict.fromkeys(place for row in known if (place := self.sites.get(row, "")))
        return ", ".join([*list(places)[:3], *list(names)[:3]])
