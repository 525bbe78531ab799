"""Times of a trace's collectives: when each rank could continue, by rules written call by call."""

from types import SimpleNamespace

import numpy as np
import pytest

from dovetail.trace.analysis.collective_calls import CollectiveCalls
from dovetail.trace.analysis.collective_times import CollectiveTimes

NAMES = ("MPI_Bcast", "MPI_Reduce", "MPI_Allreduce", "MPI_Scatterv_c")
RANKS, ROOT = 3, 1


def calls_of(rng, count: int, knows_root: bool) -> CollectiveCalls:
    """`count` blocking collectives of all ranks, by names in turn, each rank's call at a time of its own."""
    start_s = np.arange(count)[:, None] + rng.uniform(0, 0.4, (count, RANKS))
    end_s = start_s + rng.uniform(0.01, 0.5, (count, RANKS))
    each = np.repeat(np.arange(count), RANKS)
    root_s = np.repeat(start_s[:, ROOT], RANKS) if knows_root else np.full(count * RANKS, np.nan)
    about = {
        "collective": each, "name": each % len(NAMES), "rank": np.tile(np.arange(RANKS), count),
        "root": np.full(len(each), ROOT), "start_s": start_s.ravel(), "end_s": end_s.ravel(),
        "last_start_s": np.repeat(start_s.max(axis=1), RANKS), "root_start_s": root_s,
        "last_rank": np.repeat(start_s.argmax(axis=1), RANKS), "row": np.arange(len(each)),
        "request": np.full(len(each), -1),
    }  # fmt: skip
    return CollectiveCalls(**{name: about.get(name, np.zeros(len(each), "i8")) for name in CollectiveCalls._fields})


@pytest.mark.parametrize("knows_root", [True, False])
def test_when_a_rank_may_continue(knows_root):
    joins = calls_of(np.random.default_rng(), 40, knows_root)
    times = CollectiveTimes(SimpleNamespace(names=NAMES, columns={}), joins, {})
    for i, over_s in enumerate(times.over_s):
        took_s, is_root = times._seconds[joins.collective[i]], joins.rank[i] == ROOT
        begun_s, last_s = joins.start_s[i], joins.last_start_s[i] + took_s
        name = NAMES[joins.name[i]] if knows_root else ""
        if name in ("MPI_Bcast", "MPI_Scatterv_c"):  # the others wait for the root, and for nobody else
            wanted_s = begun_s if is_root else max(joins.root_start_s[i] + took_s, begun_s)
        elif name == "MPI_Reduce":
            wanted_s = last_s if is_root else begun_s
        else:
            wanted_s = last_s
        assert over_s == wanted_s, (i, name)
