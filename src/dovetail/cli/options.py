"""options: options that several verbs share, and checks of their values."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from dovetail.core import OperatorError
from dovetail.ir.collectives import collectives_that

TUNED_KINDS = collectives_that("chosen")
DTYPES = ("float16", "bfloat16", "float32", "float64")


def nearest(value: str, known: Iterable[str], what: str) -> str:
    """Return `value` if it is known; else raise OperatorError, offering the nearest.

    >>> nearest("mc2", ("auto", "mc2", "optimal"), "schedule")
    'mc2'
    >>> nearest("optimum", ("auto", "mc2", "optimal"), "schedule")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.OperatorError: no schedule 'optimum'
      found       schedules auto, mc2, optimal
      try         did you mean 'optimal'?
    """
    names = tuple(known)
    if value in names:
        return value
    close = difflib.get_close_matches(value, names, 1, cutoff=0.4)
    hint = f"did you mean '{close[0]}'?" if close else "one of those"
    plural = what if what.startswith("-") else f"{what}es" if what.endswith("sh") else f"{what}s"
    raise OperatorError(f"no {what} '{value}'", found=f"{plural} {', '.join(names)}", hint=hint)


def one_of(known: Iterable[str], what: str) -> Callable[[str | None], str | None]:
    """Return a check of an option's value, which must be None or one of `known`."""
    return lambda value: None if value is None else nearest(value, known, what)


def known_dtype(value: str | None) -> str | None:
    """Return an element type that ranks can reduce; raise OperatorError, offering the nearest, for any other."""
    from dovetail.ir.slots import DTYPE_BYTES

    return None if value is None else nearest(value, DTYPE_BYTES, "dtype")


def known_executor(value: str) -> str:
    """Return the name of an executor; raise OperatorError, offering the nearest, for any other."""
    from dovetail.run.executor import EXECUTORS

    return value if value in EXECUTORS else nearest(value, EXECUTORS.usable, "executor")


def known_collective(value: str) -> str:
    """Return the name of a collective; raise OperatorError, offering the nearest, for any other."""
    return nearest(value, TUNED_KINDS, "collective")


def _option(*names: str, help: str, **fields: Any) -> Any:
    return typer.Option(*names, help=help, show_default=fields.pop("show_default", True), **fields)


CollectiveName = Annotated[
    str, typer.Argument(help=f"The collective: {', '.join(TUNED_KINDS)}.", callback=known_collective)
]
Nodes = Annotated[int | None, _option("--nodes", help="Nodes that the ranks share evenly. Default: as found.", min=1)]
Least = Annotated[
    str | None,
    _option("--min", help="Smallest size of a collective, in bytes of a rank's larger buffer. Default: 1K."),
]
Most = Annotated[str | None, _option("--max", help="Largest size of a collective. Default: 16M.")]
Factor = Annotated[float | None, _option("--factor", help="Ratio of each size to the one before. Default: 4.")]
Ranks = Annotated[int | None, _option("--ranks", help="Number of ranks. Default: all of the machine.", min=1)]
AlgorithmRanks = Annotated[int | None, _option("--ranks", help="For an algorithm's name: number of ranks.", min=1)]
AlgorithmNodes = Annotated[
    int | None, _option("--nodes", help="For an algorithm's name: nodes that the ranks share evenly.", min=1)
]
Dtype = Annotated[
    str | None,
    _option(
        "--dtype",
        help=f"Element type: {', '.join(DTYPES)}. Default: the machine's, else float32.",
        callback=one_of(DTYPES, "dtype"),
    ),
]
MachineName = Annotated[
    str | None,
    _option(
        "--machine",
        help="A preset, a machine's JSON file, or (default) the probed machine. 'NAME without rank:5, link:3-4': what "
        "is left of one.",
    ),
]
Contention = Annotated[
    float | None, _option("--contention", help="One slowdown of communication instead of the measured ones.")
]
Extrapolate = Annotated[
    bool, _option("--extrapolate", help="Allow sizes outside the measured range.", show_default=False)
]
Json = Annotated[bool, _option("--json", help="Print one JSON document.", show_default=False)]
On = Annotated[
    str,
    _option(
        "--on",
        help="What runs the ranks: mpi; shared, processes of this host without MPI; threads of this process; numpy, "
        "one rank after the other; cuda; or an executor of a package.",
        callback=known_executor,
    ),
]
Launch = Annotated[
    str | None,
    _option("--launch", help="Command that starts {ranks} ranks. Default: $DOVETAIL_LAUNCH, else the mpiexec found."),
]
Rounds = Annotated[int, _option("--rounds", help="Least number of rounds; each runs every schedule once.", min=1)]
Budget = Annotated[float, _option("--budget", help="Seconds after which no further round begins.", min=0.0)]
Seed = Annotated[int | None, _option("--seed", help="Seed of the random inputs. Default: a new one each time.", min=0)]
Fresh = Annotated[bool, _option("--fresh", help="Measure again, ignoring the cache.", show_default=False)]
Out = Annotated[Path | None, _option("--out", help="Folder for the plan, the timelines and the page.", file_okay=False)]
CompareHeuristics = Annotated[
    bool,
    _option(
        "--compare-heuristics",
        help="Compare the choices of published rules, simulation and exhaustive search. All choose by a simulated, "
        "noisy probe; the machine's own costs judge. Without sizes: on the published scenarios.",
        show_default=False,
    ),
]
Scenarios = Annotated[
    int, _option("--scenarios", help="With --compare-heuristics, without sizes: number of random scenarios.", min=0)
]
