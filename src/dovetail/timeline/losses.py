"""losses: attribute the time between the ideal and the makespan to named causes that add up exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import fsum, isclose
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dovetail.core import DovetailError
from dovetail.ir import RECVS, SENDS, Kind, Program, is_one_of
from dovetail.timeline.partners import Ints, message_of, ready_s
from dovetail.timeline.spans import Floats, covered, op_times
from dovetail.timeline.timeline import Timeline, union_s

Resource = Literal["compute", "comm"]
NAMES = ("dil", "cil", "head", "tail", "startup", "stall", "imbalance")
TALKS = SENDS | RECVS | {Kind.put, Kind.get, Kind.signal, Kind.wait, Kind.collective}


@dataclass(frozen=True, eq=False)
class Alone:
    """Times of ops and of the undivided operator in isolation, in seconds: the yardstick of `losses` and `overlaps`.

    Attributes
    ----------
    work_s, wire_s, latency_s : ndarray of float64, shape (num_ops,)
        Columns of Prices: local work (or the duration of a collective); wire and latency of ops that send, put, get or
        signal.
    rendezvous : ndarray of bool, shape (num_ops,)
        Whether a send waits for its receive.
    compute_s, comm_s : float or sequence of float
        All computation, and all communication, each in one piece: one number, or one per rank.
    """

    work_s: Floats
    wire_s: Floats
    latency_s: Floats
    rendezvous: NDArray[np.bool_]
    compute_s: float | Sequence[float]
    comm_s: float | Sequence[float]

    @property
    def ideal_s(self) -> float:
        """Seconds with perfect overlap: of the longer resource, in isolation and undivided, on its slowest rank."""
        return max(self.largest_s("compute"), self.largest_s("comm"))

    @property
    def bound(self) -> Resource:
        """The resource that an ideal schedule would keep busy throughout; compute where both are equal."""
        return "compute" if self.largest_s("compute") >= self.largest_s("comm") else "comm"

    def whole_s(self, resource: Resource, rank: int) -> float:
        """Seconds of the undivided `resource` on `rank`."""
        seconds = np.asarray(self.compute_s if resource == "compute" else self.comm_s, dtype=np.float64)
        return float(seconds if seconds.ndim == 0 else seconds[rank])

    def largest_s(self, resource: Resource) -> float:
        """Seconds of the undivided `resource` on its slowest rank."""
        return float(np.max(np.asarray(self.compute_s if resource == "compute" else self.comm_s), initial=0.0))

    def scaled(self, program: Program, compute: float, comm: float) -> Alone:
        """Return the times with those of ops that compute times `compute`, and of ops that communicate times `comm`.

        The undivided times do not change. Used where ops were priced by other measurements than the undivided times.
        """
        factors = np.where(_is_comm(program), comm, compute)
        columns = {name: getattr(self, name) * factors for name in ("work_s", "wire_s", "latency_s")}
        return replace(self, **columns)


@dataclass(frozen=True)
class Attribution:
    """The losses of a timeline, and the lane (-1: none) of the critical rank along which they were determined."""

    makespan_s: float
    ideal_s: float
    bound: Resource
    rank: int
    lane: int
    losses: dict[str, float]


def losses(timeline: Timeline, program: Program, alone: Alone) -> dict[str, float]:
    """Return the seconds lost, by cause. Their `math.fsum` is exactly makespan - ideal; negative ones are gains.

    The losses are determined along one lane: on the critical rank (whose last op ends last), the lane with most of the
    work of the resource that bounds the ideal. An op is active from its start, or from the time at which its partners
    on other ranks were ready (see `partners.ready_s`), to its end. At any time the lane is

    - active. This time is the undivided work (in the ideal), plus `dil` (the pieces in isolation take longer than the
      whole), plus `cil` (the pieces took longer than in isolation: contention, noise, shared links and FIFO places);
    - or inactive: `startup` before the rank's first op; `imbalance` while the rank can only wait for another rank; else
      `head` before the lane's first activity, `tail` after its last, `stall` in between.

    If the critical rank has less work than the busiest rank, `imbalance` is reduced by the difference. Valid for
    predicted and measured timelines. DIL and CIL are defined in seed 001.
    """
    return attribute(timeline, program, alone).losses


def attribute(timeline: Timeline, program: Program, alone: Alone) -> Attribution:
    """Return `losses` with the rank and lane along which they were determined."""
    _check(program, alone)
    start, end = op_times(timeline, program.num_ops)
    seen = ~np.isnan(start)
    message = message_of(program)
    ready = ready_s(program, message, start, end, alone.wire_s, alone.rendezvous)
    active = np.minimum(np.maximum(start, ready), end)
    alone_s = _alone_s(program, message, alone, active, end)
    serves = seen & (_is_comm(program) == (alone.bound == "comm"))
    makespan = float(np.max(end, where=seen, initial=0.0))
    rank = _critical_rank(program, end, np.where(serves, alone_s, 0.0), makespan)
    mine = seen & (program.columns["rank"] == rank)
    lane, on_lane = _bound_lane(program, mine & serves, alone_s)
    seconds = _sweep(start[mine], active[mine], end[mine], on_lane[mine], makespan)
    busy, pieces, whole = seconds.pop("active"), float(alone_s[on_lane].sum()), alone.whole_s(alone.bound, rank)
    pieces = whole if isclose(pieces, whole) else pieces  # a single piece is the whole, whatever was rounded
    seconds |= {"dil": pieces - whole, "cil": busy - pieces}
    seconds["imbalance"] -= alone.ideal_s - whole
    exact = _exact({name: seconds[name] for name in NAMES}, makespan - alone.ideal_s)
    return Attribution(makespan, alone.ideal_s, alone.bound, rank, lane, exact)


def overlaps(timeline: Timeline, program: Program, alone: Alone) -> dict[str, float]:
    """Return the share of time that was hidden, by the four definitions in use. They differ: quote the name.

    c and w: seconds of the undivided communication and computation in isolation; t: makespan.

    - `imb` = (c + w - t) / max(c, w), clipped to 0..1 as in IMB-NBC;
    - `osu` = 1 - (t - w) / c, clipped to 0..1 as in the OSU benchmarks;
    - `min` = (c + w - t) / min(c, w), as elsewhere in IMB, not clipped: below 0 the schedule is slower than no overlap;
    - `hta` (Holistic Trace Analysis) = time in which a rank both computed and communicated / time in which it
      communicated, waits included, summed over ranks.

    All are 0 if there is nothing to hide.

    >>> alone = Alone(*[np.zeros(0)] * 3, np.zeros(0, bool), compute_s=4.0, comm_s=2.0)
    >>> from dovetail.ir import Builder
    >>> from dovetail.timeline.spans import Span, from_spans
    >>> overlaps(from_spans("measured", 1, [Span(0, "compute", "all", 0.0, 5.0)]), Builder("p", 1).build(), alone)
    {'imb': 0.25, 'osu': 0.5, 'hta': 0.0, 'min': 0.5}
    """
    work, comm, both = alone.largest_s("compute"), alone.largest_s("comm"), timeline.makespan_s
    hidden = work + comm - both
    imb, osu = (min(max(_share(hidden, base), 0.0), 1.0) for base in (max(work, comm), comm))
    return {"imb": imb, "osu": osu, "hta": _hta(timeline, program), "min": _share(hidden, min(work, comm))}


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def _hta(timeline: Timeline, program: Program) -> float:
    start, end = op_times(timeline, program.num_ops)
    comm, hidden, all_comm = _is_comm(program), 0.0, 0.0
    for rank in range(program.num_ranks):
        mine = ~np.isnan(start) & (program.columns["rank"] == rank)
        parts = [union_s(start[rows], end[rows]) for rows in (mine & comm, mine & ~comm, mine)]
        hidden += parts[0] + parts[1] - parts[2]
        all_comm += parts[0]
    return _share(hidden, all_comm)


def _check(program: Program, alone: Alone) -> None:
    for name in ("work_s", "wire_s", "latency_s", "rendezvous"):
        if len(getattr(alone, name)) != program.num_ops:
            found = f"{len(getattr(alone, name))} rows of {name}, {program.num_ops} ops"
            raise DovetailError(f"`alone` is not for program '{program.name}'", found=found)


def _is_comm(program: Program) -> NDArray[np.bool_]:
    """Return which ops communicate: those that involve other ranks, and all on copy and net lanes."""
    computes = np.array([lane.engine == "compute" for lane in program.lanes], dtype=np.bool_)
    col = program.columns
    on_compute = computes[col["lane"]] if program.num_ops else np.zeros(0, np.bool_)
    return ~on_compute | is_one_of(col["kind"], TALKS)


def _alone_s(program: Program, message: Ints, alone: Alone, active: Floats, end: Floats) -> Floats:
    """Return the seconds that each op would have been active without disturbance, given when it became active.

    A receive that was posted after its message was sent takes only the rest of the message's travel time.
    """
    kind = program.columns["kind"]
    seconds = alone.work_s + np.where(is_one_of(kind, [*SENDS, Kind.put, Kind.get]), alone.wire_s, 0.0)
    seconds = seconds + np.where(is_one_of(kind, [Kind.put, Kind.get]), alone.latency_s, 0.0)
    got = np.flatnonzero(message >= 0)
    sent = message[got]
    signal, fused = kind[sent] == Kind.signal, is_one_of(kind[sent], SENDS & RECVS)
    way = alone.latency_s[sent] + np.where(signal, 0.0, alone.wire_s[sent])
    left = np.where(fused, np.maximum(active[sent], end[sent] - alone.wire_s[sent]), active[sent])
    seconds[got] += np.clip(np.nan_to_num(left + way - active[got]), 0.0, way)
    return seconds


def _critical_rank(program: Program, end: Floats, work_s: Floats, makespan: float) -> int:
    """Return the rank that ends last; of several, the one with most of the bound work; then the lowest."""
    rank = program.columns["rank"]
    last = {int(r) for r in rank[np.nan_to_num(end) >= makespan * (1 - 1e-9)]} or {0}
    return max(sorted(last), key=lambda r: float(work_s[rank == r].sum()))


def _bound_lane(program: Program, rows: NDArray[np.bool_], alone_s: Floats) -> tuple[int, NDArray[np.bool_]]:
    """Return the lane that does most of `rows`, and those of `rows` on it; -1 and none if there are no rows."""
    lane = program.columns["lane"]
    lanes = sorted({int(row) for row in lane[rows]})
    if not lanes:
        return -1, rows
    best = max(lanes, key=lambda row: float(alone_s[rows & (lane == row)].sum()))
    return best, rows & (lane == best)


def _sweep(start: Floats, active: Floats, end: Floats, on_lane: NDArray[np.bool_], makespan: float) -> dict[str, float]:
    """Return how the time 0..makespan of one rank divides into states of its bound lane, in seconds; see `losses`."""
    points = np.unique(np.concatenate([[0.0, makespan], start, active, end]))
    points = points[(points >= 0) & (points <= makespan)]
    clip = [np.clip(column, 0.0, makespan) for column in (start, active, end)]
    start, active, end = clip
    seconds, at = np.diff(points), points[:-1]
    busy = covered(points, active[on_lane], end[on_lane])
    only_waits = covered(points, start, active) & ~covered(points, active, end)
    kinds = {
        "active": busy,
        "startup": at < start.min(initial=makespan),
        "imbalance": only_waits,
        "head": at < active[on_lane].min(initial=makespan),
        "tail": at >= end[on_lane].max(initial=0.0),
        "stall": np.ones(len(at), np.bool_),
    }
    left, result = np.ones(len(at), np.bool_), {}
    for name, here in kinds.items():
        result[name] = fsum(seconds[here & left])
        left &= ~here
    return result


def _exact(parts: dict[str, float], total: float) -> dict[str, float]:
    """Return the parts so that they sum to `total`: the least possible rounding error is corrected in one of them."""
    left = float(Fraction(total) - sum(map(Fraction, parts.values())))
    for name in sorted(parts, key=lambda name: (parts[name] == 0, abs(parts[name]))):
        corrected = parts | {name: parts[name] + left}
        if fsum(corrected.values()) == total:
            return corrected
    return parts
