"""report: what is made for eyes and for other tools: tables, the HTML page, plots, pictures, traces."""

from dovetail.report.counterexample import counterexample
from dovetail.report.html import page, write_page
from dovetail.report.perfetto import chrome_trace, write_perfetto
from dovetail.report.picture import svg, write_svg
from dovetail.report.plots import curves_page, write_curves
from dovetail.report.summary import Losses, Provenance, Row, Summary
from dovetail.report.tables import is_colour_terminal, plain_table, render_table, rich_table, summary_table
from dovetail.report.units import num_bytes, percent, seconds, seconds_column, significant

__all__ = [
    "Losses",
    "Provenance",
    "Row",
    "Summary",
    "chrome_trace",
    "counterexample",
    "curves_page",
    "is_colour_terminal",
    "num_bytes",
    "page",
    "percent",
    "plain_table",
    "render_table",
    "rich_table",
    "seconds",
    "seconds_column",
    "significant",
    "summary_table",
    "svg",
    "write_curves",
    "write_page",
    "write_perfetto",
    "write_svg",
]
