"""`dovetail probe`: measure this machine's links, and an operator's compute, on real ranks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli import options as opt
from dovetail.cli import output
from dovetail.core import WishError, save_json

if TYPE_CHECKING:
    from dovetail.matmul import MatmulAllReduce

Operator = Annotated[
    str | None, typer.Argument(help="An operator to measure too, with --m, --k and --n.", callback=opt.known_operator)
]


def probe(
    operator: Operator = None,
    ranks: Annotated[int, typer.Option("--ranks", help="Ranks to measure with.", min=1)] = 2,
    m: Annotated[int | None, typer.Option("--m", help="Rows of A, where an operator is given.", min=0)] = None,
    k: Annotated[int | None, typer.Option("--k", help="Columns of A, summed over the ranks.", min=0)] = None,
    n: Annotated[int | None, typer.Option("--n", help="Columns of the result.", min=0)] = None,
    dtype: opt.Dtype = None,
    launch: opt.Launch = None,
    fresh: opt.Fresh = False,
    json: opt.Json = False,
    out: Annotated[Path | None, typer.Option("--out", help="Write the machine to this file, too.")] = None,
) -> None:
    """Measure messages, collectives and (with an operator) its compute on real ranks; the result is cached."""
    from dovetail.cli.machines import render
    from dovetail.cli.tuning import probed_machine, product_machine
    from dovetail.run.mpi import MpiExecutor

    wish = _wish(operator, m, k, n, dtype)
    runner = MpiExecutor(launch)
    with output.progress("probing") as say:
        machine = probed_machine(runner, ranks, fresh=fresh, say=say)
        if wish is not None:
            machine = product_machine(runner, machine, wish, fresh=fresh, say=say)
    if out is not None:
        save_json(out, machine.to_json())
    output.emit(machine.to_json()) if json else print(render(machine))
    if out is not None and not json:
        print(f"\n{out}")


def _wish(
    operator: str | None, m: int | None, k: int | None, n: int | None, dtype: str | None
) -> MatmulAllReduce | None:
    given = [size for size in (m, k, n) if size is not None]
    if operator is None and not given and dtype is None:
        return None
    if operator is None:
        raise WishError(
            "sizes without an operator", hint="dovetail probe matmul_all_reduce --m … --k … --n … --ranks …"
        )
    if m is None or k is None or n is None:
        raise WishError(f"{operator} needs --m, --k and --n", found=f"{len(given)} of them")
    return opt.wish_of(m, k, n, dtype, None)
