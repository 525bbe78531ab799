"""explain: describe a plan: the chosen schedule, its predicted times, its losses against the ideal, and its rivals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Protocol

from dovetail.core import seconds_text, share_text
from dovetail.ir import Operator, Schedule
from dovetail.planner.rival import MEASURED_SLOWER, WITHIN_NOISE, Rival, distinct

MOST_RUNS = 12  # most runs of equal tiles that are listed
LOSSES = {
    "dil": "the pieces alone take longer than the whole",
    "cil": "compute and traffic slow each other, or share a link",
    "head": "before the first piece of the longer work can start",
    "tail": "after its last piece has ended",
    "startup": "before the first op",
    "stall": "between its pieces",
    "imbalance": "waiting for other ranks",
}


class Explained(Protocol):
    """The attributes of a `Plan` that its description uses (a protocol, since `Plan` imports this module)."""

    @property
    def schedule(self) -> Schedule: ...

    @property
    def operator(self) -> Operator: ...

    @property
    def ranks(self) -> int: ...

    @property
    def machine(self) -> str: ...

    @property
    def family(self) -> str: ...

    @property
    def serial_s(self) -> float: ...

    @property
    def predicted_s(self) -> float: ...

    @property
    def ideal_s(self) -> float: ...

    @property
    def ideal_gain(self) -> float: ...

    @property
    def overlaps(self) -> bool: ...

    @property
    def noise(self) -> float: ...

    @property
    def losses(self) -> Mapping[str, float]: ...

    @property
    def rivals(self) -> Sequence[Rival]: ...

    @property
    def published(self) -> Mapping[str, Any]: ...

    @property
    def notes(self) -> Sequence[str]: ...


def explain(plan: Explained) -> str:
    """Return the description: schedule, predicted times, losses, rivals, published figures, steps, notes.

    >>> import dovetail as dt
    >>> made = dt.plan(dt.MatmulAllReduce(4096, 3072, 8192, "float16"), "atlas-a2-8", schedule="mc2", contention=1.0)
    >>> print("\\n".join(explain(made).splitlines()[:3]))
    matmul_all_reduce 4096 × 24576 × 8192 float16 on 8 ranks of atlas-a2-8
    mc2: 512 + 4 x 896, reduced by the library’s all-reduce.
    <BLANKLINE>
    """
    parts = [f"{title(plan)} of {plan.machine}\n{plan.family}: {described(plan, plan.schedule)}.", _times(plan)]
    lists = [_losses(plan), _rivals(plan), _published(plan), _steps(plan)]
    return "\n\n".join(filter(None, [*parts, *map("\n".join, lists), *plan.notes]))


def title(plan: Explained) -> str:
    """Return a short description of the operator and its ranks."""
    return f"{plan.operator.title} on {plan.ranks} rank{'s' * (plan.ranks != 1)}"


def described(plan: Explained, schedule: Schedule) -> str:
    """Return a short description of a schedule; its tiles come first if it has several."""
    tiles = [lengths(schedule.tiles)] if len(schedule.tiles) > 1 else ["not cut"] if schedule.tiles else []
    return ", ".join([*tiles, plan.operator.describe(schedule, plan.ranks)])


def lengths(tiles: Sequence[int]) -> str:
    """Return tile lengths as text; if there are many, their number, the shortest and the longest.

    >>> lengths([512, 896, 896, 896, 896]), lengths([]), lengths([64]), lengths([*range(3, 40)])
    ('512 + 4 x 896', 'none', '64', '37 tiles of 3 to 39')
    """
    runs = [(size, len(list(group))) for size, group in groupby(tiles)]
    if len(runs) > MOST_RUNS:
        return f"{len(tiles)} tiles of {min(tiles)} to {max(tiles)}"
    return " + ".join(f"{count} x {size}" if count > 1 else str(size) for size, count in runs) or "none"


def why_serial(plan: Explained, measured_s: float = 0.0) -> str:
    """Return why a plan is serial. `measured_s`: measured seconds of serial, if any."""
    faster = (rival.measured_s is not None and rival.measured_s < measured_s for rival in plan.rivals)
    if any(faster) or any(rival.why_not == WITHIN_NOISE for rival in plan.rivals):
        return "no schedule was faster by more than the noise in every launch"
    if any(rival.why_not == MEASURED_SLOWER for rival in plan.rivals):
        return "the schedules predicted to be faster were measured slower"
    by = f" by more than the noise, {share_text(plan.noise)}" if plan.noise else ""
    return f"no overlapped schedule is predicted to be faster{by}"


def _times(plan: Explained) -> str:
    gain = 1 - plan.predicted_s / plan.serial_s if plan.serial_s else 0.0
    times = [seconds_text(each) for each in (plan.predicted_s, plan.serial_s, plan.ideal_s)]
    line = f"Predicted {times[0]}; serial {times[1]}, ideal {times[2]}."
    if plan.schedule.is_serial:
        return f"{line} Serial is kept: {why_serial(plan)}."
    if not plan.overlaps:
        slower = "slower than serial" if gain < 0 else "not faster than serial by more than the noise"
        return f"{line} This is {slower}; it was asked for by name."
    reached = "> 200 %" if plan.ideal_gain > 2 else share_text(plan.ideal_gain)
    return f"{line} That is {share_text(gain)} less than serial, and {reached} of the ideal gain."


def _losses(plan: Explained) -> Iterator[str]:
    lost = sorted(((s, name) for name, s in plan.losses.items() if abs(s) > 1e-3 * plan.predicted_s), reverse=True)
    if not lost:
        return
    yield f"{seconds_text(max(plan.predicted_s - plan.ideal_s, 0.0))} above the ideal:"
    for value, name in lost:
        sign = "-" if value < 0 else ""
        yield f"  {sign + seconds_text(abs(value)):>10}  {name:<10}  {LOSSES.get(name, '')}".rstrip()


def _rivals(plan: Explained) -> Iterator[str]:
    if not plan.rivals:
        return
    listed = distinct(plan.rivals)
    width = max(len(rival.label) for rival in listed)
    is_measured = any(rival.measured_s is not None for rival in listed)
    yield "Not chosen; measured times are those of the first round:" if is_measured else "Not chosen:"
    for rival in listed:
        measured = "" if rival.measured_s is None else f", measured {seconds_text(rival.measured_s)}"
        yield f"  {rival.label:<{width}}  predicted {seconds_text(rival.predicted_s)}{measured}: {rival.why_not}"


def _published(plan: Explained) -> Iterator[str]:
    if not plan.published:
        return
    planned = seconds_text(plan.published["planned_s"])
    yield f"Published for this operator: {planned} (not measured here). As a gain over serial:"
    for reading in plan.published["readings"]:
        yield f"  {share_text(reading['gain'])} of {seconds_text(reading['serial_s'])}: {reading['basis']}"


def _steps(plan: Explained) -> Iterator[str]:
    steps = plan.schedule.steps
    if not steps:
        return
    width = max(map(len, steps))
    yield "Steps of the rule:"
    for name, value in steps.items():
        text = seconds_text(value) if name.endswith("_s") and isinstance(value, float) else str(value)
        yield f"  {name:<{width}} {text}"
