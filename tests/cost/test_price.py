"""price: every kind of op against values by hand; routes, exchanges, contention, and a million ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from effort import ratio

from dovetail.core import CostError
from dovetail.cost import CostModel, Curve, Samples, fit_factor, price
from dovetail.ir import Builder, KernelForm, Kind, Operand, Program, Region, Slot, Work, Workload
from dovetail.ir.unique_rows import unique_rows
from dovetail.machine import SWITCH, Link, Machine, load

LATENCY, P2P, EXCHANGE, REDUCE, COPY, ROW = 10e-6, 1e-9, 2e-9, 3e-9, 4e-9, 5e-6
SLOT = 256  # bytes


def curve(slope: float, start: float = 0.0, **fields: object) -> dict[str, object]:
    return Curve.through([0, 1e7], [start, start + slope * 1e7], **{"high": 1e7, **fields}).to_json()


COSTS = {
    "p2p:tcp": curve(P2P, LATENCY),
    "exchange:tcp": curve(EXCHANGE),
    "reduce": curve(REDUCE),
    "copy": curve(COPY),
    "kernel:work": curve(ROW, x_unit="rows"),
    "all_reduce:2": curve(7e-9, 20e-6),
}
PAIR = (Link(0, 1, "tcp"), Link(1, 0, "tcp"))
A, B = Region("A", 0, 4), Region("B", 0, 4)


def machine(costs: dict[str, dict[str, object]] = COSTS, **facts: object) -> Machine:
    return Machine("pair", 2, (0, 1), PAIR, costs, facts)


def builder(ranks: int = 2) -> tuple[Builder, int, int]:
    b = Builder("test", ranks)
    b.buffer("A", "input", 64)
    b.buffer("B", "scratch", 64)
    return b, b.lane("compute", "compute"), b.lane("net", "net")


def workload(ranks: int = 2) -> Workload:
    slots = (Slot((SLOT // 4,), "float32"),) * ranks
    return Workload({"A": slots, "B": slots}, (form("work", "work"),))


def form(name: str, key: str, flops: float = 1e3) -> KernelForm:
    """A kernel whose units are the slots that it writes."""

    def work(reads: Sequence[Operand], writes: Sequence[Operand]) -> Work:
        return Work(key, writes[0].slots, flops * writes[0].slots)

    return KernelForm(name, lambda reads, writes: None, work)


def one_of_each() -> Program:
    """One op of each kind, with traffic in one direction; row numbers equal the kinds' numbers."""
    b, compute, net = builder()
    there, kernel = b.channel(0, 1), b.kernel("work", ["each"])
    b.add(Kind.nop, 0, net)
    b.add(Kind.copy, 0, net, reads=[A], writes=[B])
    b.add(Kind.reduce, 0, net, reads=[A], writes=[B])
    b.add(Kind.send, 0, net, reads=[A], chan_out=there)
    b.add(Kind.recv, 1, net, writes=[B], chan_in=there)
    b.add(Kind.recv_reduce, 1, net, reads=[A], writes=[B], chan_in=there)
    b.add(Kind.recv_copy_send, 0, net, writes=[B], chan_in=there, chan_out=there)
    b.add(Kind.recv_reduce_send, 0, net, reads=[A], chan_in=there, chan_out=there)
    b.add(Kind.recv_reduce_copy_send, 0, net, reads=[A], writes=[B], chan_in=there, chan_out=there)
    b.add(Kind.put, 0, net, reads=[A], writes=[B], chan_out=there)
    b.add(Kind.signal, 0, net, chan_out=there)
    b.add(Kind.wait, 1, net, chan_in=there)
    b.add(Kind.compute, 0, compute, reads=[A], writes=[B], call=kernel)
    b.add(Kind.collective, 0, net, reads=[A], writes=[B], call=b.collective("all_reduce", [0, 1]))
    b.add(Kind.get, 1, net, reads=[A], writes=[B], chan_in=there)
    return b.build()


