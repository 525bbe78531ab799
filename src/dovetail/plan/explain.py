"""A plan in plain language: what it is, what it beat, and what the rest of the gain is lost to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dovetail.plan.plan import Plan

MEASURED_SLOWER = "measured slower"
LOSSES = {
    "dil": "the pieces alone take longer than the whole",
    "cil": "compute and traffic slow each other, or share a link",
    "head": "before the first piece of the longer work can start",
    "tail": "after its last piece has ended",
    "startup": "before the first op",
    "stall": "between its pieces",
    "imbalance": "waiting for other ranks",
}
ALL_REDUCES = {
    "library": "the library's all-reduce",
    "exchange": "our own all-pairs exchange",
    "ring": "our own ring",
}


def explain(plan: Plan) -> str:
    """Paragraphs: the choice, its predicted times, its losses, its rivals, what the source published, notes."""
    parts = [_choice(plan), _times(plan), "\n".join(_losses(plan)), "\n".join(_rivals(plan))]
    return "\n\n".join(filter(None, [*parts, "\n".join(_published(plan)), "\n".join(_steps(plan)), *plan.notes]))


def lengths(tiles: Sequence[int]) -> str:
    """Tiles as people say them.

    >>> lengths([512, 896, 896, 896, 896]), lengths([]), lengths([64])
    ('512 + 4 x 896', 'none', '64')
    """
    runs = [(size, len(list(group))) for size, group in groupby(tiles)]
    return " + ".join(f"{count} x {size}" if count > 1 else str(size) for size, count in runs) or "none"


def seconds(value: float) -> str:
    """Seconds as people say them.

    >>> seconds(0.001283), seconds(0.1806), seconds(2.5), seconds(0.0)
    ('1283 µs', '180.6 ms', '2.500 s', '0 µs')
    """
    if value >= 1.0:
        return f"{value:.3f} s"
    if value >= 10e-3:
        return f"{value * 1e3:.1f} ms"
    micros = value * 1e6
    return f"{micros:.0f} µs" if micros >= 100 or not micros else f"{micros:.3g} µs"


def share(value: float) -> str:
    return f"{100 * value:.1f} %"


def _choice(plan: Plan) -> str:
    wish, choices = plan.wish, plan.choices
    cut = f", messages of at most {choices.rows_per_message} rows" if choices.rows_per_message else ""
    by = f"reduced by {ALL_REDUCES[choices.all_reduce]}" if plan.ranks > 1 else "copied, for there is one rank"
    rows = f"{wish.m} rows" + (f" as {lengths(plan.tiles)}" if len(plan.tiles) > 1 else ", not cut")
    ranks = f"{plan.ranks} ranks" if plan.ranks != 1 else "1 rank"
    what = f"matmul_all_reduce m={wish.m} k={wish.k} n={wish.n} {wish.dtype} on {ranks} of {plan.machine}"
    return f"{what}\n{plan.schedule}: {rows}, {by}{cut}."


def _times(plan: Plan) -> str:
    gain = 1 - plan.predicted_s / plan.serial_s if plan.serial_s else 0.0
    line = f"Predicted {seconds(plan.predicted_s)}; serial {seconds(plan.serial_s)}, ideal {seconds(plan.ideal_s)}."
    if plan.schedule == "serial":
        return f"{line} Serial is kept: {why_serial(plan)}."
    if not plan.overlaps:
        beyond = "slower than" if gain < 0 else "no faster, beyond the noise, than"
        return f"{line} This is {beyond} serial; it was asked for by name."
    return f"{line} That is {share(gain)} less than serial, and {share(plan.ideal_gain)} of the ideal gain."


def why_serial(plan: Plan) -> str:
    """Why a plan leaves things as they are."""
    if any(rival.why_not == MEASURED_SLOWER for rival in plan.rivals):
        return "what is predicted to be faster was measured slower"
    by = f" by more than the noise, {share(plan.noise)}" if plan.noise else ""
    return f"no overlapped schedule is predicted to be faster{by}"


def _losses(plan: Plan) -> Iterator[str]:
    lost = sorted(((s, name) for name, s in plan.losses.items() if abs(s) > 1e-3 * plan.predicted_s), reverse=True)
    if not lost:
        return
    yield f"{seconds(max(plan.predicted_s - plan.ideal_s, 0.0))} above the ideal:"
    for value, name in lost:
        sign = "-" if value < 0 else ""
        yield f"  {sign + seconds(abs(value)):>10}  {name:<10}  {LOSSES.get(name, '')}".rstrip()


def _rivals(plan: Plan) -> Iterator[str]:
    if not plan.rivals:
        return
    width = max(len(rival.label) for rival in plan.rivals)
    yield "Not taken:"
    for rival in plan.rivals:
        measured = "" if rival.measured_s is None else f", measured {seconds(rival.measured_s)}"
        yield f"  {rival.label:<{width}}  predicted {seconds(rival.predicted_s)}{measured}: {rival.why_not}"


def _published(plan: Plan) -> Iterator[str]:
    if not plan.published:
        return
    yield f"Published for this wish: {seconds(plan.published['planned_s'])} (not measured here). As a gain over serial:"
    for reading in plan.published["readings"]:
        yield f"  {share(reading['gain'])} of {seconds(reading['serial_s'])}: {reading['basis']}"


def _steps(plan: Plan) -> Iterator[str]:
    if plan.schedule != "mc2":
        return
    yield "Steps of the rule:"
    for name, value in plan.steps.items():
        text = seconds(value) if name.endswith("_s") and isinstance(value, float) else str(value)
        yield f"  {name:<9} {text}"
