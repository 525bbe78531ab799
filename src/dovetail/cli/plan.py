"""plan: `dovetail plan`: choose a schedule by predicted cost, prove it, and explain the choice."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any

from dovetail.cli import options as opt
from dovetail.cli import output
from dovetail.cli.operators import OperatorRequest, words_of
from dovetail.core import CostError, EnvironmentFault

if TYPE_CHECKING:
    from dovetail.ir import Operator
    from dovetail.machine import Machine


def plan(
    request: OperatorRequest,
    ranks: opt.Ranks = None,
    machine: opt.MachineName = None,
    contention: opt.Contention = None,
    extrapolate: opt.Extrapolate = False,
    launch: opt.Launch = None,
    json: opt.Json = False,
    out: opt.Out = None,
    compare_heuristics: opt.CompareHeuristics = False,
    scenarios: opt.Scenarios = 0,
    seed: opt.Seed = None,
) -> None:
    """Predict every schedule on a machine, prove the best, and show which others it beats and why. Runs nothing.

    A collective is planned at each size from --min to --max, on up to 16,384 ranks and more.
    """
    from dovetail.cli.by_size import plan_sizes
    from dovetail.cli.choices import compare_choices
    from dovetail.cli.machines import find
    from dovetail.planner import plan as search
    from dovetail.report.explain import write_plan

    chosen = None if machine is None else find(machine)
    if request.kind.by_size and not compare_heuristics:
        how: Any = {"contention": contention, "extrapolate": extrapolate}
        plan_sizes(request, lambda point: chosen or probed(point, ranks, launch), ranks, out, json=json, **how)
        return
    if compare_heuristics:
        compare_choices(request, chosen, ranks, scenarios, seed, json)
        return
    operator = request.operator(chosen)
    known = chosen or probed(operator, ranks, launch)
    try:
        made = search(operator, known, ranks=ranks, contention=contention, extrapolate=extrapolate, **request.limits)
    except CostError as error:
        raise _with_hint(error, operator, None if chosen else ranks) from error
    page = None if out is None else write_plan(made, out, shlex.join(["dovetail", *sys.argv[1:]]))
    output.emit(made.to_json()) if json else print(str(made) + (f"\n\n{page}" if page else ""))


def probed(operator: Operator, ranks: int | None, launch: str | None) -> Machine:
    """Return the machine that was probed with this launch command, with the operator's costs if they were probed.

    Raises EnvironmentFault, with the command to type, if the machine was not probed.
    """
    from dovetail.cli.probed import known

    if ranks is None:
        raise EnvironmentFault("no machine and no number of ranks", hint="give --ranks, or --machine")
    found = known(operator, ranks, launch)
    if found is None:
        raise EnvironmentFault(
            f"this machine has not been probed with {ranks} ranks",
            hint=f"`{probe_command(operator, ranks)}`, or give --machine (`dovetail machines` lists them)",
        )
    return found


def probe_command(operator: Operator, ranks: int) -> str:
    """Return the command that measures the costs which a plan of this operator needs."""
    return shlex.join(["dovetail", "probe", *words_of(operator), "--ranks", str(ranks)])


def _with_hint(error: CostError, operator: Operator, ranks: int | None) -> CostError:
    """Return the error with a hint on what to type: --extrapolate beyond the measured range, else the missing probe."""
    if "extrapolat" in (error.hint or ""):
        hint = f"{error.hint} (--extrapolate)"
    elif ranks is not None:
        hint = f"`{probe_command(operator, ranks)}`"
    else:
        return error
    return CostError(error.what, found=error.found, hint=hint)
