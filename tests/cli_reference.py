"""The page docs/cli.md, made from the command itself: `python tests/cli_reference.py > docs/cli.md`."""

from __future__ import annotations

from typing import Any

import typer

from dovetail.cli import app

HEAD = """# The command

Made by `python tests/cli_reference.py`; a test holds it to the command.

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
| `DOVETAIL_LAUNCH` | the command that starts ranks, with `{ranks}`, where `--launch` is not given |
| `DOVETAIL_CACHE` | folder of probed machines and of the compiled MPI shim; else `~/.cache/dovetail` |
| `DOVETAIL_SELECTION` | file of tuned collectives, in place of the one in the cache for this MPI and these hosts |
| `DOVETAIL_ARRIVE_S` | seconds to wait for the first rank, 8 unless said: more for a launcher that queues |
| `OPENBLAS_NUM_THREADS` | BLAS threads of a rank; else the cores of its host, shared among the ranks there |

What other programs took of the ranks' cores while `tune` or `run` measured is said in one sentence where it was more
than 5 %, and always in `--json`: `foreign_load`, `steal` (by the hypervisor), `disturbed` (rounds; see how.md). Where
serial is kept, `ideal_gain` is null.

Files are told apart by their `schema`. Where a plan is wanted, the folder that holds `plan.json` will do; `-` is
stdin. After a failed run, `runs/` in the output folder keeps the reason, the ranks' output and their partial timelines.
"""


def reference() -> str:
    """The whole page."""
    group = typer.main.get_command(app.app)
    verbs = [_verb(name, command) for name, command in group.commands.items()]
    return "\n".join([HEAD, *verbs])


def _verb(name: str, command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    shown = "".join(f" {p.name.upper()}" if p.required else f" [{p.name.upper()}]" for p in arguments)
    needed = "".join(f" {p.opts[0]} …" for p in options if p.required)
    rows = [f"| `{p.name.upper()}` | {p.help} | |" for p in arguments]
    rows += [f"| `{p.opts[0]}` | {p.help} | {_default(p)} |" for p in options]
    lines = [f"## {name}\n", command.help.strip(), "", f"    dovetail {name}{shown}{needed}", "", "| | | default |"]
    return "\n".join([*lines, "|---|---|---|", *rows, ""])


def _default(param: Any) -> str:
    if param.required:
        return "needed"
    return "" if param.default is None or param.default is False else f"`{param.default}`"


if __name__ == "__main__":
    print(reference(), end="")
