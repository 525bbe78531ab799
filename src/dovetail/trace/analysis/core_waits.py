"""core_waits: for how long each rank waited for a core during its work between two calls, by the kernel's counters."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

_CLOCK_S = 1e-9  # times of a wait and of the call at which it was read are the same reading of the clock


def core_waits(
    meta: Mapping[str, Any], main: Sequence[int], begins: Sequence[tuple[Sequence[float], Sequence[int]]]
) -> dict[int, float] | None:
    """Return by row of a call the seconds that its rank waited before it; None if some rank's waits are unknown.

    `main`: each rank's thread. `begins`: for each rank when its calls begin, in order, and their rows.
    """
    noted = {int(a["rank"]): a["core_waits"] for a in meta.get("ranks", ()) if a.get("core_waits", {}).get("thread")}
    if {*range(len(main))} - noted.keys():
        return None
    found: dict[int, float] = defaultdict(float)
    for rank, (starts_s, rows) in enumerate(begins):
        columns = (noted[rank][name] for name in ("thread", "time_s", "seconds"))
        for thread, time_s, seconds in zip(*columns, strict=True):
            at = bisect_left(starts_s, time_s - _CLOCK_S)
            if thread == main[rank] and 0 < at < len(rows) and seconds > 0:
                found[rows[at]] += seconds
    return dict(found)
