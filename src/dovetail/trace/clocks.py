"""clocks: map each rank's clock to rank 0's by a straight line, for traces and for jobs that executors run.

At the start and at the end, each rank compares its clock with its parent's in a binomial tree: the parent of rank r is
r with its lowest set bit cleared. The two exchange messages; the shortest round trip gives the offset between the
clocks, and half of that round trip bounds the error. Between two comparisons (`Meeting`) the offset is interpolated
linearly, which corrects drift. Processes of one kernel read the same clock and compare nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from dovetail.trace.process_file import ProcessFile


class Meeting(NamedTuple):
    """One comparison: a moment on this rank's clock and on its parent's; the error is at most half the round trip."""

    mine_ns: int
    peer_ns: int
    half_trip_ns: int


@dataclass(frozen=True)
class Line:
    """A linear clock: time on the other clock = `(time_ns - origin_ns) * rate + offset_ns`."""

    origin_ns: int = 0
    offset_ns: float = 0.0
    rate: float = 1.0

    @overload
    def __call__(self, time_ns: float) -> float: ...

    @overload
    def __call__(self, time_ns: NDArray[np.float64]) -> NDArray[np.float64]: ...

    def __call__(self, time_ns: Any) -> Any:
        return (time_ns - self.origin_ns) * self.rate + self.offset_ns

    def then(self, after: Line) -> Line:
        """Compose two lines: this one first, then the other."""
        return Line(self.origin_ns, after(self.offset_ns), self.rate * after.rate)


class Reader(NamedTuple):
    """A rank's clock and its comparisons with the parent's clock.

    `line`: from the rank's event clock to CLOCK_MONOTONIC_RAW. `clock_of`: identity of the clock, equal for all ranks
    that read the same clock. `base`: first rank of the job, if a trace has several jobs.
    """

    line: Line
    clock_of: object
    meetings: Sequence[Meeting]
    base: int = 0


@dataclass(frozen=True)
class RankClock:
    """A rank's clock in nanoseconds of the common clock.

    `error_ns`: bound of the error, from the round trips on the path to rank 0; None: clocks were never compared, and
    the hosts' dates were used. `has_drift`: whether clocks were compared at least twice, so that drift is corrected.
    """

    line: Line
    error_ns: float | None
    has_drift: bool


def surest(meetings: Sequence[Meeting]) -> tuple[Meeting, Meeting]:
    """Return the two comparisons whose line has the smallest error bound over all of them; a single one is repeated.

    >>> held_up, tight, late = Meeting(0, 0, 5000), Meeting(10, 0, 4), Meeting(100, 0, 4)
    >>> surest([held_up, tight, late]) == (tight, late)
    True
    """
    ends = meetings[0].mine_ns, meetings[-1].mine_ns

    def bound(two: tuple[Meeting, Meeting]) -> float:
        return max(_between(two, (two[0].half_trip_ns, two[1].half_trip_ns), at) for at in ends)

    return min(combinations(meetings, 2), key=bound, default=(meetings[0], meetings[0]))


def _between(two: tuple[Meeting, Meeting], errors: Sequence[float], at_ns: float) -> float:
    """Return an upper bound of a line's error at a moment, from its largest errors at two comparisons."""
    span = two[1].mine_ns - two[0].mine_ns
    if span <= 0:
        return max(errors)
    return (errors[0] * abs(two[1].mine_ns - at_ns) + errors[1] * abs(at_ns - two[0].mine_ns)) / span


def line_through(meetings: Sequence[Meeting]) -> Line:
    """Return the line through the two surest comparisons.

    If there is only one, or if the drift is within the errors, the line is a constant shift.

    >>> line_through([Meeting(100, 1100, 4), Meeting(200, 1210, 4)])(300)
    1320.0
    >>> line_through([Meeting(100, 1100, 4), Meeting(200, 1202, 4)])(300)
    1301.0
    """
    first, last = surest(meetings)
    shifts = [meeting.peer_ns - meeting.mine_ns for meeting in (first, last)]
    errors = [max(meeting.half_trip_ns, 1) for meeting in (first, last)]
    if abs(shifts[1] - shifts[0]) > sum(errors) and last.mine_ns > first.mine_ns:
        return Line(first.mine_ns, float(first.peer_ns), 1 + (shifts[1] - shifts[0]) / (last.mine_ns - first.mine_ns))
    weights = [error**-2 for error in errors]  # both agree with one shift: the weighted mean
    shift = (shifts[0] * weights[0] + shifts[1] * weights[1]) / sum(weights)
    return Line(first.mine_ns, first.mine_ns + shift)


