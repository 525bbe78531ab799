"""diff: `dovetail diff`: the differences between two programs, rank by rank and lane by lane."""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli import files, output
from dovetail.cli.options import Json

if TYPE_CHECKING:
    from dovetail.ir import Program

Change = dict[str, Any]
_MOST_COMPARED = 2000  # longer lanes are compared line by line, without aligning them


def diff(
    first: Annotated[str, typer.Argument(help="A program in any form that `show` reads; - for stdin.")],
    second: Annotated[str, typer.Argument(help="Another one, in any form.")],
    json: Json = False,
) -> int:
    """Compare two programs in any form: buffers, post-conditions, lanes and ops. Exit code 0 if equal, else 1.

    Names of programs and source lines are not compared.
    """
    changes = differences(files.program_of(first)[1], files.program_of(second)[1])
    if json:
        output.emit({"schema": "dovetail.diff/1", "same": not changes, "changes": changes})
    else:
        print("\n\n".join(map(_render, changes)) or "the same program")
    return 1 if changes else 0


def differences(first: Program, second: Program) -> list[Change]:
    """Return the differences as {"where", "removed", "added"}: the tables first, then each lane of each rank."""
    one, other = _sections(first), _sections(second)
    changes = []
    for where in dict.fromkeys([*one, *other]):
        old, new = one.get(where, []), other.get(where, [])
        if not where.startswith("rank "):  # a table, whose order means nothing
            both = set(old) & set(new)
            old, new = [x for x in old if x not in both], [x for x in new if x not in both]
        removed, added = _changed(old, new)
        if removed or added:
            changes.append({"where": where, "removed": removed, "added": added})
    return changes


def _sections(program: Program) -> dict[str, list[str]]:
    """Return lines of the text form by section (buffers, post-conditions, each lane), without source locations."""
    import numpy as np

    from dovetail.ir import to_text

    columns = dict(program.columns) | {"line": np.full(program.num_ops, -1)}
    found: dict[str, list[str]] = {}
    where = "ranks"
    for line in to_text(program.with_columns(columns, ())).splitlines():
        word, _, rest = line.strip().partition(" ")
        if line.startswith("program "):
            line = line.rpartition(" ")[2] + " ranks"
        elif line.startswith("rank "):
            where = line
            continue
        elif not line.startswith("  "):
            where, line = f"{word}s" if word != "post" else "post-conditions", rest
        found.setdefault(where, []).append(line.strip())
    return found


def _changed(old: list[str], new: list[str]) -> tuple[list[str], list[str]]:
    """Return the lines that only `old` has, and those that only `new` has, in order."""
    if max(len(old), len(new)) > _MOST_COMPARED:
        pairs = [pair for pair in zip(old, new, strict=False) if pair[0] != pair[1]]
        return [a for a, _ in pairs] + old[len(new) :], [b for _, b in pairs] + new[len(old) :]
    removed, added = list[str](), list[str]()
    for tag, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            removed += old[a:b]
            added += new[c:d]
    return removed, added


def _render(change: Change) -> str:
    lines = [change["where"], *(f"- {line}" for line in change["removed"]), *(f"+ {line}" for line in change["added"])]
    return "\n  ".join(lines)
