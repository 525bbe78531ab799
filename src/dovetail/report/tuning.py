"""tuning: the report of a tuning: table, losses and notes for a terminal, and the page beside the files of `tune`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from dovetail.core import EnvironmentFault, save_json
from dovetail.planner.explain import explain, title, why_serial
from dovetail.planner.rival import MEASURED_SLOWER, Rival, distinct
from dovetail.report.explain import IDEAL, space
from dovetail.report.summary import Losses, Provenance, Row, Summary
from dovetail.report.units import seconds
from dovetail.tuner import TuneResult

LITTLE = 0.03  # possible gains below this share of serial count as none


def write_tuning(result: TuneResult, out: Path, command: str = "") -> TuneResult:
    """Write the page of a tuning to the folder `out`, and its path into `tune.json` there; return the result.

    If the page cannot be written, the result has a note and no page.
    """
    from dovetail.report.html import write_page

    found = replace(result, report=out / "report.html")
    timelines, about = [found.plan.predicted, *found.planned.timelines[:1]], summary(found, command)
    try:
        write_page(
            out / "report.html", title=title(found.plan), timelines=timelines, program=found.plan.program, summary=about
        )
        save_json(out / "tune.json", found.to_json())
    except EnvironmentFault as error:
        fault = f"the report is incomplete: {error.what}, {error.found}"
        return replace(result, notes=(fault, *(note for note in result.notes if note != fault)))
    return found


def summary(result: TuneResult, command: str = "") -> Summary:
    """Return the Summary of a tuning, with rows for serial, the plan, rivals and ideal."""
    best = result.plan
    rows = [_serial_row(result), *_planned_row(result)]
    for rival in distinct(best.rivals):
        if not rival.schedule.is_serial:
            measured_s = None if rival.measured_s is None else _in_final(result, rival.measured_s)
            gain = None if measured_s is None else _share(result, measured_s)
            rows.append(Row(rival.label, rival.predicted_s, measured_s, gain, _why_not(result, rival)))
    rows.append(Row("ideal", best.ideal_s, result.ideal_s, 1.0 if result.has_shares else None, _ideal_why(result)))
    losses = [Losses("predicted", best.ideal_s, dict(best.losses))]
    if result.losses:
        losses.append(Losses("measured", result.ideal_s, result.losses))
    where = f"{result.machine.name}: {result.facts.get('cpu')}, {result.facts.get('mpi')}, {best.ranks} ranks"
    notes = (*_headline(result), *result.notes, *_reasons(result), *_earlier(result))
    return Summary(tuple(rows), tuple(losses), notes, Provenance(command, where, ""), space(best))


def _ideal_why(result: TuneResult) -> str:
    """Return what the ideal stands for: overlap only where it holds, on several ranks."""
    if result.is_ideal_disturbed:
        return "disturbed: the parts alone"
    return IDEAL if result.plan.ranks > 1 else "one rank: nothing to overlap"


def _headline(result: TuneResult) -> list[str]:
    """Return what came of it in one line: the speed-up, and whether the result is right."""
    ratio = result.serial.median_s / result.planned.median_s
    won = [] if result.keeps_serial else [f"{ratio:.2f} times as fast as serial."]
    said = " ".join([*won, *error_text(result)])
    return [said] if said else []


def error_text(result: TuneResult) -> list[str]:
    """Return the sentence on the largest error of the result; none if it was not checked."""
    planned = result.planned
    if planned.max_rel_error is None or planned.tolerance is None:
        return []
    return [f"Largest error {planned.max_rel_error:.2g} of the reference, {planned.tolerance:.2g} allowed."]


def why_kept(result: TuneResult) -> str:
    """Return why serial is kept, and whether an overlap could gain anything."""
    serial_s = result.judged.tried.get(result.judged.entry.serial, 0.0)
    why, (compute, net) = why_serial(result.plan, serial_s), result.cil
    least_s = (1 - LITTLE) * result.serial.median_s
    if not result.has_shares:
        return why if result.plan.ranks > 1 else f"{why}; on one rank there is nothing to overlap"
    if result.ideal_s >= least_s:
        room_s = max(result.serial.median_s - result.ideal_s, 0.0)
        return f"{why}; of {seconds(result.serial.median_s)} perfect overlap would hide {seconds(room_s)}"
    if result.adjusted_ideal_s < least_s:
        return why
    both = f"at the same time, compute takes {compute:.2f} and messages {net:.2f} times as long here"
    return f"{why}; {both}, so that overlap gains almost nothing"


def wrong(result: TuneResult) -> Iterator[str]:
    """Yield a sentence for each schedule of the final with wrong results."""
    for outcome in (result.serial,) if result.keeps_serial else (result.serial, result.planned):
        if outcome.is_wrong:
            yield wrong_text(outcome.name, outcome.max_rel_error, outcome.tolerance)


def wrong_text(name: str, error: float | None, tolerance: float | None) -> str:
    """Return the sentence that a result is wrong, with its error if known."""
    by = "" if error is None or tolerance is None else f": error {error:.2g}, {tolerance:.2g} allowed"
    return f"the result of '{name}' is wrong{by}"


def _reasons(result: TuneResult) -> list[str]:
    """Return the plan's explanation without its lists: rivals and losses have their own tables."""
    paragraphs = explain(result.plan).split("\n\n")
    return [text for text in paragraphs if not text.split("\n")[0].endswith(":")]


