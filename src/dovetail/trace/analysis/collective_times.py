"""collective_times: how long each collective of a trace takes after the last call that a rank waits for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.ir.collectives import kind_of_mpi, traits_of
from dovetail.trace.analysis.collective_calls import CollectiveCalls
from dovetail.trace.analysis.delays import LEAST_HELD_S
from dovetail.trace.analysis.replay_model import FROM_ROOT, SYNCHRONOUS, TO_ROOT, CollectiveCall
from dovetail.trace.trace import Trace


class CollectiveTimes:
    """Times of a trace's collectives. `joined`: by row of a call, the rows of `joins` that it completes."""

    def __init__(self, trace: Trace, joins: CollectiveCalls, joined: Mapping[int, Sequence[int]]) -> None:
        self.trace, self.joins, self.joined = trace, joins, joined

    @cached_property
    def over_s(self) -> list[float]:
        """Return for each collective call when its rank could continue after it, by the collective's `way`."""
        joins, ways = self.joins, np.array(self._ways, "U9")
        seconds, is_root = self._seconds[joins.collective], joins.root == joins.rank
        after_root_s = np.where(is_root, joins.start_s, np.fmax(joins.root_start_s + seconds, joins.start_s))
        at_root_s = np.where(is_root, joins.last_start_s + seconds, joins.start_s)
        cases = [after_root_s, at_root_s]
        found = np.select([ways == FROM_ROOT, ways == TO_ROOT], cases, joins.last_start_s + seconds)
        quiet_s = np.full(len(self._seconds), np.nan)
        for number, times in self.quiet.items():
            quiet_s[number] = sum(times)
        of_quiet = quiet_s[joins.collective]
        over: list[float] = np.where(np.isnan(of_quiet), found, of_quiet).tolist()
        return over

    @cached_property
    def quiet(self) -> dict[int, tuple[float, float]]:
        """Return the collectives that progressed only when all ranks waited, although begun long before.

        For each: when the last rank began to wait, and the seconds that the collective then took.
        """
        joins, col = self.joins, self.trace.columns
        looked: dict[int, list[float]] = defaultdict(list)
        ends: dict[int, list[float]] = defaultdict(list)
        for row, waited in self.joined.items():
            for number in joins.collective[waited].tolist():
                looked[number].append(float(col["start_s"][row]))
                ends[number].append(float(col["end_s"][row]))
        sizes, begun_s = np.bincount(joins.collective), np.zeros(int(joins.collective.max(initial=-1)) + 1)
        begun_s[joins.collective] = joins.last_start_s
        found = {}
        for number, those in looked.items():
            last_s, spent_s = max(those), min(ends[number]) - max(those)
            if len(those) == sizes[number] > 1 and LEAST_HELD_S < spent_s < last_s - begun_s[number]:
                found[number] = last_s, spent_s
        return found

    @cached_property
    def _ways(self) -> list[str]:
        """Return the `way` of each collective call: SYNCHRONOUS if its root's call is unknown."""
        of_name = {int(name): _way(self.trace.names[name]) for name in np.unique(self.joins.name)}
        has_root = (~np.isnan(self.joins.root_start_s)).tolist()
        named = zip(self.joins.name.tolist(), has_root, strict=True)
        return [of_name[name] if known else SYNCHRONOUS for name, known in named]

    @cached_property
    def _seconds(self) -> NDArray[Any]:
        """Return for each collective its seconds: the shortest wait of any rank after the last call it depends on."""
        count, joins = int(self.joins.collective.max(initial=-1)) + 1, self.joins
        ways = np.array(self._ways, "U9")
        is_root, looked, ends = joins.root == joins.rank, np.array(joins.start_s, "f8"), np.array(joins.end_s, "f8")
        for row, waited in self.joined.items():
            looked[waited], ends[waited] = self.trace.columns["start_s"][row], self.trace.columns["end_s"][row]
        since = np.where(ways == FROM_ROOT, np.fmax(joins.root_start_s, joins.start_s), joins.last_start_s)
        waits = np.select([ways == FROM_ROOT, ways == TO_ROOT], [~is_root, is_root], True)
        waits &= (joins.request < 0) | (ends - looked > LEAST_HELD_S)
        least, most = np.full(count, np.inf), np.full(count, np.inf)
        np.minimum.at(least, joins.collective[waits], np.maximum(ends - np.fmax(since, looked), 0.0)[waits])
        np.minimum.at(most, joins.collective, np.maximum(looked - since, 0.0))
        seen = np.isfinite(least)
        least[~seen] = np.minimum(np.median(least[seen]) if seen.any() else 0.0, most[~seen])
        for number, (_, spent_s) in self.quiet.items():
            least[number] = spent_s
        return least

    def collectives(self) -> tuple[CollectiveCall, ...]:
        """Return one entry per call in `joins`; the entries of one collective are equal but for `blocking`."""
        comms, seconds = self.trace.comms, self._seconds
        hosts = {about["rank"]: about.get("host") for about in self.trace.meta.get("ranks", ())}
        most = np.zeros(len(seconds), "i8")
        np.maximum.at(most, self.joins.collective, np.maximum(self.joins.num_bytes, self.joins.received_bytes))
        groups = [*((comm.ranks, len({hosts.get(rank) for rank in comm.ranks}) == 1) for comm in comms), ((), False)]
        names, took_s, most_bytes, found = self.trace.names, seconds.tolist(), most.tolist(), []
        columns = (getattr(self.joins, name).tolist() for name in ("collective", "name", "comm", "root", "request"))
        for number, name, comm, root, request, way in zip(*columns, self._ways, strict=True):
            group, is_one_host = groups[comm if comm >= 0 else -1]
            head = number, names[name], group, way, root, most_bytes[number], took_s[number]
            own_s = took_s[number] if is_one_host else 0.0
            found.append(CollectiveCall(*head, request < 0, number in self.quiet, own_s))
        return tuple(found)


def _way(name: str) -> str:
    """Return the `way` of a call of MPI whose root's call is known."""
    traits = traits_of(kind_of_mpi(name.removeprefix("MPI_").removesuffix("_c")))
    return FROM_ROOT if traits.from_root else TO_ROOT if traits.to_root else SYNCHRONOUS