def test_every_kind_costs_what_its_curve_says() -> None:
    prices = price(one_of_each(), machine(), workload())
    n = 4 * SLOT
    add = REDUCE * n
    work = [0, COPY * n, add, 0, 0, add, 0, add, add, 0, 0, 0, ROW * 4, 20e-6 + 7e-9 * n, 0]
    wire = [P2P * n if kind in (3, 6, 7, 8, 9, 14) else 0 for kind in range(15)]
    latency = [LATENCY if kind in (3, 6, 7, 8, 9, 10) else 0 for kind in range(14)] + [2 * LATENCY]  # there and back
    assert prices.work_s == pytest.approx(work)
    assert prices.wire_s == pytest.approx(wire)
    assert prices.latency_s == pytest.approx(latency)
    assert prices.num_bytes.tolist() == [0, n, n, n, n, n, n, n, n, n, 0, 0, 0, n, n]
    assert not prices.rendezvous.any()
    assert np.all(prices.slow_by_net == 1)
    assert np.all(prices.slow_by_compute == 1)


def test_planted_fault_a_dearer_machine_is_noticed() -> None:
    """Planted fault: a copy curve 1 % off changes the prices."""
    right, wrong = (price(one_of_each(), machine({**COSTS, "copy": curve(s)}), workload()) for s in (COPY, 1.01 * COPY))
    assert right.work_s[1] != pytest.approx(wrong.work_s[1])


def two_way(back: Kind = Kind.send) -> Program:
    b, _, net = builder()
    b.add(Kind.send, 0, net, reads=[A], chan_out=b.channel(0, 1))
    b.add(back, 1, net, reads=[A] if back == Kind.send else [], chan_out=b.channel(1, 0))
    return b.build()


def test_messages_in_both_directions_cost_the_exchange() -> None:
    n = 4 * SLOT
    both = price(two_way(), machine(), workload())
    assert both.wire_s == pytest.approx([EXCHANGE * n] * 2)
    assert both.latency_s == pytest.approx([LATENCY] * 2)
    alone = price(two_way(Kind.signal), machine(), workload())  # a signal is no traffic
    assert alone.wire_s == pytest.approx([P2P * n, 0.0])
    no_exchange = {key: c for key, c in COSTS.items() if key != "exchange:tcp"}
    assert price(two_way(), machine(no_exchange), workload()).wire_s == pytest.approx([P2P * n] * 2)
    only_exchange = {key: c for key, c in COSTS.items() if key != "p2p:tcp"}
    assert price(two_way(Kind.signal), machine(only_exchange), workload()).wire_s[0] == pytest.approx(EXCHANGE * n)


def ping_pong(waits: bool = True) -> Program:
    """Three messages there and back, each in answer to the last; or, planted, all messages there sent at once."""
    b, _, net = builder()
    there, back, last = b.channel(0, 1), b.channel(1, 0), list[int]()
    for _ in range(3):
        b.add(Kind.send, 0, net, reads=[A], chan_out=there, after=last)
        got = b.add(Kind.recv, 1, net, writes=[A], chan_in=there)
        b.add(Kind.send, 1, net, reads=[A], chan_out=back, after=[got])
        if waits:
            last = [b.add(Kind.recv, 0, net, writes=[A], chan_in=back)]
    for _ in range(0 if waits else 3):
        b.add(Kind.recv, 0, net, writes=[A], chan_in=back)
    return b.build()


def test_messages_that_answer_each_other_are_no_exchange() -> None:
    n = 4 * SLOT
    for program, each in ((ping_pong(), P2P), (ping_pong(waits=False), EXCHANGE)):
        wire = price(program, machine(), workload()).wire_s
        assert wire[wire > 0] == pytest.approx([each * n] * 6)


