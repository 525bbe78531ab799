"""launch: start a program as ranks of this host, without MPI."""

from __future__ import annotations

from typing import Annotated

import typer

from dovetail.cli import output
from dovetail.core import DovetailError


def launch(
    context: typer.Context, ranks: Annotated[int, typer.Option("--ranks", "-n", help="Ranks to start.", min=1)] = 2
) -> int:
    """Start a command as ranks of this host, which meet by dovetail.world(); no MPI is needed.

    The command stands after `--`. Its ranks' output is passed on. The exit code is that of the first rank that failed;
    the others are ended then.
    """
    from dovetail.run.shared.launch import run_ranks

    command = list(context.args)
    if not command:
        raise DovetailError("no command to start", hint="dovetail launch --ranks 2 -- python program.py")
    code, failed = run_ranks(command, ranks)
    if failed:
        output.warn(failed)
    return code
