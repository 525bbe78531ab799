"""service_order: in which order a rank would serve others if it took the message first that is there first."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from dovetail.trace.analysis.replay_model import FROM_ROOT, ReplayModel, Step


@dataclass
class Unit:
    """What a rank does for one other: from the receive of its message, the first of `steps`, to the next receive."""

    source: int
    steps: list[Step]


Part = Step | list[Unit]


def as_they_come(model: ReplayModel, rank: int, parts: Sequence[Part]) -> list[Step] | None:
    """Return the steps of a rank whose stretches of units are served as messages come; None: the ranks get stuck.

    `parts`: the rank's steps, and stretches of units. Messages of one source keep their order.
    """
    ranks = [_Rank(deque(steps)) for steps in model.steps]
    ranks[rank] = _Rank(deque(parts))
    run = _Run(model, ranks)
    while any(one.parts or one.now for one in ranks):
        ready_s, which = min((run.ready_s(other), other) for other in range(len(ranks)))
        if ready_s == inf:
            return None
        run.take(which, ready_s)
    return ranks[rank].done


@dataclass
class _Rank:
    """A rank's progress: the steps and stretches to come, those of the unit that it serves, and what it has done."""

    parts: deque[Part]
    now: deque[Step] = field(default_factory=deque)
    open: dict[int, deque[Unit]] = field(default_factory=dict)  # of the current stretch, by source
    done: list[Step] = field(default_factory=list)
    clock_s: float = 0.0


class _Run:
    """A simple replay: times of messages and collectives as the model has them, without contention."""

    def __init__(self, model: ReplayModel, ranks: Sequence[_Rank]) -> None:
        self.model, self.ranks = model, ranks
        self.sent_s: dict[int, float] = {}
        self.posted_s: dict[int, float] = {}
        self.joined_s: dict[int, list[float]] = defaultdict(list)
        self.root_s: dict[int, float] = {}

    def ready_s(self, rank: int) -> float:
        """Return when a rank can do its next step; infinity if that is not known yet, or there is none."""
        one = self.ranks[rank]
        if not one.now:
            self._open(one)
            if one.open:
                return min(self._served_s(one, units[0]) for units in one.open.values())
        return self._step_s(rank, one.now[0]) if one.now else inf

    def take(self, rank: int, ready_s: float) -> None:
        """Let a rank do its next step."""
        one = self.ranks[rank]
        if not one.now and one.open:
            source = min(one.open, key=lambda source: self._served_s(one, one.open[source][0]))
            one.now.extend(one.open[source].popleft().steps)
            if not one.open[source]:
                del one.open[source]
            return
        step = one.now.popleft()
        one.done.append(step)
        one.clock_s = max(ready_s, one.clock_s)
        if step.kind == "send":
            self.sent_s[step.number] = one.clock_s
        elif step.kind == "recv":
            self.posted_s[step.number] = one.clock_s
        elif step.kind == "join":
            it = self.model.collectives[step.number]
            self.joined_s[it.collective].append(one.clock_s)
            if it.root == rank:
                self.root_s[it.collective] = one.clock_s

    def _open(self, one: _Rank) -> None:
        if one.open or not one.parts:
            return
        part = one.parts.popleft()
        if isinstance(part, Step):
            one.now.append(part)
            return
        for unit in part:
            one.open.setdefault(unit.source, deque()).append(unit)

    def _served_s(self, one: _Rank, unit: Unit) -> float:
        """Return when a rank can begin a unit: when its message is there, or could be, if its receive were posted."""
        number = unit.steps[0].number
        return max(one.clock_s, self.sent_s[number] + self._delay_s(number)) if number in self.sent_s else inf

    def _delay_s(self, number: int) -> float:
        it = self.model.messages[number]
        return it.delay_s if it.delay_s is not None else float(self.model.delays(it.num_bytes))

    def _step_s(self, rank: int, step: Step) -> float:
        """Return when a rank's next step is over; infinity: not known yet."""
        since_s = self.ranks[rank].clock_s + step.seconds
        if step.kind in ("received", "sent"):
            return max(since_s, self._over_s(step.number, step.kind == "sent"))
        if step.kind == "joined":
            return max(since_s, self._met_s(rank, step.number))
        return since_s

    def _over_s(self, number: int, is_send: bool) -> float:
        it = self.model.messages[number]
        if is_send and not it.rendezvous:
            return 0.0
        begun_s = self.sent_s.get(number, inf)
        if it.rendezvous:
            begun_s = max(begun_s, self.posted_s.get(number, inf))
        return begun_s + self._delay_s(number)

    def _met_s(self, rank: int, number: int) -> float:
        it = self.model.collectives[number]
        if it.way == FROM_ROOT:
            return 0.0 if it.root == rank else self.root_s.get(it.collective, inf) + it.seconds
        if it.way != "all" and it.root != rank:
            return 0.0
        joined_s = self.joined_s[it.collective]
        return max(joined_s) + it.seconds if len(joined_s) == len(it.group) else inf
