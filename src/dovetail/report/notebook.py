"""notebook: show plans, tune results and timelines as text, and in notebooks as tables and pictures."""

from __future__ import annotations

from base64 import b64encode
from html import escape

from dovetail.planner import Plan
from dovetail.planner.explain import title
from dovetail.report.explain import plan_summary
from dovetail.report.picture import svg
from dovetail.report.summary import Summary
from dovetail.report.tables import summary_cells, summary_table
from dovetail.report.tuning import summary
from dovetail.timeline import Timeline
from dovetail.tuner import TuneResult


class Explanation(str):
    """Text that a notebook shows as tables and pictures, given by `html`."""

    __slots__ = ("html",)
    html: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return str(self)


def explain(what: Plan | TuneResult | Timeline) -> Explanation:
    """Explain a plan, a tune result or a timeline.

    Parameters
    ----------
    what : Plan, TuneResult or Timeline
        A plan is explained by its times, losses and rivals (as `print(plan)` does), a result by its table and notes.

    Returns
    -------
    Explanation
        A string. In a notebook it shows the table of schedules, and the timeline as a picture.

    >>> import dovetail as dt
    >>> made = dt.plan(dt.MatmulAllReduce(4096, 3072, 8192, "float16"), "atlas-a2-8", schedule="mc2", contention=1.0)
    >>> print(explain(made).splitlines()[0])
    matmul_all_reduce 4096 × 24576 × 8192 float16 on 8 ranks of atlas-a2-8
    """
    if isinstance(what, TuneResult):
        found = summary(what)
        text = "\n\n".join([summary_table(found), *found.notes])
    else:
        text = str(what)
    explained = Explanation(text)
    explained.html = html(what)
    return explained


def html(what: Plan | TuneResult | Timeline) -> str:
    """Return the table of a plan or a tune result, and a picture of the timelines."""
    if isinstance(what, Timeline):
        return _picture(svg([what]), repr(what))
    plan, measured = (what.plan, what.planned.timelines[:1]) if isinstance(what, TuneResult) else (what, ())
    table = _table(summary(what) if isinstance(what, TuneResult) else plan_summary(what))
    picture = _picture(svg([plan.predicted, *measured], plan.program), f"timeline of {title(plan)}")
    return f"<h4>{escape(title(plan))}</h4>\n{table}\n{picture}"


def _table(found: Summary) -> str:
    headers, rows, aligns = summary_cells(found)
    head = "".join(f"<th>{escape(each)}</th>" for each in headers)
    lines = [
        "".join(f'<td style="text-align: {side}">{escape(cell)}</td>' for cell, side in zip(row, aligns, strict=True))
        for row in rows
    ]
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _picture(drawn: str, name: str) -> str:
    """Return an SVG as an <img>, so that its style applies only within it."""
    return f'<img alt="{escape(name)}" src="data:image/svg+xml;base64,{b64encode(drawn.encode()).decode()}">'
