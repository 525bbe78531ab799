"""by_size: choose a collective's algorithm at several sizes: folded where that is possible, else with every rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dovetail.collective.folded import FOLDED_FROM
from dovetail.collective.operators import CollectiveOperator
from dovetail.core import CostError, OperatorError, ProgramError
from dovetail.ir import Certificate
from dovetail.ir.registry import prove
from dovetail.machine import Machine, Rails, Torus
from dovetail.planner.costs import Costs
from dovetail.planner.scale import folded_names, plan_folded
from dovetail.planner.search import ranked_schedules

SCHEMA = "dovetail.plan_by_size/1"
MOST_EXPANDED = 256  # ranks up to which every rank's ops are written out for every schedule


@dataclass(frozen=True)
class AtSize:
    """The choice at one size: schedules with their predicted seconds, the fastest first, and the proof of that one."""

    num_bytes: int
    ranked: tuple[tuple[str, float], ...]
    certificate: Certificate

    def to_json(self) -> dict[str, Any]:
        """Return the row of one size: the chosen algorithm, its prediction and proof, and its rivals."""
        rows = [{"algorithm": name, "predicted_s": seconds} for name, seconds in self.ranked]
        checks = {name: check.to_json() for name, check in self.certificate.checks.items()}
        return {"num_bytes": self.num_bytes, **rows[0], "rivals": rows[1:], "checks": checks}


@dataclass(frozen=True)
class PlanBySize:
    """A collective's algorithm at each size on a machine.

    `is_folded`: the ops of rank 0 stood for all ranks (docs/how.md). `notes`: sentences for the user.
    """

    collective: str
    dtype: str
    machine: str
    ranks: int
    is_folded: bool
    sizes: tuple[AtSize, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return a document with a `schema` field and a row for each size; seconds and bytes."""
        head = {"schema": SCHEMA, "collective": self.collective, "dtype": self.dtype, "machine": self.machine}
        about = {"ranks": self.ranks, "folded": self.is_folded, "notes": list(self.notes)}
        return {**head, **about, "sizes": [each.to_json() for each in self.sizes]}


def plan_by_size(
    operators: Sequence[CollectiveOperator],
    machine: Machine,
    *,
    ranks: int | None = None,
    contention: float | None = None,
    extrapolate: bool = False,
) -> PlanBySize:
    """Choose a collective's fastest algorithm on a machine at each size, by simulation; prove those chosen.

    From FOLDED_FROM ranks on, programs are folded: rank 0's ops stand for all ranks. That needs a machine of equal
    servers (`Rails.of`), all its ranks, and a collective with folded algorithms. Otherwise every rank is written out,
    up to MOST_EXPANDED ranks. Larger tori of two axes (`Torus.of`) are folded for algorithms of two levels.

    Parameters
    ----------
    operators : sequence of CollectiveOperator
        One collective at several sizes (`CollectiveOperator.points`).
    machine : Machine
        The machine.
    ranks : int, optional
        Default: all ranks of the machine.
    contention, extrapolate
        As in `plan`.

    Raises
    ------
    OperatorError
        If the collective cannot run on these ranks, or they are too many to be written out.
    CostError
        If the machine lacks a cost.
    ProgramError
        If a proof fails.
    """
    first, count = operators[0], ranks or machine.ranks
    first.check_ranks(count)
    rails, why = _foldable(machine, count), _why_expanded(first.name, machine, count)
    if count >= FOLDED_FROM and rails and not why and contention is None:
        try:
            return _folded(operators, rails)
        except ProgramError as error:
            if count > MOST_EXPANDED:
                raise
            why = error.what
    if count > MOST_EXPANDED:
        hint = f"up to {MOST_EXPANDED} ranks every schedule is written out, rank by rank: --ranks"
        raise OperatorError(f"{first.name} of {count} ranks is not planned", found=why or "--contention", hint=hint)
    return _expanded(operators, machine, count, contention, extrapolate)


def _expanded(
    operators: Sequence[CollectiveOperator], machine: Machine, ranks: int, contention: float | None, extrapolate: bool
) -> PlanBySize:
    rows, first = [], operators[0]
    torus = Torus.of(machine) if ranks == machine.ranks and first.nodes is None else None
    notes = {f"Algorithms of two levels take the {torus.servers} rows of the torus as nodes.": None} if torus else {}
    for operator in operators:
        asked = replace(operator, nodes=torus.servers) if torus else operator
        costs, remarks = Costs.of(asked, machine, ranks, None, contention, extrapolate)
        ranked = ranked_schedules(costs)
        if not ranked:
            hint = "it needs p2p curves of its links, or one of the library's call"
            raise CostError(f"no schedule of {first.name} has a cost on machine '{machine.name}'", hint=hint)
        best = ranked[0].schedule
        certificate = prove(costs.operator, best, costs.operator.program(best, ranks))
        certificate.raise_if_bad()
        rows.append(
            AtSize(operator.num_bytes, tuple((str(each.schedule), each.predicted_s) for each in ranked), certificate)
        )
        notes |= {} if torus else dict.fromkeys(remarks)
    return PlanBySize(first.name, first.dtype, machine.name, ranks, False, tuple(rows), tuple(notes))


def _foldable(machine: Machine, ranks: int) -> Rails | Torus | None:
    """Return the machine in the form that folded programs need; None if it has none, or all can be written out."""
    return Rails.of(machine) or (Torus.of(machine) if ranks > MOST_EXPANDED else None)


def _why_expanded(kind: str, machine: Machine, ranks: int) -> str:
    """Return why a collective cannot be folded on a machine; "" if it can."""
    rails = _foldable(machine, ranks)
    if rails is None:
        return f"{machine.name} is neither equal servers on one switch, with a port for each rank, nor a torus"
    if ranks != machine.ranks:
        return f"{ranks} of the {machine.ranks} ranks"
    if folded_names(kind, rails):
        return ""
    where = f" on a torus of {len(rails.sides)} axes" if isinstance(rails, Torus) else ""
    return f"{kind} has no folded algorithm{where}"


def _folded(operators: Sequence[CollectiveOperator], rails: Rails | Torus) -> PlanBySize:
    first = operators[0]
    chosen = plan_folded(first.name, rails, [each.num_bytes for each in operators], first.dtype, nodes=first.nodes)
    rows = [
        AtSize(each.num_bytes, tuple((c.folded.name, c.seconds) for c in each.candidates), each.certificate)
        for each in chosen
    ]
    return PlanBySize(first.name, first.dtype, rails.name, rails.ranks, True, tuple(rows))
