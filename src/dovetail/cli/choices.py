"""choices: `dovetail plan OPERATOR --compare-heuristics`: what rules, simulation and exhaustive search choose."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dovetail.cli import output
from dovetail.cli.operators import OperatorRequest
from dovetail.core import OperatorError

if TYPE_CHECKING:
    from dovetail.machine import Machine
    from dovetail.tuner.choices import Compared
    from dovetail.tuner.scenarios import Scenario


def compare_choices(
    request: OperatorRequest, machine: Machine | None, ranks: int | None, drawn: int, seed: int | None, json: bool
) -> None:
    """Print the schedule that each chooser takes, and its time, simulated with the machine's costs.

    Without sizes: compare on the published scenarios, and on `drawn` random ones.
    """
    from dovetail.report.choices import choices_text
    from dovetail.tuner.choices import SCHEMA, compare, scores
    from dovetail.tuner.tune import fresh_seed

    start, limits = fresh_seed(seed), {name: value for name, value in request.limits.items() if name != "schedule"}
    found: list[Compared] = []
    scenarios = list(scenarios_of(request, machine, ranks, drawn, start))
    with output.progress("choices") as say:
        for number, scenario in enumerate(scenarios):
            say(scenario.name, number / len(scenarios))
            found.append(compare(scenario, seed=start, **limits))
    if json:
        summed = [score.to_json() for score in scores(found)]
        output.emit(
            {"schema": SCHEMA, "seed": start, "scores": summed, "scenarios": [each.to_json() for each in found]}
        )
        return
    print(choices_text(found, terminal=output.is_terminal(), width=output.width()))
    output.note(f"Simulated, not measured; seed {start}.")


def scenarios_of(
    request: OperatorRequest, machine: Machine | None, ranks: int | None, drawn: int, seed: int
) -> Iterator[Scenario]:
    """Yield the scenarios to compare choosers on: the given operator's, else the published and `drawn` random ones."""
    from dovetail.tuner import scenarios as sets

    if not request.is_bare:
        if machine is None:
            raise OperatorError("no machine to simulate the choices on", hint="give --machine; its costs are used")
        operator = request.operator(machine)
        yield sets.Scenario(operator.title, operator, machine, ranks)
        return
    if machine is not None:
        raise OperatorError("--machine without sizes", hint="give sizes; the scenarios have their own machines")
    known = [*sets.published(request.kind), *sets.drawn(request.kind, drawn, seed)]
    if not known:
        raise OperatorError(f"no scenarios of {request.kind.name} are published", hint="--scenarios 16, or give sizes")
    yield from known
