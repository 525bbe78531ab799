"""plan: `dovetail plan`: choose a schedule by predicted cost, prove it, and explain the choice."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
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

    chosen = None if machine is None else find(machine)
    if compare_heuristics:
        compare_choices(request, chosen, ranks, scenarios, seed, json)
        return

    is_cached = chosen is None or ("probed" in chosen.facts and not Path(str(machine)).is_file())

    def machine_for(operator: Operator) -> Machine:
        if chosen is None:
            return probed(operator, ranks, launch)
        return find(str(machine), operator, ranks or chosen.ranks) if is_cached else chosen

    def missing(operator: Operator, known: Machine) -> str | None:
        return _missing_probe(operator, known, ranks, launch) if is_cached else None

    how: dict[str, Any] = {"contention": contention, "extrapolate": extrapolate}
    if not request.kind.by_size:
        _plan_one(request, request.operator(chosen), machine_for, missing, ranks, out, json=json, **how)
        return
    try:
        plan_sizes(request, machine_for, ranks, out, json=json, **how)
    except CostError as error:
        raise _with_hint(error, None) from error


def _plan_one(
    request: OperatorRequest,
    operator: Operator,
    machine_for: Callable[[Operator], Machine],
    missing: Callable[[Operator, Machine], str | None],
    ranks: int | None,
    out: Path | None,
    *,
    json: bool,
    **how: Any,
) -> None:
    """Plan an operator that has a single plan, and print the plan.

    `missing`: returns the command that probes missing costs. `how`: options of `plan`.
    """
    from dovetail.planner import plan as search
    from dovetail.report.explain import write_plan

    known = machine_for(operator)
    try:
        made = search(operator, known, ranks=ranks, **how, **request.limits)
    except CostError as error:
        raise _with_hint(error, missing(operator, known)) from error
    page = None if out is None else write_plan(made, out, shlex.join(["dovetail", *sys.argv[1:]]))
    output.emit(made.to_json()) if json else print(str(made) + (f"\n\n{page}" if page else ""))


def probed(operator: Operator, ranks: int | None, launch: str | None) -> Machine:
    """Return the machine that was probed with this launch command, with the operator's costs if they were probed.

    Raises EnvironmentFault, with the command to type, if the machine was not probed.
    """
    from dovetail.cli.probed import known, mpi_command

    if ranks is None:
        raise EnvironmentFault("no machine and no number of ranks", hint="give --ranks, or --machine")
    found = known(operator, ranks, launch)
    if found is None:
        on = "mpi" if mpi_command(launch) else "shared"
        command = probe_command(operator, ranks, on, launch)
        raise EnvironmentFault(
            f"this machine has not been probed with {ranks} ranks",
            hint=f"`{command}`, or give --machine (`dovetail machines` lists them)",
        )
    return found


def probe_command(operator: Operator, ranks: int, on: str = "mpi", launch: str | None = None) -> str:
    """Return the command that measures the costs which a plan of this operator needs: of collectives, the links'."""
    words = ["links"] if operator.by_size else words_of(operator)
    chosen = ["--on", on] if on != "mpi" else ["--launch", launch] if launch else []
    return shlex.join(["dovetail", "probe", *words, "--ranks", str(ranks), *chosen])


def _missing_probe(operator: Operator, machine: Machine, ranks: int | None, launch: str | None) -> str | None:
    """Return the command that probes the operator's costs on a machine; None if the machine was not probed here."""
    from dovetail.cli.probed import probed_on

    if "probed" not in machine.facts:
        return None
    return probe_command(operator, ranks or machine.ranks, probed_on(machine) or "mpi", launch)


def _with_hint(error: CostError, command: str | None) -> CostError:
    """Return the error with a hint on what to type: --extrapolate beyond the measured range, else the command."""
    if "extrapolat" in (error.hint or ""):
        hint = f"{error.hint} (--extrapolate)"
    elif command is not None:
        hint = f"`{command}`"
    else:
        return error
    return CostError(error.what, found=error.found, hint=hint)
