"""Probes: their programs are proved; on a simulated machine they find its costs."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from sim_executor import SimExecutor

from dovetail.core import RunError
from dovetail.cost import CostModel, Curve, Segment
from dovetail.ir import Builder, Kind, Region, Slot, Workload, verify
from dovetail.ir.workload import region_bytes
from dovetail.machine import Link, Machine
from dovetail.matmul import AllGatherColumnsMatmul, AllGatherMatmul, MatmulAllReduce
from dovetail.planner import plan
from dovetail.planner.predict import simulate
from dovetail.prober import probe_links, probe_operator, probe_shared, programs
from dovetail.prober.links import MESSAGE_BYTES, pairs_of, spot_check
from dovetail.prober.operator_costs import spot_check_operator
from dovetail.prober.take import Budget
from dovetail.run.executor import Executor, executor_on
from dovetail.run.local import execute_local

QUICK = Budget(each_s=0.02, most=12)
OPERATOR = MatmulAllReduce(512, 96, 64)
(SAMPLE,) = OPERATOR.samples(2)
WORKLOAD = partial(OPERATOR.workload, schedule=OPERATOR.serial(2))
KEY = OPERATOR.works(2)[0].key
MEASUREMENTS = {
    "ping_pong": programs.ping_pong(3, (0, 2), 1000, 4, "net"),
    "exchange": programs.exchange(2, (0, 1), 1000, 40, "shm"),
    "turns": programs.turns(2, (0, 1), 1000, 9, "shm"),
    "library": programs.library("all_reduce", 3, 1000, 3),
    "late_receive": programs.late_receive(2, (0, 1), 5000, 3),
    "reduce": programs.reduce(2, 1000, 3),
    "computations": programs.computations(OPERATOR, SAMPLE, 2, 100, 7),
}


def line(seconds: float, slope: float, unit: str = "bytes") -> dict[str, object]:
    return Curve(unit, (Segment(0.0, seconds, slope),), label="prior").to_json()


def true_machine(nodes: tuple[int, ...] = (0, 1)) -> Machine:
    """Two ranks whose costs are all linear and given here."""
    kind = "net" if len(set(nodes)) > 1 else "shm"
    links = (Link(0, 1, "net"), Link(1, 0, "net")) if kind == "net" else ()
    costs = {
        f"p2p:{kind}": line(60e-6, 1 / 115e6),
        f"exchange:{kind}": line(1e-6, 1 / 80e6),
        "all_reduce:2": line(100e-6, 1 / 110e6),
        "reduce": line(1e-6, 1 / 5e9),
        f"kernel:{KEY}": line(5e-6, 2e-6, "rows"),
        "cil:compute": line(1.3, 0.0),
        "cil:net": line(1.2, 0.0),
    }
    return Machine("true", 2, nodes, links, costs, {"eager_limit_bytes": {kind: 16 << 10}})


def off(true: Machine, found: Machine, key: str, sizes) -> float:
    """Return the largest relative error of a cost at some sizes."""
    both = [CostModel.of(machine).seconds(key, np.asarray(sizes, float), extrapolate=True) for machine in (true, found)]
    return float(np.max(np.abs(both[1] / both[0] - 1)))


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_programs_are_proved_and_run(name):
    measured = MEASUREMENTS[name]
    variant = measured.variant
    certificate = verify(variant.program)
    assert certificate.ok, certificate.checks
    inputs = programs_inputs(variant)
    _, timeline = execute_local(variant.program, variant.workload, inputs, options=variant.options)
    seconds = measured.seconds(timeline)
    assert len(seconds) >= 1
    assert all(0 <= s < 1 for s in seconds)


def programs_inputs(variant):
    from dovetail.run import fresh_inputs

    return fresh_inputs(variant.program, variant.workload, 0)


def test_streams_are_proved():
    for tiles, messages in (([50, 50], 0), ([], 40), ([50, 50], 40)):
        assert verify(programs.stream(WORKLOAD, SAMPLE, 2, tiles, 4096, messages).variant.program).ok


@pytest.mark.parametrize("number", [0, 1])
def test_messages_of_a_stream_have_the_bytes_asked_for(number):
    """Independent of the operator's own buffers, whose slots may differ in size."""
    operator = (AllGatherMatmul, AllGatherColumnsMatmul)[number](300, 13, 5, "float32")
    sample = operator.samples(2)[-1]
    one = programs.stream(partial(operator.workload, schedule=operator.serial(2)), sample, 2, [50], 4096, 3).variant
    assert one.workload.sizes
    col = one.program.columns
    read = col["read_start"][:-1][col["kind"] == Kind.send]
    assert set(region_bytes(one.program, one.workload, "read")[read]) == {4096}


