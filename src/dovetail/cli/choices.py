"""`dovetail plan WISH --compare-heuristics`: what rules, simulation and exhaustive search choose, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dovetail.cli import output
from dovetail.cli.wishes import Said
from dovetail.core import WishError

if TYPE_CHECKING:
    from dovetail.machine import Machine
    from dovetail.tune.choices import Compared
    from dovetail.tune.scenarios import Scenario


def compare_choices(
    said: Said, machine: Machine | None, ranks: int | None, drawn: int, seed: int | None, json: bool
) -> None:
    """Print what every chooser takes: of the wish on the machine, taken for the true one; without sizes, of those that
    others published figures of, and of so many drawn at random."""
    from dovetail.report.choices import choices_text
    from dovetail.tune.choices import SCHEMA, compare, scores
    from dovetail.tune.tune import fresh_seed

    start, limits = fresh_seed(seed), {name: value for name, value in said.limits.items() if name != "schedule"}
    found: list[Compared] = []
    scenarios = list(scenarios_of(said, machine, ranks, drawn, start))
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


def scenarios_of(said: Said, machine: Machine | None, ranks: int | None, drawn: int, seed: int) -> Iterator[Scenario]:
    """What is compared."""
    from dovetail.tune import scenarios as sets

    if not said.is_bare:
        if machine is None:
            raise WishError("nothing judges the choices", hint="--machine, whose costs are taken for the truth")
        wish = said.wish(machine)
        yield sets.Scenario(wish.title, wish, machine, ranks)
        return
    if machine is not None:
        raise WishError("a machine without sizes", hint="name sizes; scenarios have machines of their own")
    known = [*sets.published(said.kind), *sets.drawn(said.kind, drawn, seed)]
    if not known:
        raise WishError(f"no scenarios of {said.kind.name} are published", hint="--scenarios 16, or name sizes")
    yield from known
