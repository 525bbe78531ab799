"""costs: what the products and collectives of a call cost on its ranks, alone and beside each other."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from dovetail.torch import private
from dovetail.torch.linear.agreement import exchange
from dovetail.torch.linear.case import Case
from dovetail.torch.linear.kinds import GATHERS, SCATTER
from dovetail.torch.linear.lanes import BEGIN, LATER, PRODUCT, WAIT, Lanes
from dovetail.torch.linear.plans import lanes_of

ROUNDS = 5
LEAST_ROWS = 8  # of the shortest product, or collective, that is measured
MOST_SLOWED = 8.0  # times: what is measured beyond is not believed

Curve = Callable[[Any], Any]  # seconds by rows, of a number or of each of an array


class Timed(NamedTuple):
    """What is measured: `product(n, across)` multiplies n rows, or columns; `begin(is_async, rows)` begins a
    collective and returns its work; `later()`, or None, computes the weight gradients."""

    product: Callable[[int, bool], object]
    begin: Callable[[bool, int], Any]
    later: Callable[[], object] | None


class Costs(NamedTuple):
    """Seconds by rows: of products whose tiles are rows and, by columns, columns; of a collective that is waited for at
    once, and of one that is handed to the group's thread; and of the weight gradients. Between measured lengths, lines.

    `least`: the shortest products. `begin_s`: seconds that the calling thread needs to begin a collective.
    `slowed`: how many times as long a product takes beside messages, and messages beside a product. `rest_s`: seconds
    of the weight gradients that need all messages.
    """

    product_s: dict[bool, Curve]
    awaited_s: Curve
    handed_s: Curve
    later_s: float
    least: dict[bool, int]
    begin_s: Curve
    slowed: tuple[float, float]
    rest_s: float = 0.0

    def predicted_s(self, lanes: Lanes, is_handed: bool) -> float:
        """Return the time of a schedule's lanes."""
        if is_handed:
            return predicted_s(lanes, self.product_s[lanes.across], self.handed_s, self)
        alone = self._replace(begin_s=lambda rows: 0.0)
        return predicted_s(lanes, self.product_s[lanes.across], self.awaited_s, alone)

    def apart(self) -> Costs:
        """Return the costs without what products and messages cost each other."""
        return self._replace(begin_s=lambda rows: 0.0, slowed=(1.0, 1.0))


class Clock:
    """Two lanes that slow each other down: the thread that computes, and collectives in their order."""

    def __init__(self, slowed: tuple[float, float]) -> None:
        self.now, self.slowed = 0.0, slowed
        self.left: list[float] = []  # seconds of messages of each collective that was begun

    def compute(self, seconds: float) -> None:
        """Compute, while what was begun travels."""
        by_product, by_wire = self.slowed
        both = min(seconds * by_product, sum(self.left) * by_wire)
        self.now += both + seconds - both / by_product
        self._travel(both / by_wire)

    def begin(self, seconds: float) -> None:
        """Begin a collective that takes so long."""
        self.left.append(seconds)

    def wait(self, number: int) -> None:
        """Wait until the collective of this number has ended."""
        seconds = sum(self.left[: number + 1])
        self.now += seconds
        self._travel(seconds)

    def _travel(self, seconds: float) -> None:
        for place, left in enumerate(self.left):
            moved = min(left, seconds)
            self.left[place], seconds = left - moved, seconds - moved


def predicted_s(lanes: Lanes, product_s: Curve, wire_s: Curve, costs: Costs) -> float:
    """Return the time of the steps, given the cost of a product and a collective by rows; copies count nothing.

    Products run one after another, as do collectives; both run at once, and slow each other down.
    """
    clock = Clock(costs.slowed)
    for step in lanes.steps:
        if step.what == PRODUCT:
            clock.compute(product_s(step.rows))
        elif step.what == BEGIN:
            rows = step.rows * lanes.scale
            clock.begin(wire_s(rows))
            clock.compute(costs.begin_s(rows))
        elif step.what == LATER:
            clock.compute(costs.later_s)
        elif step.what == WAIT:
            clock.wait(step.number)
    clock.compute(costs.rest_s)
    return float(clock.now)


def measured_costs(case: Case, group: Any, timed: Timed) -> Costs:
    """Measure products and collectives of every length that the case's schedules use."""
    lanes = [lanes_of(case, each, group.rank()) for each in case.schedules()]
    lengths = {across: _lengths((each for each in lanes if each.across == across), PRODUCT) for across in (False, True)}
    unit = case.ranks if case.kind == SCATTER else 1
    lengths = {across: and_shorter(those, unit) for across, those in lengths.items()}
    wires = and_shorter(_lengths((each for each in lanes if not each.across), BEGIN), unit)
    products = [partial(timed.product, rows, across) for across in lengths for rows in lengths[across]]
    calls = [partial(_awaited, timed, is_async, rows) for is_async in (False, True) for rows in wires]
    seconds = iter(_by_whole(_rounds(group, products), len(lengths[False]) - 1))
    each = len(case.widths) if case.kind in GATHERS else 1  # there each weight has products of its own
    places = {across: lengths[across] for across in lengths if lengths[across]}
    product_s = {across: _line(rows, [next(seconds) / each for _ in rows]) for across, rows in places.items()}
    found = _medians(_rounds(group, calls))
    awaited_s, handed_s = _line(wires, found[: len(wires)]), _line(wires, at_rate(wires, found[len(wires) :]))
    begin_s = _line([wires[0], wires[-1]], [_begin_s(group, timed, rows) for rows in (wires[0], wires[-1])])
    shortest = min(lengths[False], key=lambda n: abs(each * product_s[False](n) - handed_s(wires[-1]) / 2))
    slowed = _slowed(group, timed, shortest, wires[-1])
    later_s = _medians(_rounds(group, [timed.later]))[0] if timed.later else 0.0
    least = {across: rows[0] for across, rows in places.items()}
    rest_s = later_s * (case.ranks - 1) if case.kind in GATHERS else 0.0
    return Costs(product_s, awaited_s, handed_s, later_s, least, begin_s, slowed, rest_s)


