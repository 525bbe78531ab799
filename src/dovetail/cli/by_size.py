"""by_size: `dovetail plan` of a collective: the algorithm at each size, as a table or as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from dovetail.cli import output
from dovetail.cli.operators import OperatorRequest, listed
from dovetail.core import OperatorError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dovetail.collective.operators import CollectiveOperator
    from dovetail.ir import Operator
    from dovetail.machine import Machine
    from dovetail.planner.by_size import PlanBySize

ALIGNS: list[Literal["left", "right"]] = ["right", "left", "right", "left", "right"]


def plan_sizes(
    request: OperatorRequest,
    machine_for: Callable[[Operator], Machine],
    ranks: int | None,
    out: Path | None,
    *,
    json: bool,
    **how: Any,
) -> None:
    """Choose the algorithm at each size, and print the table. `how`: options of `plan_by_size`."""
    from dovetail.planner.by_size import plan_by_size

    if out is not None:
        raise OperatorError("--out: a plan by size has no page", hint="--json prints one document")
    points = cast("Sequence[CollectiveOperator]", request.kind.points(**request.given))
    found = plan_by_size(points, machine_for(points[0]), ranks=ranks, **how)
    output.emit(found.to_json()) if json else print(render(found))


def render(found: PlanBySize) -> str:
    """Return a row per size: the fastest algorithm, the next one, and how many times as long that takes."""
    from dovetail.report import num_bytes, render_table, seconds

    rows = []
    for each in found.sizes:
        (name, best_s), rest = each.ranked[0], each.ranked[1:]
        beside = [rest[0][0], f"{rest[0][1] / best_s:.2f} ×"] if rest else ["–", "–"]
        rows.append([num_bytes(each.num_bytes), name, seconds(best_s), *beside])
    headers = ["size", "algorithm", "predicted", "next best", "takes"]
    table = render_table(headers, rows, ALIGNS, terminal=output.is_terminal(), width=output.width())
    ranks = f"{found.ranks} ranks" + (", of which rank 0 stands for all" if found.is_folded else "")
    head = f"{found.collective} of {found.dtype} on {found.machine}: {ranks}"
    proved = {each.ranked[0][0]: each.certificate.checks["result"].message for each in found.sizes}
    lines = [f"{listed(names)}: proved; {text}." for text, names in _by_text(proved).items()]
    return "\n\n".join([head, table, "\n".join([*lines, *found.notes])])


def _by_text(proved: dict[str, str]) -> dict[str, list[str]]:
    """Return the names for each text."""
    found: dict[str, list[str]] = {}
    for name, text in proved.items():
        found.setdefault(text, []).append(name)
    return found
