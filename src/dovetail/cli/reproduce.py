"""reproduce: `dovetail reproduce`: the figures that the sources print, ours beside them, and a verdict each."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli import output
from dovetail.cli.options import Json

NAMES = "mc2, ficco, mscclang, goumas, tsukuba, or all"


def reproduce(
    source: Annotated[str, typer.Argument(help=f"The source: {NAMES}.")] = "all",
    html: Annotated[Path | None, typer.Option("--html", help="Write the rows and curves to this page.")] = None,
    json: Json = False,
) -> None:
    """Compare the figures that the sources print with ours: computed, counted or simulated; nothing is measured."""
    from dovetail.report.reproductions import reproduction_text, write_reproduction
    from dovetail.report.summary import Provenance
    from dovetail.reproduce import reproduce as reproduced

    with output.progress("reproducing") as say:
        found = reproduced(source, say)
    if html:
        command = f"dovetail reproduce {source} --html {shlex.quote(str(html))}"
        write_reproduction(html, found, Provenance(command, "", ""))
    if json:
        output.emit(found.to_json())
        return
    print(reproduction_text(found, terminal=output.is_terminal(), width=output.width()))
    if html:
        print(f"\n{html}")