def test_a_ring_uses_both_directions_of_links_to_a_switch() -> None:
    b, _, net = builder(3)
    for rank in range(3):
        b.add(Kind.send, rank, net, reads=[A], chan_out=b.channel(rank, (rank + 1) % 3))
    star = tuple(Link(*ends, "tcp") for node in range(3) for ends in ((node, SWITCH), (SWITCH, node)))
    mesh = tuple(Link(a, z, "tcp") for a in range(3) for z in range(3) if a != z)
    for links, each in ((star, EXCHANGE), (mesh, P2P)):
        wired = Machine("three", 3, (0, 1, 2), links, COSTS)
        assert price(b.build(), wired, workload(3)).wire_s == pytest.approx([each * 4 * SLOT] * 3)


def test_two_pairs_of_ranks_on_two_nodes_share_links_and_cost_the_exchange() -> None:
    b, _, net = builder(4)
    b.add(Kind.send, 0, net, reads=[A], chan_out=b.channel(0, 2))
    b.add(Kind.send, 3, net, reads=[A], chan_out=b.channel(3, 1))
    four = Machine("four", 4, (0, 0, 1, 1), PAIR, COSTS)
    prices = price(b.build(), four, workload(4))
    assert prices.wire_s == pytest.approx([EXCHANGE * 4 * SLOT] * 2)
    assert prices.route.tolist() == [0, 1]


def test_routes_by_switch_straight_and_within_a_node() -> None:
    hub = tuple(Link(*ends, "tcp") for node in (0, 1, 2) for ends in ((node, SWITCH), (SWITCH, node)))
    star = Machine("star", 4, (0, 0, 1, 2), hub, {**COSTS, "p2p:shm": curve(1e-10, 1e-6)})
    b, _, net = builder(4)
    for src, dst in ((0, 2), (1, 3), (0, 1), (1, 0), (0, 1)):
        b.add(Kind.send, src, net, reads=[A], chan_out=b.channel(src, dst, id=len(b._channel_list)))
    prices = price(b.build(), star, workload(4))
    routes = [prices.route[a:z].tolist() for a, z in zip(prices.route_start, prices.route_start[1:], strict=False)]
    assert routes == [[0, 3], [0, 5], [6], [7], [6]]
    assert prices.num_links == 8
    assert prices.latency_s[[0, 2]] == pytest.approx([LATENCY, 1e-6])


def test_larger_messages_than_the_eager_limit_wait_for_their_receive() -> None:
    b, _, net = builder()
    there = b.channel(0, 1)
    for slots in (1, 4, 5):
        b.add(Kind.send, 0, net, reads=[Region("A", 0, slots)], chan_out=there)
    b.add(Kind.put, 0, net, reads=[A._replace(count=9)], chan_out=there)
    for limit, waits in ((4 * SLOT, [False, False, True, False]), (0, [True, True, True, False])):
        prices = price(b.build(), machine(eager_limit_bytes={"tcp": limit}), workload())
        assert prices.rendezvous.tolist() == waits


def overlapped() -> Program:
    b, compute, net = builder()
    kernel = b.kernel("work", ["each"])
    for rank in (0, 1):
        b.add(Kind.compute, rank, compute, reads=[A], writes=[B], call=kernel)
    b.add(Kind.send, 0, net, reads=[A], chan_out=b.channel(0, 1))
    b.add(Kind.send, 0, net, reads=[A._replace(count=16)], chan_out=b.channel(0, 1))
    b.add(Kind.collective, 1, net, reads=[A], writes=[B], call=b.collective("all_reduce", [0, 1]))
    return b.build()


