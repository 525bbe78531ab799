"""recurrence: predict when a pipeline of ranks ends, by the max-plus recurrence of receives, computations and sends.

Source: seed 003, "Blocking primitives" and "Non-blocking primitives", with the protocol of the messages, which decides
whether blocking sends already overlap. The same recurrence is in `native/call/pipeline/pipeline_recurrence.c`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

Times = list[list[float | None]]
MODELLED = 96  # steps that are computed, and 4 for each link of the longest chain; further steps are extrapolated
PERIOD = 32  # steps over which the rate of the extrapolation is averaged

PERIOD = 32


class Link(NamedTuple):
    """Messages of one rank to another, one each step, all of one size.

    `half_s`: half a round trip; `gap_s`: the least time from one arrival to the next; `send_s`, `recv_s`: time of the
    calls if nothing has to be waited for. `waits`: a send waits until the receiver has posted its receive (rendezvous);
    `progresses`: such a message travels while both ranks compute. `leaves`: one wire carries all messages of the
    source; `enters`: one wire carries all messages to the target. A wire carries one message at a time, in the order in
    which they start.
    """

    source: int
    target: int
    half_s: float
    gap_s: float
    send_s: float
    recv_s: float
    waits: bool = False
    progresses: bool = True
    leaves: bool = False
    enters: bool = False


def pipeline_s(steps: int, compute_s: Sequence[float], links: Sequence[Link], *, overlapped: bool) -> float:
    """Return the seconds until all ranks have ended their last step. The links must not form a cycle.

    Blocking: receive, compute, send, and wait. Overlapped: the next receive is posted before a step is computed, and a
    send is waited for when its buffer is needed again, two steps later.

    >>> pipeline_s(3, [1.0, 1.0], [Link(0, 1, 0.5, 0.5, 0.0, 0.0)], overlapped=False)
    4.5
    >>> [pipeline_s(3, [1.0, 1.0], [Link(0, 1, 0.5, 0.5, 0.0, 0.0, waits=True)], overlapped=o) for o in (False, True)]
    [5.5, 4.5]

    Messages to two ranks, by a wire for each and by one wire:

    >>> two = [Link(0, target, 0.5, 0.5, 0.0, 0.0) for target in (1, 2)]
    >>> for links in (two, [link._replace(leaves=True) for link in two]):
    ...     print(f"{pipeline_s(10, [0.1, 0.0, 0.0], links, overlapped=False):.1f}")
    5.1
    10.1
    """
    modelled = min(steps, MODELLED + 4 * _depth(links))
    ends = _Recurrence(modelled, compute_s, links, overlapped).ends()
    if modelled == steps:
        return ends[-1]
    return ends[-1] + (steps - modelled) * (ends[-1] - ends[-1 - PERIOD]) / PERIOD


class _Recurrence:
    """The times of every rank's steps, in seconds; None while unknown. Each rank advances as far as the others allow.

    By step: `posted`, `asked`: when its receives are posted, and waited for; `computed`: when its tile is finished;
    `sent`, `arrived`: when its messages are sent and received, by link; `done`: when the rank begins the next step.
    """

    def __init__(self, steps: int, compute_s: Sequence[float], links: Sequence[Link], overlapped: bool) -> None:
        self.steps, self.compute_s, self.links, self.overlapped = steps, compute_s, links, overlapped
        ranks = range(len(compute_s))
        self.into = [[i for i, link in enumerate(links) if link.target == rank] for rank in ranks]
        self.out = [[i for i, link in enumerate(links) if link.source == rank] for rank in ranks]
        self.posted, self.asked, self.computed, self.done = (_unknown(len(ranks), steps) for _ in range(4))
        self.sent, self.arrived = (_unknown(len(links), steps) for _ in range(2))
        self.shared = {i: 0 for i, link in enumerate(links) if link.leaves or link.enters}  # link -> its next step
        self.left, self.entered = [-inf for _ in ranks], [-inf for _ in ranks]  # last arrival on each rank's wires

    def ends(self) -> list[float]:
        """Return when all ranks have ended each step."""
        ranks = range(len(self.compute_s))
        at = [0 for _ in ranks]
        while any(step < self.steps for step in at):
            before = list(at)
            for rank in ranks:
                while at[rank] < self.steps and self._step(rank, at[rank]):
                    at[rank] += 1
            assert at != before or self._deliver(), "the links form a cycle"
        while self._deliver():
            continue
        last = [self._last(rank) for rank in ranks]
        ends = [max(self.done[rank][step] or 0.0 for rank in ranks) for step in range(self.steps)]
        return [*ends[:-1], max(last)] if self.steps else [0.0]

    def _deliver(self) -> bool:
        """Let the earliest message that can start on shared wires arrive; return whether there is one. All others start
        later, since they wait for messages that have not arrived."""
        starts = [(self._start(i, step), i) for i, step in self.shared.items() if step < self.steps]
        known = [(start, i) for start, i in starts if start is not None]
        if not known:
            return False
        start, i = min(known)
        link, step = self.links[i], self.shared[i]
        before = self.arrived[i][step - 1] if step else None
        arrival = max(start + link.half_s, start if before is None else before + link.gap_s)
        if link.leaves:
            arrival = self.left[link.source] = max(arrival, self.left[link.source] + link.gap_s)
        if link.enters:
            arrival = self.entered[link.target] = max(arrival, self.entered[link.target] + link.gap_s)
        self.arrived[i][step] = arrival
        self.shared[i] += 1
        return True

    def _last(self, rank: int) -> float:
        """Return when a rank's last step and its sends have ended."""
        end = self.done[rank][self.steps - 1] if self.steps else 0.0
        waited = [self._arrival(i, self.steps - 1) for i in self.out[rank] if self.links[i].waits and self.steps]
        return max([end or 0.0, *(time or 0.0 for time in waited)])

    def _step(self, rank: int, step: int) -> bool:
        """Compute the times of one step of a rank as far as they can be known; return whether all of them are."""
        if self.computed[rank][step] is None and not self._computes(rank, step):
            return False
        free = self.computed[rank][step]
        assert free is not None
        if self.overlapped and step >= 2:
            free = self._waited(rank, step - 2, free)
            if free is None:
                return False
        for i in self.out[rank]:
            self.sent[i][step] = free
            free += self.links[i].send_s
        if not self.overlapped:
            free = self._waited(rank, step, free)
        self.done[rank][step] = free
        return free is not None

    def _computes(self, rank: int, step: int) -> bool:
        asked = self.done[rank][step - 1] if step else 0.0
        assert asked is not None
        self.asked[rank][step] = asked
        if not self.overlapped or not step:
            self.posted[rank][step] = asked
        ready = asked + sum(self.links[i].recv_s for i in self.into[rank])
        for i in self.into[rank]:
            arrival = self._arrival(i, step)
            if arrival is None:
                return False
            ready = max(ready, arrival)
        if self.overlapped and step + 1 < self.steps:
            self.posted[rank][step + 1] = ready
        self.computed[rank][step] = ready + self.compute_s[rank]
        return True

    def _waited(self, rank: int, step: int, free: float) -> float | None:
        """Return when a rank that waits for a step's rendezvous sends goes on; None while unknown."""
        for i in self.out[rank]:
            if self.links[i].waits:
                arrival = self._arrival(i, step)
                if arrival is None:
                    return None
                free = max(free, arrival)
        return free

    def _arrival(self, i: int, step: int) -> float | None:
        if self.arrived[i][step] is None and i not in self.shared:
            link, start = self.links[i], self._start(i, step)
            if start is None:
                return None
            before = self.arrived[i][step - 1] if step else None
            self.arrived[i][step] = max(start + link.half_s, start if before is None else before + link.gap_s)
        return self.arrived[i][step]

    def _start(self, i: int, step: int) -> float | None:
        """Return when a message starts to travel; None while unknown."""
        link, sent = self.links[i], self.sent[i][step]
        if sent is None or not link.waits:
            return sent
        other = self.posted[link.target][step]
        if self.overlapped and not link.progresses:
            other = self.asked[link.target][step]
            at = self.computed[link.source][step + 1] if step + 1 < self.steps else sent
            if at is None:
                return None
            sent = max(sent, at)
        return None if other is None else max(sent, other)


def _unknown(rows: int, steps: int) -> Times:
    return [[None] * steps for _ in range(rows)]


def _depth(links: Sequence[Link]) -> int:
    """Return the length of the longest chain of links."""
    depth = [0] * (1 + max((max(link.source, link.target) for link in links), default=0))
    for _ in depth:
        for link in links:
            depth[link.target] = max(depth[link.target], depth[link.source] + 1)
    return max(depth) if links else 0
