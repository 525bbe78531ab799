"""A collective of one size as an operator: its schedules, their predictions, and its arrays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from collective_machine import star, with_library
from sim_executor import SimExecutor

from dovetail.collective.operators import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    CollectiveOperator,
    ReduceScatter,
    sizes_between,
)
from dovetail.core import CostError, OperatorError, PlanError
from dovetail.ir import Program, parse, verify
from dovetail.ir.signature import Signature
from dovetail.machine import Link, even_nodes
from dovetail.planner import Plan, operator_class, operator_from, plan
from dovetail.planner.costs import Costs
from dovetail.planner.search import ranked_schedules
from dovetail.planner.shortlist import shortlist
from dovetail.prober import probe_operator
from dovetail.run import execute

OPERATORS = [kind.name for kind in CollectiveOperator.__subclasses__()]


def costs_of(operator: CollectiveOperator, ranks: int) -> Costs:
    return Costs.of(operator, star(ranks), ranks, extrapolate=True)[0]


def best(operator: CollectiveOperator, ranks: int, most: int = 8):
    return shortlist(ranked_schedules(costs_of(operator, ranks)), most)


def test_every_collective_of_the_table_is_an_operator():
    assert len(OPERATORS) == 6
    for name in OPERATORS:
        operator = operator_class(name)(4096, "float64", 2)
        assert operator.name == name
        assert operator_from(operator.to_json()) == operator
        assert set(operator.families) > {"serial"}


@pytest.mark.parametrize("collective", OPERATORS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_schedule_and_the_library_meet_the_post_conditions(collective, ranks):
    operator = operator_class(collective)(1024)
    for schedule in [operator.serial(ranks), *operator.schedules(costs_of(operator, ranks))]:
        program = operator.program(schedule, ranks)
        assert verify(program).ok, schedule
        assert verify(program).collective_found
        spec = operator.spec(program)
        assert {buffer.name for buffer in spec.buffers} <= {buffer.name for buffer in program.buffers}
        assert [program.slots_of(b.name, 0) for b in spec.buffers] == [b.slots[0] for b in spec.buffers]


def test_no_two_schedules_make_one_program():
    operator = AllReduce(1024)
    programs = [operator.program(each, 4).fingerprint() for each in operator.schedules(costs_of(operator, 4))]
    assert len(set(programs)) == len(programs) > 8


def test_predictions_distinguish_latency_and_bandwidth():
    small, large = (best(AllToAll(size, nodes=1), 8)[0] for size in (64, 4 << 20))
    assert small.predicted_s < large.predicted_s
    found = [each.predicted_s for each in best(AllToAll(4096, nodes=1), 8)]
    assert found == sorted(found)


def test_a_shortlist_holds_several_algorithms_and_no_serial():
    listed = best(AllReduce(65536, nodes=1), 4, most=6)
    assert len(listed) == 6
    assert len({each.family for each in listed}) >= 4
    machine = with_library(star(4), "all_reduce", 1e-5, 1e9)
    ranked = ranked_schedules(Costs.of(AllReduce(65536), machine, 4, extrapolate=True)[0])
    assert ranked[0].schedule.is_serial
    assert not any(each.schedule.is_serial for each in shortlist(ranked))


def test_hopeless_schedules_are_not_measured():
    listed = best(AllReduce(64 << 20, nodes=1), 8, most=100)
    assert listed[-1].predicted_s <= 1.7 * listed[0].predicted_s
    ranked = ranked_schedules(costs_of(AllReduce(64 << 20, nodes=1), 8))
    assert ranked[-1].predicted_s > 1.7 * ranked[0].predicted_s


RELAY = """program relay ranks 3
buffer input input 1
lane net net
channel 0->1 0 depth 2
channel 1->2 0 depth 2
post 0 1 2 input[0:1] = input@0[0:1]
rank 0 lane net
  send input[0:1] to 1
rank 1 lane net
  recv_copy_send from 0 -> input[0:1] to 2
rank 2 lane net
  recv from 1 -> input[0:1]
