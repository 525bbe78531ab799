"""flood_remedies: a finding on many small messages in a row, summed over a trace that is too long to replay."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dovetail.trace import TraceFile
from dovetail.trace.analysis.floods import Flood
from dovetail.trace.analysis.sites import call_sites


class FloodCost(NamedTuple):
    """What the messages of floods take, and from where most of them are sent.

    `saves_s`: seconds of the rank that spends most on them, without those that tracing takes. `rank`: that rank.
    """

    saves_s: float
    rank: int
    place: str
    evidence: str


def flood_cost(file: TraceFile, floods: Sequence[Flood]) -> FloodCost | None:
    """Return what one message instead of each run of messages would save; None without floods."""
    if not floods:
        return None
    cost_s = {int(a["rank"]): 2 * float(sum(a.get("event_s", (0.0, 0.0)))) for a in file.meta.get("ranks", ())}
    spent_s: dict[int, float] = defaultdict(float)
    for it in floods:
        later = it.messages - it.runs
        spent_s[it.src] += it.sending_s - later * cost_s.get(it.src, 0.0)
        spent_s[it.dst] += it.taking_s - later * cost_s.get(it.dst, 0.0)
    rank = max(spent_s, key=spent_s.__getitem__)
    most = max(floods, key=lambda it: it.sending_s + it.taking_s)
    count, runs = sum(it.messages for it in floods), sum(it.runs for it in floods)
    evidence = f"{count} messages of up to {max(it.num_bytes for it in floods)} bytes are sent in a row, "
    evidence += f"{count / runs:.3g} at a time on average, with no work between them"
    return FloodCost(spent_s[rank], rank, _place(file, most.row), evidence)


def _place(file: TraceFile, row: int) -> str:
    starts = np.cumsum([0, *(chunk.num_rows for chunk in file.chunks)])
    chunk = int(np.searchsorted(starts, row, side="right")) - 1
    part, at = file.chunk_rows(chunk, chunk + 1), row - int(starts[chunk])
    (site,) = call_sites(part, np.array([at]))
    return ", ".join(filter(None, [site, part.names[int(part.columns["name"][at])]]))
