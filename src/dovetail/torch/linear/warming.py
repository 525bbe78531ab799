"""warming: measure the schedules of a call on its own tensors and ranks, and choose one."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from dovetail.ir import Schedule
from dovetail.torch import private
from dovetail.torch.linear.agreement import exchange, words_of
from dovetail.torch.linear.case import Case
from dovetail.torch.linear.columns import lanes_of
from dovetail.torch.linear.kinds import GATHERS
from dovetail.torch.linear.lanes import BEGIN, PRODUCT, Lanes, predicted_s
from dovetail.torch.linear.plans import Call, Plan, _warming, bound, keep
from dovetail.torch.linear.wire import Wire

HEATS, FINAL, FINALISTS = 5, 11, 3  # rounds of the two contests, and schedules that are measured after predictions

Curve = Callable[[Any], Any]  # seconds by rows, of a number or of each of an array


@contextmanager
def warm_up(*, again: bool = False) -> Iterator[None]:
    """Choose a plan for each call of an operator that is made inside, and save it for later runs. Every rank enters.

    Each call of new shapes measures what its products and collectives cost, predicts its schedules, measures the best
    of them beside the serial one, and returns its result as usual. Run forward and backward once, with the shapes,
    threads and dtypes of later steps. Outside, a call never measures: it looks its plan up, and is serial if there is
    none.

    Parameters
    ----------
    again : bool
        Measure also the calls whose plans were saved.
    """
    _warming.append(again)
    try:
        yield
    finally:
        _warming.pop()


def wants_plan(call: Call) -> bool:
    """Return whether this call is to be measured now."""
    assert call.plan is not None
    return call.plan.origin == "none" or (_warming[-1] and call.plan.origin == "saved")


def choose(call: Call, group: Any, run: Callable[[Any, Wire], Any], timed: Any) -> None:
    """Measure the call's schedules and use the one that is faster than the serial one, if any is.

    `run`: makes the call by lanes and a wire. `timed`: (products of n rows, weight gradients), callables to measure.
    """
    costs = measured_costs(call.case, group, timed)
    schedules = _with_best(call.case, group, costs)
    lanes = [lanes_of(call.case.program(each), group.rank(), call.case.kind) for each in schedules]
    predictions = [costs.predicted_s(each, place > 0) for place, each in enumerate(lanes)]
    made = [bound(call.case, schedule, group) for schedule in schedules]
    order = sorted(range(1, len(made)), key=predictions.__getitem__)[:FINALISTS]
    heats = _rounds([(0, *made[0]), *((each, *made[each]) for each in order)], group, run, HEATS)
    best = min(order, key=lambda each: statistics.median(heats[each]), default=0)
    plan = _judged(schedules, predictions, best, group, run, made) if best else _alone(schedules[0], predictions[0])
    call.use(plan, group)
    keep(call, group)


def _with_best(case: Case, group: Any, costs: Costs) -> list[Schedule]:
    """Return the case's schedules, and the one that is best by the costs, which rank 0 finds."""
    found = list(case.schedules())
    said = ""
    if group.rank() == 0 and costs.least < case.tiled_rows:
        said = json.dumps(case.best_tiled(costs.product_s, costs.handed_s, costs.least)["tiles"])
    said = words_of(group, said)[0]
    tiles = json.loads(said) if said else []
    more = [case.tiled("optimal", tiles)] if len(tiles) > 1 else []
    return found + [each for each in more if each not in found]


def _alone(serial: Schedule, predicted: float) -> Plan:
    return Plan(serial, "measured", predicted, why="there is one schedule only")


