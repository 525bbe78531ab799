"""probe: `dovetail probe`: measure this machine's links, and an operator's computations, on real ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli import options as opt
from dovetail.cli import output
from dovetail.cli.operators import OperatorRequest
from dovetail.core import OperatorError, save_json


def probe(
    request: OperatorRequest | None,
    ranks: Annotated[int, typer.Option("--ranks", help="Ranks to measure with.", min=1)] = 2,
    on: opt.On = "mpi",
    launch: opt.Launch = None,
    fresh: opt.Fresh = False,
    calls: Annotated[
        bool, typer.Option("--calls", help="Also measure the MPI library's blocking calls, for `trace replay`.")
    ] = False,
    json: opt.Json = False,
    out: Annotated[Path | None, typer.Option("--out", help="Write the machine to this file, too.")] = None,
) -> None:
    """Measure messages, collectives and an operator's computations on real ranks, and save the costs in the cache."""
    from dovetail.cli.machines import render
    from dovetail.run.executor import executor_on
    from dovetail.tuner.machines import probe as follow

    operator, executor = request.operator() if request else None, executor_on(on, launch=launch)
    if calls and executor.launched_by is None:
        raise OperatorError(f"--calls needs ranks that a command starts, not {on}", hint="leave --calls or --on out")
    with output.progress("probing") as say:
        machine = follow(ranks, operator, executor=executor, calls=calls, fresh=fresh, say=say)
    if out is not None:
        save_json(out, machine.to_json())
    output.emit(machine.to_json()) if json else print(render(machine))
    if out is not None and not json:
        print(f"\n{out}")
