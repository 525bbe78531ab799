"""Sphinx's settings for the site. No page asks the network for anything: fonts, scripts and pictures are its own."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import dovetail

project = "Dovetail"
author = copyright = "The Dovetail developers"
version = release = dovetail.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = []
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}

html_theme = "furo"
html_title = f"Dovetail {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_show_sphinx = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1f5f8b", "color-brand-content": "#1f5f8b"},
    "dark_css_variables": {"color-brand-primary": "#7fb8e0", "color-brand-content": "#7fb8e0"},
}
pygments_style = "friendly"
pygments_dark_style = "github-dark"

myst_heading_anchors = 4
highlight_language = "none"  # of indented blocks: commands, output, fragments

default_role = "literal"  # `name` in a docstring, as everywhere in this project
napoleon_google_docstring = False
napoleon_use_rtype = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the NumPy sections name the types in words
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
suppress_warnings = ["ref.python"]  # a class stands on the first page and in its room


def tables(_app: Any, _what: str, _name: str, _found: Any, _options: Any, lines: list[str]) -> None:
    """Turn the Markdown tables of a docstring into tables of Sphinx."""
    made: list[str] = []
    for is_table, group in groupby(lines, lambda line: line.startswith("|") and line.rstrip().endswith("|")):
        rows = list(group)
        made += _list_table(rows) if is_table and len(rows) > 2 else rows
    lines[:] = made


def _list_table(rows: list[str]) -> list[str]:
    """Return the directive for the rows of a Markdown table."""
    cells = [[cell.strip() for cell in row.strip().strip("|").split("|")] for row in rows if not set(row) <= set("|- ")]
    head = ["", ".. list-table::", "   :header-rows: 1", ""]
    return [*head, *(f"   {'*' if i == 0 else ' '} - {cell}" for row in cells for i, cell in enumerate(row)), ""]


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", tables)
