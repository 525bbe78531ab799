"""explain: the summary and the HTML page of a plan: the chosen schedule, its rivals and its losses."""

from __future__ import annotations

from pathlib import Path

from dovetail.core import save_json
from dovetail.ir import Space
from dovetail.planner import Plan
from dovetail.planner.explain import explain, title
from dovetail.planner.rival import distinct
from dovetail.report.summary import Losses, Provenance, Row, Summary

IDEAL = "perfect overlap"


def plan_summary(plan: Plan, command: str = "") -> Summary:
    room = plan.serial_s - plan.ideal_s
    rows = [Row(plan.family, plan.predicted_s, None, max(plan.ideal_gain, 0.0), "chosen", True)]
    for rival in distinct(plan.rivals):
        gain = (plan.serial_s - rival.predicted_s) / room if room > 0 else None
        rows.append(Row(rival.label, rival.predicted_s, rival.measured_s, gain, rival.why_not))
    rows.append(Row("ideal", plan.ideal_s, None, 1.0, IDEAL))
    losses = (Losses("predicted", plan.ideal_s, dict(plan.losses)),)
    reasons, made = tuple(explain(plan).split("\n\n")), Provenance(command, plan.machine, "")
    return Summary(tuple(rows), losses, reasons, made, space(plan))


def space(plan: Plan) -> Space | None:
    """Return the iteration space of a plan, if its operator has one."""
    return plan.operator.space(plan.schedule, plan.ranks)


def write_plan_page(plan: Plan, path: Path, command: str = "") -> Path:
    """Write the page of a plan: its table, its reasons and its predicted timeline."""
    from dovetail.report.html import write_page

    summary = plan_summary(plan, command)
    return write_page(path, title=title(plan), timelines=[plan.predicted], program=plan.program, summary=summary)


def write_plan(plan: Plan, out: Path, command: str = "") -> Path:
    """Write the plan to the folder `out`, then its timeline and its page; return the page's path."""
    save_json(out / "plan.json", plan.to_json())
    save_json(out / "predicted.json", plan.predicted.to_json())
    return write_plan_page(plan, out / "report.html", command)
