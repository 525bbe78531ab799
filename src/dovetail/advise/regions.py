"""regions: the program's own intervals (`dovetail.trace.interval`), by which work between two calls is named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.advise.intervals import Intervals
from dovetail.trace import Trace, TraceFile
from dovetail.trace.analysis.call_classes import OUTSIDE, class_of
from dovetail.trace.analysis.matching import of_name
from dovetail.trace.decode import KINDS
from dovetail.trace.grown import Grown

Array = NDArray[Any]
MOSTLY = 0.5  # work is named by a region that covers more than this share of it
_INTERVAL = KINDS.index("interval")


class Regions:
    """Intervals that are neither MPI, nor I/O, nor pickling. False: there are none."""

    def __init__(self, trace: Trace | TraceFile) -> None:
        self.names, self.kept = trace.names, Grown()
        self.is_own = of_name(trace.names, lambda name: class_of(name) == OUTSIDE)

    def __bool__(self) -> bool:
        return len(self.kept) > 0

    def take(self, columns: dict[str, Array]) -> None:
        """Add rows of the trace."""
        is_own = self.is_own[columns["name"]] & (columns["kind"] == _INTERVAL) & ~columns["is_open"]
        at = np.flatnonzero(is_own & (columns["part"] == 0))
        self.kept.add({name: columns[name][at] for name in ("rank", "thread", "name", "start_s", "end_s")})

    def mostly(self, main: Array, works: Sequence[Sequence[Intervals]]) -> list[str]:
        """Return for each activity the region that covers most of it, the innermost if several do; "": none does.

        `main`: the thread of each rank. `works`: by rank, the intervals of each activity. Forgets the rows.
        """
        rows = self.kept.give()
        seconds = np.array([[it.before_s[-1] for it in activities] for activities in works]).sum(axis=0)
        covered, lengths = dict[str, Array](), dict[str, float]()
        for rank, activities in enumerate(works):
            mine = (rows["rank"] == rank) & (rows["thread"] == main[rank])
            for name, region in self._of({key: column[mine] for key, column in rows.items()}):
                more = np.array([it.seconds_in(region) for it in activities])
                covered[name] = covered.get(name, 0.0) + more
                lengths[name] = max(lengths.get(name, 0.0), float(region.length_s.mean()))
        found = [""] * len(seconds)
        for name in sorted(covered, key=lambda name: -lengths[name]):  # inner regions are shorter, and come last
            found = [name if c > MOSTLY * s else f for f, c, s in zip(found, covered[name], seconds, strict=True)]
        return found

    def _of(self, rows: dict[str, Array]) -> Iterator[tuple[str, Intervals]]:
        """Yield the regions of a thread by name; of those within one of the same name only the outermost."""
        for number in np.unique(rows["name"]).tolist():
            at = np.flatnonzero(rows["name"] == number)
            at = at[np.lexsort((-rows["end_s"][at], rows["start_s"][at]))]
            reached_s = np.maximum.accumulate(rows["end_s"][at])
            at = at[rows["start_s"][at] >= np.concatenate([[-np.inf], reached_s[:-1]])]
            yield self.names[number], Intervals.of(rows["start_s"][at], rows["end_s"][at])