def _judged(
    schedules: Sequence[Schedule], predictions: Sequence[float], best: int, group: Any, run: Any, made: Any
) -> Plan:
    """Return the plan after a final between the serial and the best schedule, in rounds of their own."""
    final = _rounds([(0, *made[0]), (best, *made[best])], group, run, FINAL)
    serial_s, best_s = (statistics.median(final[each]) for each in (0, best))
    ratios = [a / b for a, b in zip(final[0], final[best], strict=True)]
    sure = statistics.quantiles(ratios, n=4)[0]
    if sure > 1:
        return Plan(schedules[best], "measured", predictions[best], best_s, serial_s)
    tiles = len(schedules[best]["tiles"])
    why = f"the best overlapped schedule, of {tiles} tile{'s' * (tiles > 1)}, was predicted"
    why += f" {1e3 * predictions[best]:.3f} ms, and measured {1e3 * best_s:.3f} ms"
    why += f" beside {1e3 * serial_s:.3f} ms of serial: no gain beyond the noise"
    return Plan(schedules[0], "measured", predictions[0], serial_s, serial_s, why)


def _rounds(candidates: Any, group: Any, run: Callable[..., Any], rounds: int) -> dict[int, list[float]]:
    """Return the seconds of each candidate by round, the largest of all ranks; candidates alternate."""
    times = torch.zeros(rounds, len(candidates), dtype=torch.float64)
    for lanes, wire in [each[1:] for each in candidates]:
        run(lanes, wire)
    for turn in range(rounds):
        order = range(len(candidates)) if turn % 2 else reversed(range(len(candidates)))
        for place in order:
            times[turn, place] = _seconds(group, lambda place=place: run(*candidates[place][1:]))  # type: ignore[misc]
    _largest(group, times)
    return {each[0]: times[:, place].tolist() for place, each in enumerate(candidates)}


def _seconds(group: Any, call: Callable[[], Any]) -> float:
    exchange(group, 0)
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _largest(group: Any, times: Any) -> None:
    made = private.AllreduceOptions()
    made.asyncOp, made.reduceOp = False, dist.ReduceOp.MAX
    group.allreduce([times], made).wait()


class Costs(NamedTuple):
    """Seconds by rows: of a product, of a collective that is waited for at once, and of one that is handed to the
    group's thread; and of the weight gradients. Between measured lengths, lines. `least`: the shortest product."""

    product_s: Curve
    awaited_s: Curve
    handed_s: Curve
    later_s: float
    least: int

    def predicted_s(self, lanes: Lanes, is_handed: bool) -> float:
        """Return the time of a schedule's lanes."""
        return predicted_s(lanes, self.product_s, self.handed_s if is_handed else self.awaited_s, self.later_s)


def measured_costs(case: Case, group: Any, timed: Any) -> Costs:
    """Measure products and collectives of every length that the case's schedules use."""
    product, later, wired = timed
    programs = [case.program(each) for each in case.schedules()]
    steps = [step for each in programs for step in lanes_of(each, group.rank(), case.kind).steps]
    lengths = sorted({step.rows for step in steps if step.what == PRODUCT})
    wires = sorted({step.rows for step in steps if step.what == BEGIN})
    calls = [partial(product, rows) for rows in lengths]
    calls += [partial(wired, is_async, rows) for is_async in (False, True) for rows in wires]
    found = _costs(group, [*calls, *([later] if later else [])])
    each = len(case.widths) if case.kind in GATHERS else 1  # there each weight has products of its own
    product_s = _line(lengths, [seconds / each for seconds in found[: len(lengths)]])
    awaited_s, handed_s = (_line(wires, found[len(lengths) + place * len(wires) :]) for place in range(2))
    return Costs(product_s, awaited_s, handed_s, found[-1] if later else 0.0, lengths[0])


def _line(rows: Sequence[int], seconds: Sequence[float]) -> Curve:
    return lambda count: np.interp(count, rows, seconds[: len(rows)])


def _costs(group: Any, calls: Sequence[Callable[[], Any]]) -> list[float]:
    """Return the median seconds of each call, the largest of all ranks."""
    times = torch.zeros(HEATS, len(calls), dtype=torch.float64)
    for turn in range(HEATS):
        for place, call in enumerate(calls):
            times[turn, place] = _seconds(group, call)
    _largest(group, times)
    found: list[float] = times.median(0).values.tolist()
    return found