def _awaited(timed: Timed, is_async: bool, rows: int) -> None:
    timed.begin(is_async, rows).wait()


def _lengths(lanes: Iterable[Lanes], what: int) -> list[int]:
    return sorted({step.rows for each in lanes for step in each.steps if step.what == what})


def and_shorter(lengths: Sequence[int], unit: int) -> list[int]:
    """Return lengths with a half and a quarter of the shortest, multiples of `unit`, but not of few rows.

    What comes after all products is the collective of the last tile, so that this one is best short.

    >>> and_shorter([32, 64, 512], 2), and_shorter([30], 4), and_shorter([9, 18], 1)
    ([8, 16, 32, 64, 512], [12, 30], [9, 18])
    """
    parts = [lengths[0] // by // unit * unit for by in (4, 2)] if lengths else []
    return sorted({*(each for each in parts if each >= LEAST_ROWS), *lengths})


def _line(rows: Sequence[int], seconds: Sequence[float]) -> Curve:
    return lambda count: np.interp(count, rows, seconds)


def at_rate(rows: Sequence[int], seconds: Sequence[float]) -> list[float]:
    """Return the seconds of collectives of these rows, in ascending order, that are made one after another.

    A short one alone may look faster than the network, which passes a first burst at once.

    >>> at_rate([1, 2, 4], [0.5, 3.0, 8.0])
    [2.0, 4.0, 8.0]
    """
    return [max(each, seconds[-1] * count / rows[-1]) for count, each in zip(rows, seconds, strict=True)]


def _begin_s(group: Any, timed: Timed, rows: int) -> float:
    """Return the seconds in which a collective is begun."""
    found: list[float] = []

    def begun() -> None:
        start = time.perf_counter()
        work = timed.begin(True, rows)
        found.append(time.perf_counter() - start)
        work.wait()

    _rounds(group, [begun])
    return _medians(_largest(group, [found]))[0]


def _slowed(group: Any, timed: Timed, length: int, rows: int) -> tuple[float, float]:
    """Return how much a product and a collective of these rows slow each other down.

    Best the product takes half as long as the collective: so it has messages beside it to its end. Both are also
    measured alone, in the same rounds: the speed of a core may change from one second to the next.
    """
    made: list[float] = []
    rest: list[float] = []

    def together() -> None:
        work = timed.begin(True, rows)
        begin = time.perf_counter()
        timed.product(length, False)
        end = time.perf_counter()
        work.wait()
        made.append(end - begin)
        rest.append(time.perf_counter() - end)

    alone = _rounds(group, [partial(timed.product, length, False), partial(_awaited, timed, True, rows), together])
    beside = _largest(group, [made, rest])
    several = [slowed_by(*each) for each in torch.cat([alone[:, :2], beside], 1).tolist()]
    by_product, by_wire = zip(*several, strict=True)
    return statistics.median(by_product), statistics.median(by_wire)


def slowed_by(product_s: float, wire_s: float, made_s: float, rest_s: float) -> tuple[float, float]:
    """Return how many times as long a product and messages take beside each other.

    Alone they take `product_s` and `wire_s`. Begun together, the product took `made_s`; then messages took `rest_s`.

    >>> slowed_by(1.0, 4.0, 1.5, 3.0), slowed_by(4.0, 1.0, 4.5, 0.0)
    ((1.5, 1.5), (2.0, 1.0))
    """
    least = 1.0 / MOST_SLOWED  # of the usual speed
    if made_s >= wire_s:  # the messages ended before it
        lost = (made_s - product_s) / wire_s
        return 1.0 / min(max(1.0 - lost, least), 1.0), 1.0
    moved_s = min(max(wire_s - rest_s, made_s * least), made_s)
    return min(max(made_s / product_s, 1.0), MOST_SLOWED), made_s / moved_s


def _rounds(group: Any, calls: Sequence[Callable[[], object]]) -> Any:
    """Return the seconds of each call by round, (rounds, calls), the largest of all ranks."""
    times = torch.zeros(ROUNDS, len(calls), dtype=torch.float64)
    for turn in range(ROUNDS):
        for place, call in enumerate(calls):
            times[turn, place] = seconds_of(group, call)
    return largest(group, times)


def _largest(group: Any, several: Sequence[Sequence[float]]) -> Any:
    """Return lists of seconds as columns, each element the largest of all ranks."""
    return largest(group, torch.tensor(several, dtype=torch.float64).t().contiguous())


def _medians(times: Any) -> list[float]:
    found: list[float] = times.median(0).values.tolist()
    return found


def _by_whole(times: Any, whole: int) -> list[float]:
    """Return median seconds, as shares of the longest product's in the same round: a slow round changes none."""
    return _medians(times / times[:, whole : whole + 1] * times[:, whole].median())


def seconds_of(group: Any, call: Callable[[], Any]) -> float:
    """Return the seconds of a call on this rank, which all ranks begin together."""
    exchange(group, 0)
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def largest(group: Any, times: Any) -> Any:
    """Replace times by the largest of all ranks, and return them."""
    made = private.AllreduceOptions()
    made.asyncOp, made.reduceOp = False, dist.ReduceOp.MAX
    group.allreduce([times], made).wait()
    return times
