"""cache: `dovetail cache`: list and clear the files that Dovetail saves between runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli import output
from dovetail.cli.options import Json, nearest

if TYPE_CHECKING:
    from dovetail.store import Entry

SCHEMA = "dovetail.cache/1"
DAY_S = 86400.0
UNITS_S = {"days": DAY_S, "h": 3600.0, "min": 60.0, "s": 1.0}


def _known(given: Sequence[str] | None) -> list[str]:
    """Return the kinds asked for; default: all. Raise OperatorError, offering the nearest, for an unknown kind."""
    from dovetail.store.store import FOLDERS

    return [*dict.fromkeys(nearest(each, FOLDERS, "kind") for each in given or FOLDERS)]


Kinds = Annotated[
    list[str] | None,
    typer.Option(
        "--kind",
        help="machines, costs, schedules, programs, proofs, selections, settings, launches or libraries; several times "
        "for several. Default: all.",
        show_default=False,
    ),
]


def list_(kind: Kinds = None, json: Json = False) -> None:
    """List the saved files: probed machines, costs, tuned schedules, programs, proofs, selection tables, and compiled
    libraries."""
    from dovetail.store import entries

    found = list(entries(_known(kind)))
    _show(found, removed=False, json=json)


def clear(
    kind: Kinds = None,
    older_than: Annotated[
        float, typer.Option("--older-than", help="Only files this many days old or older.", min=0)
    ] = 0,
    json: Json = False,
) -> None:
    """Remove saved files, and list what was removed. Later runs probe, tune, prove and compile again as needed."""
    from dovetail.store import clear

    removed = clear(_known(kind), older_than * DAY_S)
    _show(removed, removed=True, json=json)


def group() -> typer.Typer:
    """Return the verbs of `cache`."""
    from dovetail.cli.operators import HELP

    made = typer.Typer(help="List or clear the files that Dovetail saves between runs.", context_settings=HELP)
    made.command("list")(list_)
    made.command("clear")(clear)
    return made


def _show(found: Sequence[Entry], *, removed: bool, json: bool) -> None:
    from dovetail.core import cache_dir
    from dovetail.report import num_bytes

    total, folder = sum(entry.num_bytes for entry in found), str(cache_dir())
    if json:
        files = [entry.to_json() for entry in found]
        output.emit({"schema": SCHEMA, "folder": folder, "removed": removed, "num_bytes": total, "files": files})
        return
    if found:
        rows = [[entry.kind, entry.about, num_bytes(entry.num_bytes), _age(entry.age_s)] for entry in found]
        output.table(["kind", "about", "size", "age"], rows, ["left", "left", "right", "right"])
    count = f"{len(found)} file{'' if len(found) == 1 else 's'}"
    print(f"{count}, {num_bytes(total)}, {'removed from' if removed else 'in'} {folder}")


def _age(age_s: float) -> str:
    """Return an age in words, in the largest unit of which it has at least two.

    >>> [_age(age_s) for age_s in (3.0, 119.0, 7200.0, 3 * 86400.0)]
    ['3 s', '119 s', '2 h', '3 days']
    """
    unit = next((name for name, unit_s in UNITS_S.items() if age_s >= 2 * unit_s), "s")
    return f"{age_s / UNITS_S[unit]:.0f} {unit}"