def test_compute_and_traffic_slow_each_other_by_message_size() -> None:
    small, large = 4 * SLOT, 16 * SLOT
    compute = fit_factor(Samples.of({small: [2.0], large: [1.0]})).to_json()
    net = fit_factor(Samples.of({small: [1.5], large: [1.1]})).to_json()
    prices = price(overlapped(), machine({**COSTS, "cil:compute": compute, "cil:net": net}), workload())

    def beside(*sizes: int) -> float:  # the byte-weighted mean over the rank's messages
        mean = sum(n * n for n in sizes) / sum(sizes)
        return 2.0 - (mean - small) / (large - small)

    assert prices.slow_by_net == pytest.approx([beside(small, large), beside(small, large, small), 1, 1, 1])
    assert prices.slow_by_compute == pytest.approx([1, 1, 1.5, 1.1, 1.5])


def test_library_calls_use_their_own_slow_downs_if_measured() -> None:
    ours = {"cil:compute": curve(0.0, 2.0), "cil:net": curve(0.0, 1.5)}
    theirs = {"cil:compute:library": curve(0.0, 4.0), "cil:net:library": curve(0.0, 3.0)}
    known = machine({**COSTS, **ours, **theirs})
    assert Machine.from_json(known.to_json()) == known
    prices = price(overlapped(), known, workload())
    mixed = 2.0 * 20 / 24 + 4.0 * 4 / 24  # rank 1 gets 20 slots in messages, and 4 by a call
    assert prices.slow_by_net == pytest.approx([2.0, mixed, 1, 1, 1])
    assert prices.slow_by_compute == pytest.approx([1, 1, 1.5, 1.5, 3.0])
    assert price(overlapped(), machine({**COSTS, **theirs}), workload()).slow_by_net[1] == pytest.approx(
        20 / 24 + 4 * 4 / 24
    )


def test_contention_multiplies_communication_and_nothing_else() -> None:
    cil = {"cil:compute": curve(0.0, 3.0), "cil:net": curve(0.0, 3.0)}
    plain = price(overlapped(), machine({**COSTS, **cil}), workload(), contention=1.0)
    dear = price(overlapped(), machine({**COSTS, **cil}), workload(), contention=1.15)
    assert dear.work_s == pytest.approx(plain.work_s * np.array([1, 1, 1, 1, 1.15]))
    assert dear.wire_s == pytest.approx(1.15 * plain.wire_s)
    assert dear.latency_s == pytest.approx(1.15 * plain.latency_s)
    for prices in (plain, dear):
        assert np.all(prices.slow_by_net == 1)
        assert np.all(prices.slow_by_compute == 1)
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(CostError, match="contention"):
            price(overlapped(), machine(), workload(), contention=bad)


def test_prices_equal_those_of_the_seed() -> None:
    """Seed 000: 384 rows take 75 us to multiply; their all-reduce takes 142 us, times 1.15 the 164 us of its step 1."""
    b = Builder("mc2", 8)
    b.buffer("P", "scratch", 4096)
    compute, net = b.lane("compute", "compute"), b.lane("net", "net")
    kernel, group = b.kernel("matmul", ["each"]), b.collective("all_reduce", range(8))
    for rank in range(8):
        b.add(Kind.compute, rank, compute, writes=[Region("P", 0, 384)], call=kernel)
        b.add(Kind.collective, rank, net, reads=[Region("P", 0, 384)], writes=[Region("P", 0, 384)], call=group)
    key = "matmul:k=3072:n=8192:float16:block=64"
    sizes = Workload({"P": (Slot((8192,), "float16"),) * 8}, (form("matmul", key, 2.0 * 3072 * 8192),))
    alone, beside = (price(b.build(), load("atlas-a2-8"), sizes, contention=c) for c in (None, 1.15))
    assert alone.work_s[0] == pytest.approx(384 * 803e-6 / 4096)
    assert alone.work_s[1] * 1e6 == pytest.approx(142.23, abs=0.005)
    assert round(beside.work_s[1] * 1e6) == 164


