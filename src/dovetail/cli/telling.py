"""What a tuning says: the table, the losses and the notes, for a terminal or the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.plan import Plan
from dovetail.plan.explain import why_serial
from dovetail.report import Losses, Provenance, Row, Summary, seconds

if TYPE_CHECKING:
    from dovetail.cli.tuning import TuneResult

LITTLE = 0.03  # of serial: what may be gained against contention, and nobody would notice


def title(best: Plan) -> str:
    """What the page is about."""
    w = best.wish
    return f"matmul_all_reduce {w.m} × {w.k} × {w.n} {w.dtype}, {best.ranks} ranks"


def summary(result: TuneResult, command: str = "") -> Summary:
    """The table, losses and notes of a tuning, for a terminal or the page."""
    best, m = result.plan, result.measured
    rows = [_serial_row(result), *_planned_row(result)]
    for rival in best.rivals:
        if rival.schedule != "serial":
            gain = None if rival.measured_s is None else _share(result, rival.measured_s)
            rows.append(Row(rival.label, rival.predicted_s, rival.measured_s, gain, rival.why_not))
    rows.append(Row("ideal", best.ideal_s, m.ideal_s, 1.0, "the longer side alone, all else hidden"))
    losses = [Losses("predicted", best.ideal_s, dict(best.losses))]
    if result.losses:
        losses.append(Losses("measured", m.ideal_s, result.losses))
    facts = m.result.facts
    where = f"{result.machine.name}: {facts.get('cpu')}, {facts.get('mpi')}, {best.ranks} ranks"
    notes = (*result.notes, *_reasons(best), *_earlier(result))
    return Summary(tuple(rows), tuple(losses), notes, Provenance(command, where, ""))


def why_kept(result: TuneResult) -> str:
    """Why serial is kept, and whether there was anything to gain."""
    why, (compute, net) = why_serial(result.plan), result.cil
    if result.adjusted_ideal_s < (1 - LITTLE) * result.measured.serial.median_s:
        return why
    both = f"side by side compute takes {compute:.2f} and messages {net:.2f} times as long here"
    return f"{why}; {both}, so that there is next to nothing to hide"


def _reasons(best: Plan) -> list[str]:
    """The plan's explanation without its lists: rivals and losses have tables of their own."""
    paragraphs = best.explain().split("\n\n")
    return [text for text in paragraphs if not text.split("\n")[0].endswith(":")]


def _earlier(result: TuneResult) -> list[str]:
    """Rivals were measured before the plan was settled: say what the plan took then."""
    same = [t.seconds for t in result.measured.tried if t.choices == result.plan.choices]
    text = "Rivals were measured in an earlier interleaved job, in which the plan took"
    return [f"{text} {seconds(same[0])}."] if same else []


def _serial_row(result: TuneResult) -> Row:
    best, serial = result.plan, result.measured.serial
    why = "compute, then the library's all_reduce"
    spread_s = serial.spread * serial.median_s
    return Row("serial", best.serial_s, serial.median_s, 0.0, why, result.keeps_serial, spread_s=spread_s)


def _planned_row(result: TuneResult) -> list[Row]:
    best, planned = result.plan, result.measured.planned
    if result.keeps_serial:
        return []
    count, by = len(best.tiles), best.choices.all_reduce
    why = f"{count} tile{'s' * (count != 1)}, {by}, progress by {best.choices.progress}"
    spread_s = planned.spread * planned.median_s
    gain = result.ideal_gain
    name = f"{best.schedule}, {by}" if best.schedule == "serial" else best.schedule
    return [Row(name, best.predicted_s, planned.median_s, gain, why, True, spread_s=spread_s)]


def _share(result: TuneResult, seconds: float) -> float | None:
    """Of the ideal gain, by the ratio to serial in the job that measured a rival; none where that was slower."""
    m = result.measured
    serial_s = next((tried.seconds for tried in m.tried if tried.schedule == "serial"), m.serial.median_s)
    won_s, room_s = m.serial.median_s * (1 - seconds / serial_s), m.serial.median_s - m.ideal_s
    return won_s / room_s if room_s > 0 and won_s >= 0 else None