def _earlier(result: TuneResult) -> list[str]:
    """Return a sentence on where rivals' times come from, if they were not measured in the final."""
    if _before_s(result) is None:
        return []
    return ["Rivals ran in the first round only: their times are scaled by the plan's time in both."]


def _before_s(result: TuneResult) -> float | None:
    """Return the plan's seconds in the job that measured its rivals; None if that was the final."""
    found = result.judged.tried.get(result.judged.schedule)
    return None if found == result.planned.median_s else found


def _why_not(result: TuneResult, rival: Rival) -> str:
    """Return why a rival was not chosen, and in which round it was measured slower."""
    before_s = _before_s(result)
    if rival.why_not != MEASURED_SLOWER or rival.measured_s is None or before_s is None:
        return rival.why_not
    is_slower = rival.measured_s >= before_s
    return f"{MEASURED_SLOWER} in the first round" if is_slower else "slower in the final; this is the first round"


def _serial_row(result: TuneResult) -> Row:
    best, serial = result.plan, result.serial
    why = f"nothing overlapped, {best.operator.describe(best.serial, best.ranks)}"
    spread_s = serial.spread * serial.median_s
    gain = 0.0 if result.has_shares else None
    return Row("serial", best.serial_s, serial.median_s, gain, why, result.keeps_serial, spread_s=spread_s)


def _planned_row(result: TuneResult) -> list[Row]:
    best, planned = result.plan, result.planned
    if result.keeps_serial:
        return []
    what = str(best.schedule).removeprefix(best.family).removeprefix(", ")
    why = ", ".join(filter(None, [what, f"progress by {best.schedule.progress}"]))
    spread_s = planned.spread * planned.median_s
    name = f"serial, {best.schedule.get('by', '')}".removesuffix(", ") if best.schedule.is_serial else best.family
    return [Row(name, best.predicted_s, planned.median_s, result.ideal_gain, why, True, spread_s=spread_s)]


def _in_final(result: TuneResult, seconds: float) -> float:
    """Return what a time of the first round would be in the final, by the plan's time in both."""
    return seconds * result.planned.median_s / (_before_s(result) or result.planned.median_s)


def _share(result: TuneResult, seconds: float) -> float | None:
    """Return a schedule's share of the ideal gain; None if it was slower than serial, or if shares mean nothing."""
    won_s, room_s = result.serial.median_s - seconds, result.serial.median_s - result.ideal_s
    return won_s / room_s if result.has_shares and room_s > 0 and won_s >= 0 else None