def test_work_follows_from_the_operands_of_each_op() -> None:
    """One kernel with two sizes of slots on two ranks has two keys; empty ops cost nothing and need no curve."""

    def by_bytes(reads: Sequence[Operand], writes: Sequence[Operand]) -> Work:
        (read,) = reads
        assert (read.slots, read.slot.dtype) == (writes[0].slots, "float32")
        return Work(f"each={read.elements // max(read.slots, 1)}", read.slots, 0.0)

    b, compute, _ = builder()
    kernel = b.kernel("work", ["each"])
    for rank, region in ((0, A), (1, A), (1, Region("A", 0, 0)), (0, Region("A", 8, 2, 8, 3)), (0, A)):
        b.add(Kind.compute, rank, compute, reads=[region], writes=[region._replace(buffer="B")], call=kernel)
    slots = (Slot((64,), "float32"), Slot((32,), "float32"))
    uneven = Workload({"A": slots, "B": slots}, (KernelForm("work", lambda reads, writes: None, by_bytes),))
    costs = {**COSTS, "kernel:each=64": curve(ROW), "kernel:each=32": curve(9e-6)}
    prices = price(b.build(), machine(costs), uneven)
    assert prices.work_s == pytest.approx([4 * ROW, 4 * 9e-6, 0.0, 6 * ROW, 4 * ROW])


def test_slots_of_different_sizes_are_priced_by_their_elements() -> None:
    def elements(reads: Sequence[Operand], writes: Sequence[Operand]) -> Work:
        return Work("work", writes[0].elements, 0.0)

    b = Builder("uneven", 1)
    b.buffer("x", "input", 4)
    compute, kernel = b.lane("compute", "compute"), b.kernel("work", [])
    for region in (Region("x", 0, 2), Region("x", 1, 1, 2, 2)):
        b.add(Kind.compute, 0, compute, writes=[region], call=kernel)
    forms = (KernelForm("work", lambda reads, writes: None, elements),)
    sizes = Workload({"x": (Slot((), "int32"),)}, forms, {"x": (np.array([5, 0, 7, 2]),)})
    assert price(b.build(), machine(), sizes).work_s == pytest.approx([5 * ROW, 2 * ROW])


def test_unique_rows_separates_rows_of_equal_hashes() -> None:
    """Planted fault: two different rows with equal hashes."""
    factors = np.random.default_rng(0).integers(1 << 62, size=2) | 1
    table = np.array([[factors[1], 0], [0, factors[0]], [factors[1], 0], [3, 4]])
    first, which = unique_rows(list(table.T))
    assert len(first) == 3
    np.testing.assert_array_equal(table[first][which], table)


def test_strided_regions_count_all_their_slots_and_empty_ones_none() -> None:
    b, compute, net = builder()
    b.add(Kind.copy, 0, net, reads=[Region("A", 0, 2, 8, 3)], writes=[Region("B", 0, 6)])
    b.add(Kind.compute, 0, compute, writes=[Region("B", 0, 0)], call=b.kernel("work", []))
    b.add(Kind.send, 0, net, reads=[Region("A", 0, 0)], chan_out=b.channel(0, 1))
    prices = price(b.build(), machine(), workload())
    assert prices.work_s == pytest.approx([COPY * 6 * SLOT, 0.0, 0.0])
    assert (prices.wire_s[2], prices.latency_s[2]) == (0.0, LATENCY)


def test_a_program_without_ops_has_no_prices() -> None:
    assert price(Builder("empty", 1).build(), Machine("one", 1, (0,)), Workload({})).num_ops == 0


def test_a_collective_of_one_rank_is_a_copy() -> None:
    b, _, net = builder(1)
    b.add(Kind.collective, 0, net, reads=[A], writes=[B], call=b.collective("all_reduce", [0]))
    assert price(b.build(), machine(), workload()).work_s == pytest.approx([COPY * 4 * SLOT])


