"""warming: measure the schedules of a call on its own tensors and ranks, and choose one."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from dovetail.ir import Schedule
from dovetail.torch.linear.agreement import words_of
from dovetail.torch.linear.case import Case, is_across, is_exchanged
from dovetail.torch.linear.costs import Costs, Timed, largest, measured_costs, seconds_of
from dovetail.torch.linear.plans import Call, Plan, _warming, bound, keep, lanes_of
from dovetail.torch.linear.wire import Wire

HEATS, FINAL, FINALISTS = 7, 11, 4  # rounds of the two contests, and schedules that are measured after predictions
TRIALS = 3  # rounds that show what a form's schedules take beyond their predictions
Form = tuple[bool, bool]  # of a schedule: whether its tiles cut columns, and whether ranks exchange parts themselves


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


def choose(call: Call, group: Any, run: Callable[[Any, Wire], Any], timed: Timed) -> None:
    """Measure the call's schedules and use the one that is faster than the serial one, if any is.

    `run`: makes the call by lanes and a wire. `timed`: what its costs are measured by.
    """
    costs = measured_costs(call.case, group, timed)
    late = _late(call.case, group, run, costs)
    schedules = _with_best(call.case, group, costs, late)
    lanes = [lanes_of(call.case, each, group.rank()) for each in schedules]
    predictions = _predictions(schedules, lanes, costs, late)
    made = [bound(call.case, schedule, group) for schedule in schedules]
    order = _finalists(schedules, predictions)
    heats = _rounds([(0, *made[0]), *((each, *made[each]) for each in order)], group, run, HEATS)
    best = min(order, key=lambda each: _share(heats[each], heats[0]), default=0)
    plan = _judged(schedules, predictions, best, group, run, made) if best else _alone(schedules[0], predictions[0])
    apart_s = costs.apart().predicted_s(lanes[best], best > 0)
    call.use(replace(plan, apart_s=apart_s, slowed=costs.slowed), group)
    keep(call, group)


class Late(NamedTuple):
    """What schedules of one form take beyond what their products and collectives do: a little for each tile, whose
    messages wait for a core that multiplies, and for the other rank's.

    `tiles`: the least and the most tiles that were tried; `seconds`: what those two took beyond.
    """

    tiles: tuple[int, int]
    seconds: tuple[float, float]

    def of(self, schedule: Schedule) -> float:
        """Return the seconds of a schedule, by its number of tiles."""
        return float(np.interp(len(schedule["tiles"]), self.tiles, self.seconds))

    @property
    def each_s(self) -> float:
        """The seconds of one more tile."""
        more = self.tiles[1] - self.tiles[0]
        return max((self.seconds[1] - self.seconds[0]) / more, 0.0) if more else 0.0


def _predictions(
    schedules: Sequence[Schedule], lanes: Sequence[Any], costs: Costs, late: dict[Form, Late]
) -> list[float]:
    """Return the seconds of each schedule; the first is serial."""
    serial, *others = (costs.predicted_s(each, place > 0) for place, each in enumerate(lanes))
    return [serial, *(s + late[_form(each)].of(each) for s, each in zip(others, schedules[1:], strict=True))]


def _form(schedule: Schedule) -> Form:
    return is_across(schedule), is_exchanged(schedule)


def _late(case: Case, group: Any, run: Callable[[Any, Wire], Any], costs: Costs) -> dict[Form, Late]:
    """Return what schedules take beyond their predictions, by form: of each, those with fewest and most tiles run."""
    forms: dict[Form, list[Schedule]] = {}
    for schedule in list(case.schedules())[1:]:
        forms.setdefault(_form(schedule), []).append(schedule)
    ends = {form: (of_form[0], of_form[-1]) for form, of_form in forms.items()}
    tried = [each for both in ends.values() for each in both]
    took = _rounds([(place, *bound(case, each, group)) for place, each in enumerate(tried)], group, run, TRIALS)
    known = [costs.predicted_s(lanes_of(case, each, group.rank()), True) for each in tried]
    beyond = iter(statistics.median(took[place]) - seconds for place, seconds in enumerate(known))
    return {
        form: Late((len(few["tiles"]), len(many["tiles"])), (next(beyond), next(beyond)))
        for form, (few, many) in ends.items()
    }


def _finalists(schedules: Sequence[Schedule], predictions: Sequence[float]) -> list[int]:
    """Return the overlapped schedules that are measured: the best by predictions, as many of each form."""
    order = sorted(range(1, len(schedules)), key=predictions.__getitem__)
    forms = [[place for place in order if is_exchanged(schedules[place]) == form] for form in (False, True)]
    most = FINALISTS // sum(map(bool, forms)) if order else 0
    return [place for form in forms for place in form[:most]]


def _share(seconds: Sequence[float], of_serial: Sequence[float]) -> float:
    """Return the median share of serial's seconds by round."""
    return statistics.median(a / b for a, b in zip(seconds, of_serial, strict=True))


def _with_best(case: Case, group: Any, costs: Costs, late: dict[Form, Late]) -> list[Schedule]:
    """Return the case's schedules, and those that are best by the costs, of rows and columns, which rank 0 finds."""
    found = list(case.schedules())
    best = list(_best(case, costs, late)) if group.rank() == 0 else []
    said = words_of(group, json.dumps(best))[0]
    more = [case.tiled("optimal", tiles, across=across) for across, tiles in json.loads(said) if len(tiles) > 1]
    return found + [each for each in more if each not in found]


def _best(case: Case, costs: Costs, late: dict[Form, Late]) -> Iterator[tuple[bool, list[int]]]:
    """Yield whether the tiles of a best schedule cut columns, and their lengths."""
    for across, least in costs.least.items():
        length = case.widths[0] if across else case.tiled_rows
        if least < length and (across, False) in late:
            each_s = late[across, False].each_s
            wire_s = lambda rows, each_s=each_s: costs.handed_s(rows) + each_s  # noqa: E731
            best = case.best_tiled(costs.product_s[across], wire_s, least, costs.slowed, across=across)
            yield across, list(best["tiles"])


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
            call = lambda place=place: run(*candidates[place][1:])  # noqa: E731
            times[turn, place] = seconds_of(group, call)
    largest(group, times)
    return {each[0]: times[:, place].tolist() for place, each in enumerate(candidates)}