@pytest.mark.parametrize(("num_bytes", "slots"), [(4096, 32), (16 << 20, 4), (1 << 30, 2)])
def test_a_stream_of_long_messages_buffers_few_of_them(num_bytes, slots):
    program = programs.stream(WORKLOAD, SAMPLE, 2, [50], num_bytes, 100).variant.program
    assert program.buffer("sums").slots[0] == slots


@pytest.mark.parametrize("nodes", [(0, 1), (0, 0)])
def test_links_are_found(nodes):
    true = true_machine(nodes)
    found = probe_links(SimExecutor(true), 2, "found", QUICK)
    (kind,) = pairs_of(true)
    assert found.nodes == nodes
    assert pairs_of(found) == {kind: (0, 1)}
    sizes = [size for size in MESSAGE_BYTES if size <= 1 << 20]
    assert off(true, found, f"p2p:{kind}", sizes) < 0.03
    assert off(true, found, "all_reduce:2", sizes[2:]) < 0.02
    assert off(true, found, "reduce", sizes[3:]) < 0.05
    assert off(true, found, f"exchange:{kind}", sizes[4:]) < 0.15
    assert found.facts["eager_limit_bytes"] == {kind: 16 << 10}


class Ported(SimExecutor):
    port = "pcie"


def test_ranks_with_a_port_each_are_nodes():
    """All messages of a rank share its port: two that come from different ranks take twice as long as one."""
    pair = true_machine((0, 0))
    costs = {**pair.costs, "all_reduce:3": pair.costs["all_reduce:2"]}
    found = probe_links(Ported(replace(pair, ranks=3, nodes=(0, 0, 0), costs=costs)), 3, "found", QUICK)
    assert found.nodes == (0, 1, 2)
    assert {link.kind for link in found.links} == {"pcie"}
    assert found.facts["stores_messages"] == ["pcie"]
    one, both = (seconds_to_receive(found, peers) for peers in ((1,), (1, 2)))
    assert both == pytest.approx(2 * one, rel=0.05)


def seconds_to_receive(machine, peers):
    b = Builder("received", 3)
    b.buffer("x", "input", 1), b.buffer("y", "output", 2)
    for place, peer in enumerate(peers):
        channel = b.channel(peer, 0)
        b.add(Kind.send, peer, b.lane("net", "net"), reads=[Region("x", 0, 1)], chan_out=channel)
        b.add(Kind.recv, 0, b.lane(f"net {peer}", "net"), writes=[Region("y", place, 1)], chan_in=channel)
    program = b.build()
    workload = Workload({buffer.name: (Slot((4 << 20,), "float32"),) * 3 for buffer in program.buffers})
    return simulate(program, machine, workload=workload, extrapolate=True).makespan_s


class Mixing(Executor):
    """Simulates as SimExecutor does, but all messages in flight together end with the last of them."""

    def __init__(self, true):
        self.true, self.sliced = SimExecutor(true), []

    def execute_unverified(self, job):
        result = self.true.execute(job)
        both = zip(job.variants, result.outcomes, strict=True)
        return replace(result, outcomes=tuple(self._mixed(variant, outcome) for variant, outcome in both))

    def _mixed(self, variant, outcome):
        streams = any(word in variant.name for word in ("exchange", "stream messages"))
        self.sliced += [variant.options.slice_bytes] if streams else []
        if not streams or variant.options.slice_bytes:
            return outcome
        return replace(outcome, timelines=tuple(self._last(t) for t in outcome.timelines))

    def _last(self, timeline):
        ends, lanes = timeline.columns["end_s"].copy(), timeline.columns["lane"]
        received = lanes == timeline.lanes.index("recv")
        ends[received] = ends[received].max()
        return replace(timeline, columns=timeline.columns | {"end_s": ends})


def test_interleaved_messages_are_sent_in_eager_slices():
    ranks = Mixing(true_machine())
    found = probe_links(ranks, 2, "found", QUICK)
    assert found.slice_bytes == 16 << 10
    assert set(ranks.sliced) == {0, 16 << 10}  # whole messages to detect interleaving, slices to measure costs
    ranks.sliced.clear()
    assert spot_check(ranks, found)
    found = probe_operator(ranks, found, OPERATOR, 2, QUICK)
    assert set(ranks.sliced) == {16 << 10}
    ours, library = (plan(OPERATOR, found, by=by, schedule="uniform").schedule for by in ("exchange", "library"))
    assert (ours.slice_bytes, ours.progress) == (16 << 10, "thread")
    assert library.slice_bytes == 0
    assert probe_links(SimExecutor(true_machine()), 2, "found", QUICK).slice_bytes == 0