"""


class Relay(Broadcast):
    """A broadcast through one forwarding rank, for every schedule."""

    name = "broadcast"

    def program(self, schedule, ranks) -> Program:
        return super().program(schedule, ranks) if schedule.is_serial else parse(RELAY)


def test_slices_are_predicted_to_pipeline_through_a_forwarder():
    costs = costs_of(Relay(4 << 20), 3)
    relay = costs.operator.by("binomial_tree_broadcast")
    whole, cut = (costs.predicted_s(replace(relay, slice_bytes=size)) for size in (0, 256 << 10))
    assert 0.5 * whole < cut < 0.7 * whole  # 17 slices on the wire instead of 32
    sizes = [each.slice_bytes >> 10 for each in Relay(1 << 20).refine(costs, [relay], 0)]
    assert sizes == [8, 16, 32, 64, 256]
    assert not list(Relay(8 << 10).refine(costs, [relay], 0))
    assert not list(Relay(1 << 20).refine(costs, [relay], 1))


def test_counts_are_of_a_ranks_larger_buffer():
    assert ReduceScatter(1000).resolve({}, 4)[0].num_bytes == 992
    assert Broadcast(1).resolve({}, 4)[0].num_bytes == 4
    assert [kind(4096).count(4) for kind in (AllGather, AllReduce)] == [256, 1024]


def test_invalid_sizes_and_ranks_raise():
    with pytest.raises(OperatorError, match="3 ranks cannot be shared evenly among 2 nodes"):
        AllReduce(64, nodes=2).resolve({}, 3)
    with pytest.raises(OperatorError, match="did you mean 'all_reduce'"):
        operator_class("all_reduced")
    with pytest.raises(OperatorError, match="did you mean 'ring_all_gather'"):
        AllGather(64).by("ring_all_gater")
    with pytest.raises(OperatorError, match="no algorithm 'ring_all_gather' for all_reduce"):
        AllReduce(64).by("ring_all_gather")
    with pytest.raises(PlanError, match="no schedule of all_reduce"):
        AllReduce(64).program(AllGather(64).by("ring_all_gather"), 2)
    with pytest.raises(OperatorError, match="dtype"):
        AllReduce(64, "float12")
    with pytest.raises(OperatorError):
        AllReduce(64).resolve({}, 1)


def test_nodes_default_to_the_machines():
    links = (Link(0, 1, "tcp"), Link(1, 0, "tcp"))
    machine = replace(star(4), nodes=(0, 0, 1, 1), links=links)
    assert Costs.of(AllReduce(64), machine, 4)[0].operator.nodes == even_nodes(machine.nodes) == 2
    costs, notes = Costs.of(AllReduce(64, nodes=4), machine, 4)
    assert costs.operator.nodes == 4
    assert notes == ("Chosen for 4 nodes; the ranks were found on 2.",)


def test_points_are_one_operator_per_size_with_shared_programs():
    points = AllGather.points(min="1K", max="64K", factor=8, dtype="float16", nodes=None)
    assert points == tuple(AllGather(size, "float16") for size in (1024, 8192, 65536))
    assert points[0].program(points[0].by("ring_all_gather"), 4) is points[2].program(
        points[2].by("ring_all_gather"), 4
    )
    assert len(AllReduce.points()) == 8


@pytest.mark.parametrize("factor", [0.0, 1.0, float("nan"), float("inf")])
def test_sizes_that_do_not_grow_raise(factor: float) -> None:
    with pytest.raises(OperatorError, match="sizes must begin above 0 and grow"):
        sizes_between("1K", "64K", factor)


def test_no_size_comes_twice() -> None:
    assert sizes_between("2", "5", 1.2) == [2, 3, 4, 5]


# The planner


def test_the_planner_of_operators_plans_collectives():
    """Predicted as a series of slices; proved as it runs."""
    machine = with_library(star(3), "broadcast", 1e-3, 30e6)
    made = plan(Relay(16 << 20), machine, extrapolate=True)
    assert made.schedule.slice_bytes
    assert made.program.num_ops == parse(RELAY).num_ops
    assert made.certificate.ok
    assert made.predicted_s < made.serial_s
    assert made.predicted_s - made.ideal_s == pytest.approx(sum(made.losses.values()))
    assert "serial" in {rival.family for rival in made.rivals}


def test_a_plan_of_a_collective_is_saved_like_any_other():
    machine = with_library(star(4), "all_reduce", 1e-3, 50e6)
    made = plan(AllReduce(1 << 20), machine, extrapolate=True)
    assert made.family != "serial"
    assert made.certificate.collective_found == "all_reduce"
    again = Plan.from_json(made.to_json())
    assert (again.schedule, again.predicted_s, again.operator) == (made.schedule, made.predicted_s, made.operator)


def test_a_fast_library_is_kept_and_unknown_costs_are_reported():
    fast = with_library(star(4), "all_reduce", 1e-6, 1e11)
    assert plan(AllReduce(1 << 20), fast, extrapolate=True).family == "serial"
    with pytest.raises(CostError, match="all_reduce:4"):
        plan(AllReduce(1 << 20), star(4), extrapolate=True)


def test_the_library_is_probed_if_it_has_no_cost(tmp_path):
    ranks, operator = 4, AllGather(1 << 20)
    real = with_library(with_library(star(ranks), "all_gather", 1e-4, 1e8), "all_reduce", 1e-4, 1e8)
    bare = with_library(star(ranks), "all_reduce", 1e-4, 1e8)
    found = probe_operator(SimExecutor(real), bare, operator, ranks)
    costs, _ = Costs.of(operator, found, ranks, extrapolate=True)
    assert costs.knows_collective("all_gather")
    assert costs.predicted_s(operator.serial(ranks)) == pytest.approx(1e-4 + (1 << 20) / 1e8, rel=0.02)


# Arrays


@pytest.mark.parametrize(
    "operator", [AllReduce(60), AllGather(60), Broadcast(4 * 7)], ids=lambda operator: operator.name
)
def test_arrays_become_buffers_and_results(operator):
    """Also for counts that the algorithm's chunks do not divide."""
    ranks, rng = 3, np.random.default_rng(1)
    operator = operator.resolve({}, ranks)[0]
    schedule = operator.by(
        {"broadcast": "binomial_tree_broadcast"}.get(operator.name, f"ring_{operator.name}"), instances=2
    )
    program = operator.program(schedule, ranks)
    given = [rng.standard_normal(operator.count(ranks)).astype("float32") for _ in range(ranks)]
    before = [array.copy() for array in given]
    signature = Signature.of(operator, schedule, ranks)
    sides = [signature.arguments(rank, [given[rank]], None)[0] for rank in range(ranks)]
    inputs = {"input": [side["input"] for side in sides]}
    held = execute(program, inputs, workload=operator.workload(program, schedule)).outputs
    want = {"all_reduce": sum(given), "all_gather": np.concatenate(given), "broadcast": given[0]}[operator.name]
    for rank in range(ranks):
        found = signature.result(rank, {name: arrays[rank] for name, arrays in held.items()})
        assert found.shape == want.shape
        assert np.allclose(found, want, atol=1e-6)
        assert np.array_equal(given[rank], before[rank])  # the caller's array is unchanged


def test_an_in_place_algorithm_works_on_a_copy_of_the_callers_array():
    operator, given = AllReduce(64), np.ones(16, "float32")
    Signature.of(operator, operator.serial(2), 2).arguments(0, [given], None)[0]["input"][...] = 9
    assert given.tolist() == [1.0] * 16


def test_out_is_the_buffer_of_an_in_place_algorithm():
    operator = AllReduce(64)
    signature, out = Signature.of(operator, operator.serial(2), 2), np.zeros(16, "float32")
    inputs, outputs = signature.arguments(0, [np.ones(16, "float32")], out)
    assert np.shares_memory(inputs["input"], out)
    assert out.tolist() == [1.0] * 16
    assert not outputs
