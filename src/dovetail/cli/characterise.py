"""characterise: `dovetail probe matmul`: the cost of cutting a computation into pieces, and of traffic beside it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from dovetail.cli import options as opt
from dovetail.cli import output
from dovetail.cli.operators import OperatorRequest
from dovetail.core import save_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dovetail.ir import Subject


def characterise(
    request: OperatorRequest,
    ranks: Annotated[int, typer.Option("--ranks", help="Ranks to measure with.", min=1)] = 2,
    on: opt.On = "mpi",
    launch: opt.Launch = None,
    fresh: opt.Fresh = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw the curves: a page (.html, or a folder), .svg or .png.")
    ] = None,
    json: opt.Json = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the machine, with these costs, to this file.")
    ] = None,
) -> None:
    """Measure on real ranks what cutting the computation costs (DIL), and how it and messages slow each other (CIL).

    --out writes a machine with the resulting curves, for `plan --machine FILE`.
    """
    from dovetail.prober import characterise as measure
    from dovetail.report import Provenance, characteristics_text, write_characteristics
    from dovetail.run.executor import executor_on
    from dovetail.tuner.machines import machine_of

    points = cast("Sequence[Subject]", request.kind.points(**request.given))  # here `kind` is a class of subjects
    executor = executor_on(on, launch=launch)
    sizes = f"{len(points)} size{'s' if len(points) > 1 else ''} of {request.kind.name}"
    output.note(f"{sizes} on {ranks} ranks; a few seconds each.")
    with output.progress("probing") as say:
        machine = machine_of(executor, ranks, fresh=fresh, say=say)
        machine, found = measure(executor, machine, points, ranks, say)
    if out is not None:
        save_json(out, machine.to_json())
    if json:
        output.emit(found.to_json())
    else:
        print(characteristics_text(found, terminal=output.is_terminal(), width=output.width()) + "\n")
    if plot is not None:  # last: the figures are printed even if the plot fails
        plot = write_characteristics(plot, found, Provenance(shlex.join(["dovetail", *sys.argv[1:]]), machine.name))
    for path in (out, plot):
        if path is not None and not json:
            print(path)
