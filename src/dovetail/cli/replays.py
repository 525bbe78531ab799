"""replays: `dovetail simulate` of other tools' schedules: GOAL, and Chakra execution traces."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.cli.algorithms import Case
from dovetail.core import OperatorError

if TYPE_CHECKING:
    from dovetail.machine import Machine
    from dovetail.trace.schedules.dag import Replay


def read(place: str) -> Replay | None:
    """Return what the ranks do by a file of another tool; None for other files. Raise FileError if it is damaged."""
    from dovetail.trace.formats import replayed

    path = Path(place)
    return replayed(path) if path.is_file() else None


def case(place: str, replay: Replay, machine: str | None, contention: float | None, extrapolate: bool) -> Case:
    """Return a replay with its costs on a machine.

    A collective without a curve of the machine takes what `plan` predicts for the best algorithm on its group's ranks.
    """
    from dovetail.cli.machines import find
    from dovetail.ir.registry import operator_class
    from dovetail.planner.by_size import plan_by_size
    from dovetail.trace.schedules.groups import machine_of_group

    if machine is None:
        raise OperatorError(f"{place} names no machine", hint="--machine (`dovetail machines` lists them)")
    where = find(machine)

    @cache
    def planned_s(kind: str, part: Machine, ranks: int, num_bytes: int) -> float:
        points: Any = operator_class(kind).points(min=str(num_bytes), max=str(num_bytes))
        return plan_by_size(points, part, ranks=ranks, extrapolate=extrapolate).sizes[0].ranked[0][1]

    @cache
    def part_of(group: tuple[int, ...]) -> Machine:
        return machine_of_group(where, group)

    def call_seconds(kind: str, group: tuple[int, ...], num_bytes: int) -> float:
        return planned_s(kind, part_of(group), len(group), num_bytes)

    prices = replay.priced(where, contention, extrapolate=extrapolate, call_seconds=call_seconds)
    return Case(replay.program, prices, where)
