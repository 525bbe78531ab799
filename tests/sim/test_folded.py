"""Folded simulation: its times are those of the whole program, exactly, or it refuses."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from dovetail.collective.folded import FOLDED, build_folded
from dovetail.core import CostError, MachineError, ProgramError
from dovetail.cost import price
from dovetail.ir import Builder, Folded, Kind, Region, Requirement, Slot, Symmetry, Workload, verify_folded
from dovetail.machine import Machine, Rails, Torus, load
from dovetail.planner.scale import plan_folded
from dovetail.sim import simulate
from dovetail.sim.folded import simulate_folded


def line(base_s: float, per_byte_s: float) -> dict[str, object]:
    segments = [[0, base_s, per_byte_s, 0.0]]
    return {"schema": "dovetail.curve/1", "x_unit": "bytes", "segments": segments, "low": 0.0, "high": None}


COSTS = {
    "p2p:nvlink": line(3.4e-6, 2.2e-12),
    "p2p:ib": line(14e-6, 2e-11),
    "reduce": line(0, 1e-10),
    "copy": line(0, 8e-11),
}


def machine(servers: int, devices: int) -> Rails:
    return Rails("rails", servers, devices, "nvlink", "ib", COSTS)


@cache
def every_rank(servers: int, devices: int) -> Machine:
    return machine(servers, devices).expand()


SHAPES = ((2, 2), (8, 8), (4, 1), (32, 8))  # servers, devices of each
CASES = [(name, *shape) for name in FOLDED for shape in SHAPES if shape[1] > 1 or not name.startswith("hierarchical")]


@pytest.mark.parametrize(("name", "servers", "devices"), CASES)
def test_times_are_those_of_all_ranks(name: str, servers: int, devices: int) -> None:
    whole = machine(servers, devices)
    folded, slot = build_folded(name, whole.ranks, nodes=servers), Slot((1000,), "float32")
    found = simulate_folded(folded, whole, slot)
    program = folded.expand()
    workload = Workload({buffer.name: (slot,) * whole.ranks for buffer in program.buffers})
    every = simulate(program, price(program, every_rank(servers, devices), workload))
    for column in ("start_s", "end_s"):
        wanted = every.columns[column].reshape(servers, -1)
        assert np.array_equal(wanted, np.broadcast_to(found.columns[column], wanted.shape)), column


def spread(ranks: int) -> Folded:
    """A direct all_gather: every rank sends to all others at once, from lanes of their own."""
    b = Builder("spread", 1)
    b.buffer("input", "input", 1)
    b.buffer("output", "output", ranks)
    lanes = [b.lane(f"tb{number}", "net") for number in range(ranks - 1)]
    own = Region("output", 0, 1)
    first = b.add(Kind.copy, 0, lanes[0], reads=[Region("input", 0, 1)], writes=[own])
    for number, lane in enumerate(lanes):
        b.add(Kind.send, 0, lane, reads=[own], chan_out=b.channel(0, 0, number, 2), after=[first])
    for number, lane in enumerate(lanes):
        b.add(Kind.recv, 0, lane, writes=[Region("output", ranks - 1 - number, 1)], chan_in=number)
    symmetry = Symmetry((ranks,), {"input": (), "output": ((ranks, 0),)})
    ahead = tuple(range(1, ranks))
    return Folded(symmetry, b.build(), ahead, (0,) * len(ahead), Requirement("all_gather", 1))


def test_messages_that_reach_a_link_at_once_are_refused() -> None:
    assert verify_folded(spread(4)).ok
    with pytest.raises(ProgramError, match="at the same time"):
        simulate_folded(spread(4), machine(4, 1), Slot((8,), "float32"))


def test_machines_without_the_symmetry_are_refused() -> None:
    with pytest.raises(CostError, match="does not fit"):
        simulate_folded(build_folded("ring_all_reduce", 6), machine(2, 2), Slot((8,), "float32"))
    with pytest.raises(MachineError, match="exchange"):
        Rails("rails", 2, 2, "nvlink", "ib", {**COSTS, "exchange:ib": line(1e-6, 1e-12)})
    with pytest.raises(ProgramError, match="repeat"):
        build_folded("ring_all_reduce", 6).quotient(4)


def test_routes_are_those_of_the_whole_machine() -> None:
    rails = machine(3, 2)
    whole = rails.expand()
    assert isinstance(whole, Machine)
    for src in range(6):
        for dst in set(range(6)) - {src}:
            kind, hops = rails.route(src, dst)
            wanted, rows = whole.route(src, dst)
            assert (kind, [tuple(hop) for hop in hops]) == (wanted, [whole.links[row][:2] for row in rows])


def test_plan_orders_candidates_and_proves_the_fastest() -> None:
    small, large = plan_folded("all_reduce", machine(64, 8), [1 << 10, 1 << 26])
    for choice in (small, large):
        seconds = [each.seconds for each in choice.candidates]
        assert seconds == sorted(seconds)
        assert len(seconds) == 4
        assert choice.certificate.ok
        assert choice.certificate.program == choice.candidates[0].folded.name
    assert small.candidates[0].folded.name != large.candidates[0].folded.name


@pytest.mark.parametrize("name", ["ring_all_reduce", "hierarchical_all_reduce", "recursive_doubling_all_gather"])
def test_a_preset_folded_is_the_preset_with_every_rank(name: str) -> None:
    whole = load("h100-8x4")
    rails = Rails.of(whole)
    assert rails is not None
    folded, slot = build_folded(name, whole.ranks, nodes=4), Slot((1000,), "float32")
    found = simulate_folded(folded, rails, slot)
    program = folded.expand()
    slots = Workload({buffer.name: (slot,) * whole.ranks for buffer in program.buffers})
    every = simulate(program, price(program, whole, slots))
    for column in ("start_s", "end_s"):
        wanted = every.columns[column].reshape(4, -1)
        assert np.array_equal(wanted, np.broadcast_to(found.columns[column], wanted.shape)), column


@pytest.mark.parametrize("sides", [(2, 2), (4, 3), (2, 8), (16, 16), (3, 4, 2)])
def test_a_torus_is_found_by_its_links(sides: tuple[int, ...]) -> None:
    whole = load(f"torus-{'x'.join(map(str, sides))}")
    torus = Torus.of(whole)
    assert torus is not None
    assert torus.sides == sides
    assert torus.expand().links == whole.links
    fewer = replace(whole, links=whole.links[:-1])
    assert Torus.of(fewer) is None


@pytest.mark.parametrize("sides", [(2, 2), (4, 3), (3, 5), (2, 16), (16, 16)])
def test_times_on_a_torus_are_those_of_all_ranks(sides: tuple[int, int]) -> None:
    whole = load(f"torus-{sides[0]}x{sides[1]}")
    torus = Torus.of(whole)
    assert torus is not None
    folded, slot = build_folded("hierarchical_all_reduce", whole.ranks, nodes=sides[0]), Slot((1000,), "float32")
    found = simulate_folded(folded, torus, slot)
    program = folded.expand()
    slots = Workload({buffer.name: (slot,) * whole.ranks for buffer in program.buffers})
    every = simulate(program, price(program, whole, slots))
    for column in ("start_s", "end_s"):
        wanted = every.columns[column].reshape(sides[0], -1)
        assert np.array_equal(wanted, np.broadcast_to(found.columns[column], wanted.shape)), column


def test_routes_on_a_torus_are_those_of_its_machine() -> None:
    whole = load("torus-5x4x2")
    torus = Torus.of(whole)
    assert torus is not None
    refused = 0
    for dst in range(1, whole.ranks):
        try:
            kind, hops = torus.route(0, dst)
        except MachineError:
            refused += 1
            continue
        wanted, rows = whole.route(0, dst)
        assert (kind, [tuple(hop) for hop in hops]) == (wanted, [whole.links[row][:2] for row in rows])
    assert refused == 40 - 1 - 4 - 2 - 1  # reached: along the axes of 5, of 4 without its far end, and of 2


@pytest.mark.parametrize("name", ["ring_all_reduce", "recursive_doubling_all_gather"])
def test_programs_that_shifts_of_a_torus_change_are_refused(name: str) -> None:
    torus = Torus.of(load("torus-4x4"))
    assert torus is not None
    with pytest.raises((CostError, MachineError)):
        simulate_folded(build_folded(name, 16), torus, Slot((8,), "float32"))


def test_a_large_torus_is_planned_folded() -> None:
    torus = Torus.of(load("torus-64x32"))
    assert torus is not None
    (choice,) = plan_folded("all_reduce", torus, [1 << 20])
    assert [each.folded.name for each in choice.candidates] == ["hierarchical_all_reduce"]
    assert choice.certificate.ok
