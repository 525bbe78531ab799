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

    def over_s(self, i: int) -> float:
        """Return when a rank could continue after its collective call `i`, by the collective's `way`."""
        number, way = int(self.joins.collective[i]), self._way(i)
        is_root = self.joins.root[i] == self.joins.rank[i]
        seconds = self._seconds[number]
        if number in self.quiet:
            return sum(self.quiet[number])
        if way == FROM_ROOT:
            begun = float(self.joins.start_s[i])
            return begun if is_root else max(float(self.joins.root_start_s[i]) + seconds, begun)
        if way == TO_ROOT:
            return float(self.joins.last_start_s[i] + seconds if is_root else self.joins.start_s[i])
        return float(self.joins.last_start_s[i] + seconds)

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

    def _way(self, i: int) -> str:
        name = self.trace.names[self.joins.name[i]].removeprefix("MPI_").removesuffix("_c")
        if np.isnan(self.joins.root_start_s[i]):
            return SYNCHRONOUS
        traits = traits_of(kind_of_mpi(name))
        return FROM_ROOT if traits.from_root else TO_ROOT if traits.to_root else SYNCHRONOUS

    @cached_property
    def _seconds(self) -> NDArray[Any]:
        """Return for each collective its seconds: the shortest wait of any rank after the last call it depends on."""
        count, joins = int(self.joins.collective.max(initial=-1)) + 1, self.joins
        ways = np.array([self._way(i) for i in range(len(joins.collective))], "U9")
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
        found = []
        for i, number in enumerate(self.joins.collective.tolist()):
            group = comms[int(self.joins.comm[i])].ranks if self.joins.comm[i] >= 0 else ()
            name = self.trace.names[self.joins.name[i]]
            took_s = float(seconds[number])
            head = number, name, group, self._way(i), int(self.joins.root[i]), int(most[number]), took_s
            own_s = took_s if len({hosts.get(rank) for rank in group}) == 1 else 0.0
            found.append(CollectiveCall(*head, bool(self.joins.request[i] < 0), number in self.quiet, own_s))
        return tuple(found)
