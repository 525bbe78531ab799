"""The page docs/cli.md, made from the command itself: `python tools/cli_reference.py > docs/cli.md`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import typer

from dovetail.cli import app
from dovetail.cli.operators import summary_of
from dovetail.ir.registry import SUBJECTS as KNOWN_SUBJECTS
from dovetail.planner import operator_class

OF_OPERATORS = {verb.name: verb for verb in app.OF_OPERATORS}
ALONE = {verb.alone for verb in app.OF_OPERATORS}
OF_SUBJECTS = {name: verb for verb in app.OF_OPERATORS for name in verb.subjects()}
OPERATORS = """## Operators

What `tune`, `probe` and `plan` take. A package adds its own by an entry point of the group `dovetail.operators`.
"""
SUBJECTS = """## Subjects

What `probe` takes by itself. A package adds its own by an entry point of the group `dovetail.subjects`.
"""

HEAD = """# The command

Made by `python tools/cli_reference.py`; a test holds it to the command.

Data goes to stdout, progress, notes and warnings to stderr; a bar is shown on a terminal only. With `--json` a verb
prints one document on one line, `schema` first, with units in its names. Colours honour `NO_COLOR` and `TERM=dumb`.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | the answer is no: a program that does not hold, a plan that cannot be, a product that is wrong |
| 2 | misuse, or something broken: a name, a file, a machine without a cost, an MPI, a disk, a rank that died |
| 130 | interrupted (143 by SIGTERM); ranks are ended too |

An error is one paragraph on stderr: what, where it was written, what was found, what to try. `--debug`, anywhere on
the line, adds the traceback; `--quiet` leaves progress and notes away.

| variable | meaning |
|---|---|
| `DOVETAIL_LAUNCH` | the command that starts ranks, with `{ranks}`, if `--launch` is not given |
| `DOVETAIL_CACHE` | cache folder; else `~/.cache/dovetail`. Only you may write to it |
| `DOVETAIL_SELECTION` | file of tuned collectives, in place of the one in the cache for this MPI and these hosts |
| `DOVETAIL_ARRIVE_S` | seconds to wait for the first rank; default 8; more for a launcher that queues |
| `OPENBLAS_NUM_THREADS` | BLAS threads of a rank; else the cores of its host, shared among the ranks there |

What other programs took of the ranks' cores while `tune` or `run` measured is said in one sentence where it was more
than 5 %, and always in `--json`: `foreign_load`, `steal` (by the hypervisor), `disturbed` (rounds; see how.md). Where
serial is kept, on one rank, and where the parts alone were disturbed, `ideal_gain` is null.

The field `schema` says what a file is. Wherever a plan is expected, the folder of `plan.json` will do; `-` is
stdin. After a failed run, `runs/` in the output folder keeps the reason, the ranks' output and their partial timelines.
"""


def commands() -> Iterator[tuple[str, Any]]:
    """Every command, by what is typed for it: verbs, and for verbs of operators one for each operator."""
    group: Any = typer.main.get_command(app.app)
    for name in group.list_commands(None):
        verb = group.get_command(None, name)
        if not hasattr(verb, "list_commands"):
            yield name, verb
            continue
        for inner in verb.list_commands(None):
            yield f"{name} {inner}", verb.get_command(None, inner)


def reference() -> str:
    """The whole page."""
    known = dict(commands())
    verbs = [text for name in app.ORDER for text in _verbs(name, known)]
    kinds = dict.fromkeys(name.split()[1] for name in known if name.split()[0] in OF_OPERATORS)
    alike: dict[str, list[str]] = {}
    for kind in kinds:
        if kind not in ALONE and kind not in OF_SUBJECTS:
            alike.setdefault(_operator(kind, known), []).append(kind)
    operators = [f"### {', '.join(names)}\n\n{text}" for text, names in alike.items()]
    subjects = [_subject(name, verb.name, known) for name, verb in OF_SUBJECTS.items()]
    return "\n".join([HEAD, *verbs, OPERATORS, *operators, SUBJECTS, *subjects])


def _verbs(name: str, known: dict[str, Any]) -> Iterator[str]:
    """A verb, or each of a verb's own."""
    if name in OF_OPERATORS:
        yield _of_operators(name, known)
        return
    yield from (_verb(key, command) for key, command in known.items() if key.split()[0] == name)


def _verb(name: str, command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    shown = "".join(f" {p.name.upper()}" if p.required else f" [{p.name.upper()}]" for p in arguments)
    rows = [f"| `{p.name.upper()}` | {p.help} | |" for p in arguments]
    return _told(name, command.help, shown, rows, [p for p in command.params if p.param_type_name == "option"])


def _of_operators(name: str, known: dict[str, Any]) -> str:
    """A verb with the options that it has for any operator."""
    verb = OF_OPERATORS[name]
    operator, command = next((key.split()[1], found) for key, found in known.items() if key.startswith(f"{name} "))
    theirs = set() if operator == verb.alone else {option.name for option in verb.options(operator_class(operator))}
    own = [p for p in command.params if p.name not in theirs]
    rows = ["| `OPERATOR` | One of those below. | |"]
    return _told(name, inspect.getdoc(verb.run), " [OPERATOR]" if verb.alone else " OPERATOR", rows, own)


def _operator(name: str, known: dict[str, Any]) -> str:
    """What may be said of an operator, by whichever verb."""
    kind = operator_class(name)
    verbs = [verb for verb in OF_OPERATORS if f"{verb} {name}" in known]
    params = {p.name: p for verb in verbs for p in known[f"{verb} {name}"].params}
    asked = {option.name: option for verb in verbs for option in OF_OPERATORS[verb].options(kind)}
    about = summary_of(kind).replace(f" {name}", "")
    lines = [about, "", f"With {', '.join(f'`{verb}`' for verb in verbs)}.", "", "| | | default |", "|---|---|---|"]
    return "\n".join([*lines, *(_row(params[name], option.needed) for name, option in asked.items()), ""])


def _subject(name: str, verb: str, known: dict[str, Any]) -> str:
    """A subject with all its options."""
    about = inspect.getdoc(OF_SUBJECTS[name].of_subjects)
    head = [f"### {name}\n", summary_of(KNOWN_SUBJECTS[name]), "", about, "", f"    dovetail {verb} {name}", ""]
    return "\n".join([*head, "| | | default |", "|---|---|---|", *map(_row, known[f"{verb} {name}"].params), ""])


def _told(name: str, about: str, shown: str, rows: list[str], options: list[Any]) -> str:
    needed = "".join(f" {p.opts[0]} …" for p in options if p.required)
    lines = [f"## {name}\n", about.strip(), "", f"    dovetail {name}{shown}{needed}", "", "| | | default |"]
    return "\n".join([*lines, "|---|---|---|", *rows, *map(_row, options), ""])


def _row(param: Any, needed: bool = False) -> str:
    return f"| `{param.opts[0]}` | {param.help} | {_default(param, needed)} |"


def _default(param: Any, needed: bool) -> str:
    """`needed`: by what the verb works on, though this verb may do without."""
    if needed or param.required:
        return "needed"
    return "" if param.default is None or param.default is False else f"`{param.default}`"


if __name__ == "__main__":
    print(reference(), end="")