def test_no_eager_limit_if_no_message_waits():
    def limits(per_byte_s, facts):
        fast = {key: line(1e-6, per_byte_s) for key in ("p2p:net", "exchange:net")}
        true = replace(true_machine(), costs=true_machine().costs | fast, facts=facts)
        return probe_links(SimExecutor(true), 2, "found", QUICK).facts.get("eager_limit_bytes")

    assert limits(1e-10, {}) is None
    assert limits(1e-10, {"eager_limit_bytes": {"net": 2 << 20}}) == {"net": 1 << 20}
    assert limits(5e-9, {}) == {"net": 512 << 10}  # larger messages take longer than the receive is late


def test_contention_is_found_beside_products_that_outlast_all_messages():
    slow = true_machine()
    slow = replace(slow, costs=slow.costs | {f"kernel:{KEY}": line(5e-6, 0.01, "rows")})
    found = probe_operator(SimExecutor(slow), probe_links(SimExecutor(slow), 2, "found", QUICK), OPERATOR, 2, QUICK)
    assert off(slow, found, "cil:compute", [32 << 10, 128 << 10]) < 0.1


def test_noise_is_averaged_out():
    true = true_machine()
    found = probe_links(SimExecutor(true, noise=0.03), 2, "found", QUICK)
    assert off(true, found, "p2p:net", [64, 64 << 10, 1 << 20]) < 0.1


def test_products_and_contention_are_found():
    true = true_machine()
    links = probe_links(SimExecutor(true), 2, "found", QUICK)
    found = probe_operator(SimExecutor(true), links, OPERATOR, 2, QUICK)
    assert off(true, found, f"kernel:{KEY}", [8, 64, 200, 512]) < 0.03
    assert off(true, found, "cil:compute", [32 << 10, 128 << 10]) < 0.1
    assert off(true, found, "cil:net", [32 << 10, 128 << 10]) < 0.15


def test_a_machine_that_changed_is_noticed():
    true = true_machine()
    found = probe_links(SimExecutor(true), 2, "found", QUICK)
    assert spot_check(SimExecutor(true), found)
    slower = replace(
        true, costs=true.costs | {"exchange:net": line(2e-6, 2 / 114e6), "p2p:net": line(90e-6, 2 / 115e6)}
    )
    assert not spot_check(SimExecutor(slower), found)
    moved = true_machine((0, 0))
    assert not spot_check(SimExecutor(moved), found)


def test_a_clock_that_changed_is_noticed():
    true = true_machine()
    found = probe_operator(SimExecutor(true), probe_links(SimExecutor(true), 2, "found", QUICK), OPERATOR, 2, QUICK)
    assert spot_check_operator(SimExecutor(true), found, OPERATOR, 2)
    hot = replace(true, costs=true.costs | {f"kernel:{KEY}": line(0.0, 1.2 * 2e-6, "rows")})
    assert spot_check_operator(SimExecutor(hot), found, OPERATOR, 2, tolerance=9.0)
    assert not spot_check_operator(SimExecutor(hot), found, OPERATOR, 2)
    few = replace(found, costs={key: curve for key, curve in found.costs.items() if key != f"kernel:{KEY}"})
    assert not spot_check_operator(SimExecutor(true), few, OPERATOR, 2)  # as another version saved them


def test_three_hosts_are_joined_by_a_switch():
    costs = {"p2p:net": line(60e-6, 1e-8), "all_reduce:3": line(1e-4, 1e-8), "reduce": line(1e-6, 1e-9)}
    links = [Link(*way, "net") for way in [(a, b) for a in range(3) for b in range(3) if a != b]]
    true = Machine("true", 3, (0, 1, 2), tuple(links), costs, {})
    found = probe_links(SimExecutor(true), 3, "found", QUICK)
    assert found.ranks == 3
    assert len(found.links) == 6
    assert found.route(0, 2)[0] == "net"
    assert off(true, found, "p2p:net", [64, 1 << 20]) < 0.02


def test_messages_through_shared_memory_have_costs_of_their_own():
    true = true_machine((0, 0))
    found = probe_shared(SimExecutor(true), Machine("bare", 2, (0, 0)))
    assert sorted(found.costs) == [f"shared:{key}" for key in ("copy", "exchange:shm", "p2p:shm", "reduce")]
    shared, expected = CostModel.of(found.shared), CostModel.of(true)
    for num_bytes in (4 << 10, 256 << 10):
        for key, tolerance in (("p2p:shm", 0.02), ("reduce", 0.2)):  # sums come after a first copy
            seconds = expected.seconds(key, num_bytes, extrapolate=True)
            assert float(shared.seconds(key, num_bytes)) == pytest.approx(float(seconds), rel=tolerance), key


def test_ranks_that_record_no_times_are_not_probed():
    with pytest.raises(RunError, match="no times are recorded") as error:
        probe_links(executor_on("numpy"), 2, "numpy")
    assert "--on threads" in error.value.hint
