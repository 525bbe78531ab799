"""Options that several verbs share, and what their values mean."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.core import WishError
from dovetail.ir.collectives import collectives_that

if TYPE_CHECKING:
    from dovetail.machine import Machine
    from dovetail.matmul import MatmulAllReduce

OPERATORS = ("matmul_all_reduce",)
COLLECTIVES = collectives_that("chosen")
SCHEDULES = ("auto", "serial", "uniform", "mc2", "optimal")
READINGS = ("max", "min")
ALL_REDUCES = ("auto", "library", "exchange", "ring")
DTYPES = ("float16", "bfloat16", "float32", "float64")


def nearest(value: str, known: Iterable[str], what: str) -> str:
    """`value` if it is known, else a WishError that offers the nearest.

    >>> nearest("mc2", SCHEDULES, "schedule")
    'mc2'
    >>> nearest("optimum", SCHEDULES, "schedule")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.WishError: no schedule 'optimum'
      found       schedules auto, serial, uniform, mc2, optimal
      try         did you mean 'optimal'?
    """
    names = tuple(known)
    if value in names:
        return value
    close = difflib.get_close_matches(value, names, 1, cutoff=0.4)
    hint = f"did you mean '{close[0]}'?" if close else "one of those"
    raise WishError(f"no {what} '{value}'", found=f"{what}s {', '.join(names)}", hint=hint)


def _one_of(known: Iterable[str], what: str) -> Callable[[str | None], str | None]:
    return lambda value: None if value is None else nearest(value, known, what)


def known_operator(value: str | None) -> str | None:
    """The operator of that name, or a WishError that offers the nearest."""
    return None if value is None else nearest(value, OPERATORS, "operator")


def known_collective(value: str) -> str:
    """The collective of that name, or a WishError that offers the nearest."""
    return nearest(value, COLLECTIVES, "collective")


def known_wish(value: str) -> str:
    """The operator or the collective of that name, or a WishError that offers the nearest."""
    return nearest(value, (*OPERATORS, *COLLECTIVES), "operator or collective")


def _option(*names: str, help: str, **fields: Any) -> Any:
    return typer.Option(*names, help=help, show_default=fields.pop("show_default", True), **fields)


Operator = Annotated[str, typer.Argument(help="The operator, e.g. matmul_all_reduce.", callback=known_operator)]
WishName = Annotated[
    str,
    typer.Argument(help="An operator, e.g. matmul_all_reduce, or a collective, e.g. all_reduce.", callback=known_wish),
]
CollectiveName = Annotated[
    str, typer.Argument(help=f"The collective: {', '.join(COLLECTIVES)}.", callback=known_collective)
]
M = Annotated[int, _option("--m", help="Rows of A and of the result.", min=0)]
K = Annotated[
    int, _option("--k", help="Columns of A, summed over the ranks unless the machine counts it per rank.", min=0)
]
N = Annotated[int, _option("--n", help="Columns of the result.", min=0)]
MaybeM = Annotated[int | None, _option("--m", help="Of an operator: rows of A and of the result.", min=0)]
MaybeK = Annotated[int | None, _option("--k", help="Of an operator: columns of A, summed over the ranks.", min=0)]
MaybeN = Annotated[int | None, _option("--n", help="Of an operator: columns of the result.", min=0)]
Nodes = Annotated[
    int | None, _option("--nodes", help="Nodes that the ranks share evenly; as found unless said.", min=1)
]
Least = Annotated[
    str | None, _option("--min", help="Of a collective: least size, the larger of a rank's input and output; 1K.")
]
Most = Annotated[str | None, _option("--max", help="Of a collective: greatest size; 16M.")]
Factor = Annotated[float | None, _option("--factor", help="Each size is so many times the one before; 4.")]
Ranks = Annotated[int | None, _option("--ranks", help="Ranks; all of the machine unless said.", min=1)]
Dtype = Annotated[
    str | None,
    _option(
        "--dtype",
        help=f"Element type: {', '.join(DTYPES)}. Default: the machine's, else float32.",
        callback=_one_of(DTYPES, "dtype"),
    ),
]
MachineName = Annotated[
    str | None, _option("--machine", help="A preset, a machine's JSON file, or (default) the probed machine.")
]
Schedule = Annotated[
    str,
    _option("--schedule", help=f"Family to keep to: {', '.join(SCHEDULES)}.", callback=_one_of(SCHEDULES, "schedule")),
]
Reading = Annotated[
    str,
    _option("--reading", help="Rule of MC2's short block: max or min.", callback=_one_of(READINGS, "reading")),
]
Contention = Annotated[
    float | None, _option("--contention", help="One factor on communication instead of the measured slow-downs.")
]
Floor = Annotated[int | None, _option("--floor", help="Least rows of a tile of the optimum.", min=1)]
Align = Annotated[int | None, _option("--align", help="Rows that tile lengths of the optimum are multiples of.", min=1)]
AllReduce = Annotated[
    str,
    _option(
        "--all-reduce",
        help=f"How each tile is reduced: {', '.join(ALL_REDUCES)}.",
        callback=_one_of(ALL_REDUCES, "all-reduce"),
    ),
]
Extrapolate = Annotated[
    bool, _option("--extrapolate", help="Allow sizes outside what was measured.", show_default=False)
]
Json = Annotated[bool, _option("--json", help="Print one JSON document.", show_default=False)]
Launch = Annotated[
    str | None,
    _option("--launch", help="Command that starts {ranks} ranks; default $DOVETAIL_LAUNCH, else the mpiexec at hand."),
]
Rounds = Annotated[int, _option("--rounds", help="Rounds, at least, in which the schedules are run in turn.", min=1)]
Budget = Annotated[float, _option("--budget", help="Seconds after which no further round begins.", min=0.0)]
Seed = Annotated[int | None, _option("--seed", help="Makes the random inputs; fresh ones unless given.", min=0)]
Fresh = Annotated[bool, _option("--fresh", help="Measure anew, whatever the cache holds.", show_default=False)]
Out = Annotated[Path | None, _option("--out", help="Folder for the plan, the timelines and the page.", file_okay=False)]


def wish_of(m: int, k: int, n: int, dtype: str | None, machine: Machine | None) -> MatmulAllReduce:
    """The wish; its dtype is the machine's unless said, else float32."""
    from dovetail.matmul import MatmulAllReduce

    usual = machine.facts.get("dtype", "float32") if machine else "float32"
    return MatmulAllReduce(m, k, n, dtype or str(usual))
