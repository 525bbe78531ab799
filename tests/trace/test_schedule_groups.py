"""Collectives of replayed schedules: each is planned once, on the ranks of its group; errors name its place."""

from collections.abc import Sequence
from typing import Any

import pytest

from dovetail.cli import replays
from dovetail.core import CostError
from dovetail.machine import Machine, load
from dovetail.planner import by_size
from dovetail.sim import simulate
from dovetail.trace.schedules.dag import MEET, Node, Replay, to_replay
from dovetail.trace.schedules.groups import machine_of_group

MIB = 1 << 20


def replay(groups: Sequence[Sequence[int]], num_bytes: int = MIB, kind: str = "all_reduce") -> Replay:
    """Return what ranks do that call one collective in each of these groups."""
    nodes = [
        Node(MEET, rank, f"run.{rank}.et: node {number}", num_bytes=num_bytes, unit=str(number), call=(kind, (*group,)))
        for number, group in enumerate(groups)
        for rank in group
    ]
    return to_replay("run", 1 + max((rank for group in groups for rank in group), default=0), nodes)


def seconds(machine: str, *groups: Sequence[int], num_bytes: int = MIB) -> float:
    case = replays.case("run.0.et", replay(groups, num_bytes), machine, None, False)
    return simulate(case.program, case.prices).makespan_s


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Machine]:
    """Return the machines that `plan_by_size` is called with, as it is."""
    found: list[Machine] = []
    whole = by_size.plan_by_size

    def counted(points: Any, machine: Machine, **how: Any) -> by_size.PlanBySize:
        found.append(machine)
        return whole(points, machine, **how)

    monkeypatch.setattr(by_size, "plan_by_size", counted)
    return found


def test_a_group_across_servers_costs_more_than_one_within() -> None:
    within, across = seconds("h100-8x4", [8, 9]), seconds("h100-8x4", [0, 8])
    assert within < across
    assert seconds("h100-8x4", [0, 1]) == within
    assert seconds("h100-8x4", [8, 9], [0, 8]) == max(within, across)


def test_a_group_costs_as_much_as_a_machine_of_its_ranks() -> None:
    assert seconds("h100-8x4", [8, 9, 16, 17]) < seconds("h100-8x4", [0, 8, 16, 24])
    assert seconds("h100-8x4", range(8, 24)) == seconds("h100-8x2", range(16))


def test_groups_that_are_alike_are_planned_once(planned: list[Machine]) -> None:
    seconds(
        "h100-8x4", *([first, first + 8] for first in range(8)), *([first, first + 1] for first in range(16, 32, 2))
    )
    assert len(planned) == 2
    planned.clear()
    seconds("torus-4x4", *([4 * row, 4 * row + 1] for row in range(4)), *([row + 1, row + 5] for row in range(4)))
    assert len(planned) == 2


def test_a_machine_of_a_group_keeps_the_routes_between_its_ranks() -> None:
    for name, group in (("torus-4x4", [7, 0, 13]), ("h100-8x4", [9, 3, 31, 10]), ("fat-tree-4x4", [1, 5, 6])):
        machine = load(name)
        part, ranks = machine_of_group(machine, group), sorted(group)
        for a, b in ((0, 1), (1, 0), (1, 2), (2, 0)):
            (kind, links), (whole_kind, whole_links) = part.route(a, b), machine.route(ranks[a], ranks[b])
            assert (kind, len(links)) == (whole_kind, len(whole_links))


def test_most_ranks_of_equal_servers_are_planned_by_folding() -> None:
    assert seconds("h100-8x128", range(1000)) == seconds("h100-8x125", range(1000))


def test_many_large_groups_are_planned_once(planned: list[Machine]) -> None:
    seconds("h100-8x128", *(range(8 * first, 8 * first + 512) for first in range(20)))
    assert len(planned) == 1


@pytest.mark.parametrize(("groups", "num_bytes"), [([[0]], MIB), ([[0, 1]], 0), ([[1], [0, 1]], 0)])
def test_collectives_of_one_rank_or_no_bytes_take_no_time(groups: list[list[int]], num_bytes: int) -> None:
    assert seconds("h100-8x2", *groups, num_bytes=num_bytes) == 0.0
    curve = {"schema": "dovetail.curve/1", "x_unit": "bytes", "segments": [[0, 1.0, 0.0, 0.0]], "low": 8, "high": None}
    known = load("h100-8x2").with_costs({"copy": curve, "all_reduce:2": curve})
    found = replay(groups, num_bytes)
    assert simulate(found.program, found.priced(known)).makespan_s == 0.0


def test_an_error_of_the_planner_names_the_node() -> None:
    with pytest.raises(CostError, match=r"written at  run\.0\.et: node 0\n.*999 ranks.*neither equal servers") as error:
        seconds("h100-8x128", range(999))
    assert "--ranks" not in str(error.value)
    assert error.value.hint == "give the machine a curve 'all_reduce:999'"