def parent(rank: int) -> int:
    """Return the rank that a rank compares clocks with: itself with the lowest set bit cleared.

    >>> [parent(rank) for rank in range(1, 8)]
    [0, 0, 2, 0, 4, 4, 6]
    """
    return rank & (rank - 1)


def meetings_of(notes: Sequence[Mapping[str, Any]]) -> list[Meeting]:
    """Return the clock comparisons among a process's notes."""
    found = (note["clock"] for note in notes if isinstance(note.get("clock"), dict))
    return [Meeting(int(c["mine_ns"]), int(c["peer_ns"]), int(c["half_trip_ns"])) for c in found]


def clocks_to_first(readers: Mapping[int, Reader]) -> dict[int, RankClock]:
    """Return the clocks in nanoseconds of rank 0's clock, of all ranks whose comparisons lead to rank 0.

    >>> met = [Meeting(100, 1100, 4)]
    >>> found = clocks_to_first({0: Reader(Line(), "a", []), 1: Reader(Line(), "b", met), 2: Reader(Line(), "a", [])})
    >>> [(found[rank].line(300), found[rank].error_ns) for rank in range(3)]
    [(300.0, 0.0), (1300.0, 4.0), (300.0, 0.0)]
    """
    ways = {rank: _way(readers, rank) for rank in readers if 0 in readers}
    return {rank: _met(readers[rank].line, way) for rank, way in ways.items() if way is not None}


def rank_clocks(processes: Sequence[ProcessFile]) -> list[RankClock]:
    """Return the clock of each process. The common clock is rank 0's; without comparisons, the hosts' dates."""
    readers = {p.rank: Reader(_event_line(p), _clock_of(p), meetings_of(p.notes), p.base) for p in processes}
    found = clocks_to_first(readers)
    if len(found) == len(processes):
        return [found[process.rank] for process in processes]
    day = min((process.first.real_ns for process in processes), default=0)
    return [_by_date(process, day) for process in processes]


def _way(readers: Mapping[int, Reader], rank: int) -> list[Sequence[Meeting]] | None:
    """Return the comparisons on the path to rank 0's clock; None if a rank on the path has none."""
    way = []
    while rank > 0 and (rank not in readers or readers[rank].clock_of != readers[0].clock_of):
        if rank not in readers or rank == readers[rank].base or not readers[rank].meetings:
            return None
        way.append(readers[rank].meetings)
        rank = readers[rank].base + parent(rank - readers[rank].base)
    return way


def _clock_of(process: ProcessFile) -> object:
    """Return the identity of the clock that a process reads; if unknown, a value unique to the process."""
    return next((note["clock_of"] for note in process.notes if "clock_of" in note), process.path)


def _event_line(process: ProcessFile) -> Line:
    """Return the line from a process's event clock to nanoseconds of CLOCK_MONOTONIC_RAW."""
    first, last = process.first, process.last
    ticks = last.clock - first.clock
    rate = (last.raw_ns - first.raw_ns) / ticks if ticks > 0 else 1.0
    return Line(first.clock, float(first.raw_ns), rate)


def _by_date(process: ProcessFile, day_ns: int) -> RankClock:
    line = _event_line(process).then(Line(process.first.raw_ns, float(process.first.real_ns - day_ns)))
    return RankClock(line, None, False)


def _error_bound(line: Line, meetings: Sequence[Meeting]) -> float:
    """Return a bound of a line's error between the first and the last comparison.

    The error at a comparison is at most half its round trip plus its distance from the line. Uses the two surest
    comparisons, or the first and last, whichever gives the smaller bound.
    """

    def bound(two: tuple[Meeting, Meeting]) -> float:
        errors = [one.half_trip_ns + abs(line(one.mine_ns) - one.peer_ns) for one in two]
        return max(_between(two, errors, meetings[i].mine_ns) for i in (0, -1))

    return min(bound(surest(meetings)), bound((meetings[0], meetings[-1])))


def _met(line: Line, way: Sequence[Sequence[Meeting]]) -> RankClock:
    """Return the clock along the path up the tree to rank 0's clock."""
    error, has_drift = 0.0, True
    for meetings in way:
        step = line_through(meetings)
        line = line.then(step)
        error += _error_bound(step, meetings)
        has_drift = has_drift and len(meetings) > 1
    return RankClock(line, error, has_drift)
