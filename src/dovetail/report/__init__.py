"""report: output for people and other tools: tables, the HTML page, plots, pictures, traces."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dovetail.report.summary import Losses, Provenance, Row, Summary
from dovetail.report.tables import is_colour_terminal, plain_table, render_table, rich_table, summary_table
from dovetail.report.units import num_bytes, percent, seconds, seconds_column, significant

if TYPE_CHECKING:
    from dovetail.report.characteristics import characteristics_text, write_characteristics
    from dovetail.report.html import page, write_page
    from dovetail.report.perfetto import chrome_trace, write_perfetto
    from dovetail.report.picture import svg, write_svg
    from dovetail.report.plots import curves_page, write_curves

# These are imported at first use, since printing a table needs none of them.
_LATER = {
    "characteristics_text": "characteristics",
    "write_characteristics": "characteristics",
    "page": "html",
    "write_page": "html",
    "chrome_trace": "perfetto",
    "write_perfetto": "perfetto",
    "svg": "picture",
    "write_svg": "picture",
    "curves_page": "plots",
    "write_curves": "plots",
}

__all__ = [
    "Losses",
    "Provenance",
    "Row",
    "Summary",
    "characteristics_text",
    "chrome_trace",
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
    "write_characteristics",
    "write_curves",
    "write_page",
    "write_perfetto",
    "write_svg",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'dovetail.report' has no attribute '{name}'")
    found = globals()[name] = getattr(import_module(f"dovetail.report.{_LATER[name]}"), name)
    return found