def test_inputs_that_do_not_fit_are_refused() -> None:
    program = one_of_each()
    with pytest.raises(CostError, match="needs 2 ranks"):
        price(program, Machine("one", 1, (0,)), workload())
    with pytest.raises(CostError, match="no size for buffer 'B'"):
        price(program, machine(), Workload({"A": workload().slots["A"]}))
    with pytest.raises(CostError, match="on each of 2 ranks"):
        price(program, machine(), workload(1))
    with pytest.raises(CostError, match="kernel 'work' costs"):
        price(program, machine(), Workload(workload().slots))
    with pytest.raises(CostError, match="no cost 'p2p:tcp'"):
        price(program, machine({"kernel:work": COSTS["kernel:work"], "all_reduce:2": COSTS["copy"]}), workload())


@pytest.mark.parametrize("kind", [Kind.copy, Kind.reduce, Kind.collective])
def test_smaller_sizes_cost_as_much_as_the_least_measured(kind: Kind) -> None:
    """Rows of a tiny grid, of a few bytes, cost as much as the least size measured, 1 KiB."""
    measured = {key: curve(REDUCE, 5e-6, low=1024.0) for key in ("copy", "reduce", "all_reduce:2")}
    b, compute, _ = builder()
    call = {"call": b.collective("all_reduce", [0, 1])} if kind == Kind.collective else {}
    for rank in (0, 1):
        b.add(kind, rank, compute, reads=[Region("A", 0, 1)], writes=[Region("B", 0, 1)], **call)
    (seconds, _) = price(b.build(), machine(COSTS | measured), workload()).work_s
    assert seconds == pytest.approx(5e-6 + 1024 * REDUCE)
    assert SLOT < 1024


def test_sizes_beyond_the_measured_are_refused_unless_asked() -> None:
    b, _, net = builder()
    b.add(Kind.send, 0, net, reads=[A], chan_out=b.channel(0, 1))
    short = machine({"p2p:tcp": Curve.through([0, 100], [1e-6, 2e-6], high=100).to_json()})
    with pytest.raises(CostError, match="p2p:tcp: the cost is known from 0 to 100 bytes"):
        price(b.build(), short, workload())
    far = price(b.build(), short, workload(), extrapolate=True)
    assert far.wire_s[0] == pytest.approx(1e-8 * 1024)


def tiled(program: Program, num_ops: int) -> Program:
    """Return the program's ops, repeated to about `num_ops`."""
    times, columns = num_ops // program.num_ops, {}
    for name, column in program.columns.items():
        if name.endswith("_start"):
            step = np.arange(times)[:, None] * column[-1]
            columns[name] = np.concatenate([(column[:-1] + step).ravel(), [column[-1] * times]])
        else:
            columns[name] = np.tile(column, times)
    return Program(program.name, 2, *(getattr(program, f) for f in TABLES), columns)


def computing() -> Program:
    """Compute ops of four sizes on two ranks."""
    b, compute, _ = builder()
    kernel = b.kernel("work", ["each"])
    for rank in (0, 1):
        for count in (1, 2, 3, 4):
            b.add(
                Kind.compute, rank, compute, reads=[Region("A", 0, count)], writes=[Region("B", 4, count)], call=kernel
            )
    return b.build()


@pytest.mark.slow
@pytest.mark.parametrize("make", [one_of_each, computing])
def test_pricing_a_million_ops_takes_no_longer_than_a_few_sorts(make: Callable[[], Program]) -> None:
    """Compares two times of one run; for scale, a stable sort of a million numbers takes under 0.1 s."""
    few, model = make(), machine()
    many = tiled(few, 1_000_000)
    CostModel.of(model)
    numbers = np.random.default_rng(0).random(many.num_ops)
    prices = price(many, model, workload())
    assert prices.work_s[-few.num_ops :] == pytest.approx(price(few, model, workload()).work_s)
    assert ratio(lambda: price(many, model, workload()), lambda: np.sort(numbers, kind="stable"), 5) < 5


TABLES = ("buffers", "lanes", "channels", "kernels", "collectives", "posts", "lines")
