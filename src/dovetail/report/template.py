"""template: what pages and trace files share: the files of `page/`, provenance, a program per timeline."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import TypeVar

from dovetail.ir import Program
from dovetail.timeline import Timeline

P = TypeVar("P")


def part(*names: str) -> str:
    """Return the text of files of `page/`, one after another."""
    folder = files("dovetail.report") / "page"
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in names)


def fill(template: str, parts: Mapping[str, str]) -> str:
    """Return the template with each `{{name}}` replaced by its part; braces inside the parts stay as they are."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], part(template))


def provenance_list(known: Mapping[str, str]) -> str:
    """Return (name, text) pairs as an HTML list; "" if there are none.

    >>> provenance_list({"commit": "<e40cb77>"})
    '<dl class="provenance"><div><dt>commit</dt><dd>&lt;e40cb77&gt;</dd></div></dl>'
    """
    rows = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in known.items())
    return f'<dl class="provenance">{rows}</dl>' if rows else ""


def programs_of(
    timelines: Sequence[Timeline], program: Program | Sequence[P | Program | None] | None
) -> list[P | Program | None]:
    """Return the program of each timeline from one for all, one for each, or none.

    Raises ValueError if the numbers of programs and timelines differ.
    """
    if program is None or isinstance(program, Program):
        return [program] * len(timelines)
    if len(program) != len(timelines):
        raise ValueError(f"{len(program)} programs for {len(timelines)} timelines")
    return list(program)
