"""roots: the root cause of the waits in some calls of a trace: which rank was late, where, and doing what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from dovetail.advise.causes import Cause, Shares, causes_of, excesses, passed_on
from dovetail.advise.disturbance import Disturbance
from dovetail.advise.rank_activity import RankActivity, rank_activity
from dovetail.trace import Trace
from dovetail.trace.analysis.call_classes import IO, PICKLE, PICKLING, SYSTEM_IO, class_of
from dovetail.trace.analysis.matching import of_name
from dovetail.trace.analysis.replay_model import Step

MOST_CALLS = 100  # calls that a finding shows


@dataclass(frozen=True)
class Root:
    """What made ranks wait: `kind` as in `Activity`, or "calls" if nothing waited; the late rank; where it was."""

    kind: str
    rank: int
    place: str


class Calls(NamedTuple):
    """Some calls of a trace: arrays of equal length, in order of time."""

    rank: Any
    start_s: Any
    end_s: Any

    def longest(self) -> tuple[tuple[int, float, float], ...]:
        """Return rank, start and end of the longest calls, in order of time."""
        chosen = np.sort(np.argsort(self.start_s - self.end_s, kind="stable")[:MOST_CALLS])
        return tuple(zip(*(column[chosen].tolist() for column in self), strict=True))


class Roots:
    """Finds roots of the waits of one trace.

    `site`: names the call site of a row. `left`: share of the ranks' waits for cores that savings may include.
    `core_waits`: by row of a call, the seconds of work before it in which its rank waited for a core, if savings do not
    include them.
    """

    def __init__(
        self,
        trace: Trace,
        site: Callable[[int], str] | None = None,
        left: float = 1.0,
        core_waits: Mapping[int, float] | None = None,
    ) -> None:
        self.trace, self._site, self._left, self._core_waits = trace, site, left, core_waits

    @cached_property
    def _numbers(self) -> Any:
        """By row, the number of its place (call and site), equal on all ranks; -1: neither a call of MPI nor I/O."""
        col, numbers = self.trace.columns, dict[tuple[int, str], int]()
        is_call = of_name(self.trace.names, lambda name: name.startswith(("MPI_", SYSTEM_IO, PICKLE)))[col["name"]]
        found = np.full(self.trace.num_rows, -1)
        for row in np.flatnonzero(is_call & (col["part"] == 0)).tolist():
            key = int(col["name"][row]), self._site(row) if self._site else ""
            found[row] = numbers.setdefault(key, len(numbers))
        return found

    def calls(self, rows: Sequence[int]) -> Calls:
        """Return all calls, on every rank, at the places of these rows of the trace."""
        col, at = self.trace.columns, np.array([row for row in rows if row >= 0], "i8")
        places = self._numbers[at - col["part"][at]]
        chosen = np.flatnonzero(np.isin(self._numbers, places[places >= 0]))
        chosen = chosen[np.argsort(col["start_s"][chosen], kind="stable")]
        return Calls(*(col[name][chosen] for name in Calls._fields))

    def disturbed_s(self, calls: Calls, saves_s: float) -> float:
        """Return how much of a saving in these calls others may have caused; 0 if the trace does not show it."""
        lost = self._ranks.lost
        return 0.0 if lost is None else self._left_of(lost) * lost.caused_s(calls.start_s, calls.end_s, saves_s)

    def _left_of(self, lost: Disturbance) -> float:
        """Return the share of what others took that savings may include: all that the hypervisor took."""
        foreign, steal = lost.load.foreign or 0.0, lost.load.steal or 0.0
        return (self._left * foreign + steal) / max(foreign + steal, 1e-9)

    @cached_property
    def _ranks(self) -> RankActivity:
        return rank_activity(self.trace)

    @cached_property
    def _shares(self) -> Shares:
        return excesses(self._ranks)

    @cached_property
    def _settled_shares(self) -> Shares:
        """Return how waits divide among causes, without the core waits that savings do not include."""
        ranks, lost = self._ranks, self._ranks.lost
        if lost is None or self._core_waits is None:
            return self._shares
        at, seconds = np.array([*self._core_waits], "i8"), np.array([*self._core_waits.values()], "f8")
        rank, start_s = self.trace.columns["rank"][at], self.trace.columns["start_s"][at]
        return excesses(ranks.without(rank, start_s, seconds), (self._left_of(lost), self._left))

    def of(self, rows: Sequence[int], place: str) -> Root:
        """Return the root of most of the waits in the calls at these rows of the trace.

        Without waits, the calls themselves cost the time: then the rank is that of the first, and the place `place`.
        """
        at, col = np.array([row for row in rows if row >= 0], "i8"), self.trace.columns
        calls = Calls(*(col[name][at] for name in Calls._fields))
        kind = {IO: "io", PICKLING: "pickle"}.get(
            class_of(self.trace.names[int(col["name"][at[0]])]) if len(at) else -1
        )
        if kind is not None:
            return Root(kind, int(np.argmax(np.bincount(calls.rank, calls.end_s - calls.start_s))), place)
        weight = self._waited_s(calls)
        if not weight.any():  # these are calls of the late rank: others wait for it in theirs
            weight = self._waited_s(self.calls(rows))
        if weight.sum() <= 0.1 * float((calls.end_s - calls.start_s).sum()):
            return Root("calls", int(col["rank"][at[0]]) if len(at) else -1, place)
        return self._largest(weight)

    def polling(self, rows: Sequence[int], place: str) -> Root:
        """Return the rank that polls most before these rows."""
        return Root(
            "poll", int(np.argmax(np.bincount(self.trace.columns["rank"][[row for row in rows if row >= 0]]))), place
        )

    def _waited_s(self, calls: Calls) -> Any:
        """Return for each wait its seconds if it is in one of these calls, else 0."""
        waits = self._ranks.waits
        known = set(zip(calls.rank.tolist(), calls.start_s.tolist(), strict=True))
        pairs = zip(waits.rank.tolist(), waits.start_s.tolist(), strict=True)
        return np.where([pair in known for pair in pairs], waits.until_s - waits.start_s, 0.0)

    def _largest(self, weight: Any) -> Root:
        """Return the rank and activity with most of the weight, once each wait's share of waits is passed on."""
        ranks, shares = self._ranks, self._settled_shares
        found = np.zeros((len(ranks.activities), ranks.num_ranks))
        passed = passed_on(ranks, shares, weight)
        for which, row in enumerate(shares.of_activities):
            found[which] = np.bincount(ranks.waits.cause, row * passed, ranks.num_ranks)
        at, rank = divmod(int(np.argmax(found)), ranks.num_ranks)
        activity = ranks.activities[at]
        return Root(activity.kind, rank, activity.place)

    def worst(self) -> Cause | None:
        """Return the largest root cause of all waits, if it is work of the program; None: there is none."""
        found = causes_of(self._ranks, self._shares).causes
        return found[0] if found and found[0].activity.kind == "work" and " to " in found[0].activity.place else None

    def work_of(self, cause: Cause, rank: int, steps: Sequence[Step]) -> tuple[Any, Any]:
        """Return, by step, the seconds of a cause's work on a rank up to the begin, and up to the end, of its call.

        Steps without a call are at the call before them.
        """
        work = self._ranks.of_rank(rank)[0][self._ranks.activities.index(cause.activity)]
        rows = np.maximum.accumulate(np.array([step.row for step in steps], "i8")) if steps else np.zeros(0, "i8")
        known = np.maximum(rows, 0)
        at = [work.seconds_until(self.trace.columns[name][known]) for name in ("start_s", "end_s")]
        return np.where(rows >= 0, at[0], 0.0), np.where(rows >= 0, at[1], 0.0)
