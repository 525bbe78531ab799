"""A link or a rank that fails: what ends, what hangs, and that nothing changes before."""

import numpy as np
import pytest

from dovetail.collective import build
from dovetail.core import OperatorError
from dovetail.cost import price
from dovetail.cost.prices import Prices
from dovetail.ir import Builder, Kind, Program, Slot, Workload
from dovetail.machine import Fault, load, without
from dovetail.sim import simulate
from dovetail.sim.failure import simulate_failure


def on_torus(name: str = "ring_all_reduce", machine: str = "torus-2x4") -> tuple[Program, Prices]:
    where = load(machine)
    program = build(name, where.ranks)
    slots = Workload({buffer.name: (Slot((4096,), "float32"),) * where.ranks for buffer in program.buffers})
    return program, price(program, where, slots)


def test_all_before_the_failure_is_as_without_it() -> None:
    program, prices = on_torus()
    whole = simulate(program, prices).columns["end_s"]
    at_s = float(np.median(whole))
    failed = simulate_failure(program, prices, at_s, rank=3)
    ended = dict(zip(failed.ops.tolist(), failed.timeline.columns["end_s"].tolist(), strict=True))
    early = np.flatnonzero(whole <= at_s)
    assert [ended[op] for op in early.tolist()] == whole[early].tolist()
    assert all(program.columns["rank"][op] == 3 and whole[op] > at_s for op in failed.struck)
    assert sorted([*failed.ops.tolist(), *failed.struck, *failed.hung]) == list(range(program.num_ops))
    assert failed.ranks(program) == tuple(range(8))  # a ring: everybody waits in the end
    assert not failed.survives


def test_a_link_stops_its_own_messages_only() -> None:
    b = Builder("two pairs", 4)
    net = b.lane("net", "net")
    for src, dst in ((0, 1), (2, 3)):
        channel = b.channel(src, dst)
        b.add(Kind.send, src, net, chan_out=channel)
        b.add(Kind.recv, dst, net, chan_in=channel)
    program = b.build()
    prices = Prices.plain(program, wire_s=2.0)
    failed = simulate_failure(program, prices, 1.0, links=[1])
    assert (failed.struck, failed.hung, failed.ops.tolist()) == ((2,), (3,), [0, 1])
    assert "op 2 'send' on rank 2" in failed.explain(program)
    late = simulate_failure(program, prices, 2.0, links=[1])
    assert late.survives
    assert late.timeline.makespan_s == late.whole_s == 2.0


def test_a_rank_that_has_failed_signals_nobody() -> None:
    b = Builder("signal", 2)
    net, channel = b.lane("net", "net"), b.channel(0, 1)
    work = b.add(Kind.nop, 0, net)
    b.add(Kind.signal, 0, net, chan_out=channel, after=[work])
    b.add(Kind.wait, 1, net, chan_in=channel)
    program = b.build()
    failed = simulate_failure(program, Prices.plain(program, work_s=[2.0, 0.0, 0.0]), 1.0, rank=0)
    assert (failed.struck, failed.hung) == ((0, 1), (2,))


def test_planned_around_a_dead_cable() -> None:
    whole, cable = load("torus-2x4"), Fault.parse("link:0-1")
    left = without(whole, cable)
    program, _ = on_torus("all_pairs_all_reduce")
    slots = Workload({buffer.name: (Slot((4096,), "float32"),) * 8 for buffer in program.buffers})
    around = price(program, left, slots)
    assert simulate(program, around).makespan_s > simulate(program, price(program, whole, slots)).makespan_s
    assert all(not {0, 1} >= {left.links[row].src, left.links[row].dst} for row in left.route(0, 1)[1])


def test_impossible_failures_are_refused() -> None:
    program, prices = on_torus()
    b = Builder("calls", 2)
    call, net = b.collective("all_reduce", (0, 1)), b.lane("net", "net")
    for rank in (0, 1):
        b.add(Kind.collective, rank, net, call=call)
    calls = b.build()
    with pytest.raises(OperatorError, match="no rank 8"):
        simulate_failure(program, prices, 0.0, rank=8)
    with pytest.raises(OperatorError, match="calls of collectives"):
        simulate_failure(calls, prices, 0.0, links=[0])
    with pytest.raises(OperatorError, match="no link"):
        simulate_failure(program, prices, 0.0, links=[prices.num_links])
    with pytest.raises(OperatorError, match="at least 0 s"):
        simulate_failure(program, prices, float("nan"), rank=0)
