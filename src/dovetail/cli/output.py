"""output: print one JSON document or a table on stdout; progress, notes and warnings on stderr."""

from __future__ import annotations

import json
import os
import shutil
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Literal

from dovetail.core import Say

quiet = False  # set once by `main` from --quiet


def emit(document: Mapping[str, Any]) -> None:
    """Print one JSON document, on one line; its first key is `schema`."""
    assert next(iter(document)) == "schema", "a document begins with its schema"
    print(json.dumps(document, default=_plain))


def table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], aligns: Sequence[Literal["left", "right"]] = ()
) -> None:
    """Print a table, with colours on a terminal that has them."""
    from dovetail.report import render_table

    print(render_table(headers, rows, aligns, terminal=is_terminal(), width=width()))


def note(text: str) -> None:
    """Print a remark on stderr, unless --quiet is given."""
    if not quiet:
        print(text, file=sys.stderr)


def warn(text: str) -> None:
    """Print a warning on stderr, even with --quiet."""
    print(f"Warning: {text}", file=sys.stderr)


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Print Python's warnings that Dovetail issues as `warn` does, each text once. Other warnings stay Python's own."""
    before, printed = warnings.showwarning, set[str]()

    def show(message: Warning | str, *where: Any, **more: Any) -> None:
        if not _is_ours(sys._getframe(1)):
            before(message, *where, **more)
        elif (text := str(message)) not in printed:
            printed.add(text)
            warn(text)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = before


def _is_ours(frame: FrameType | None) -> bool:
    """Return whether a module of Dovetail issued the warning that this frame, of the module `warnings`, handles."""
    while frame is not None and frame.f_globals.get("__name__") == "warnings":
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__")).startswith(f"{__package__.partition('.')[0]}.")


def is_terminal() -> bool:
    """Return whether stdout is a terminal with colours."""
    from dovetail.report import is_colour_terminal

    return is_colour_terminal(sys.stdout)


def width() -> int:
    """Return the width of the terminal in characters."""
    return shutil.get_terminal_size((100, 24)).columns


@contextmanager
def progress(title: str) -> Iterator[Say]:
    """Show a progress bar on stderr if stderr is a terminal; yield the function that updates it."""
    if quiet or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda what, done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<36}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda what, done: bar.update(task, description=what, completed=done)


def _plain(value: Any) -> Any:
    """Convert a value without a JSON form: NumPy numbers and arrays to Python's, anything else to text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
