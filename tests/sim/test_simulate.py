"""simulate against closed forms: FIFO depth, rendezvous, links, contention, collectives, one-sided, stuck programs."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from effort import ratio

from dovetail.core import CostError, ProgramError
from dovetail.cost.prices import Prices
from dovetail.ir import Builder, Kind, Program
from dovetail.ir.shapes import ring_all_reduce
from dovetail.sim import simulate
from dovetail.timeline import Timeline

SEED_ROW_S = 803e-6 / 4096  # seed 000: the matmul of 4096 rows takes 803 us, linear through 0


def seed_all_reduce_s(rows: int) -> float:
    """Seed 000's fit for 8 ranks on 910B, in microseconds over MiB of all data; a row holds 8192 float16."""
    x = rows * 8192 * 2 / 2**20
    return (-0.9698202 * x * x + 27.0622573 * x + 14.769 if x <= 8 else 13.58491263 * x + 61.508333) * 1e-6


def tiled(tiles: list[int], ranks: int = 2) -> tuple[Program, Prices]:
    """Return matmul tiles on lane 0 and the library's all_reduce of each on lane 1, with the costs of seed 000."""
    b = Builder("tiled", ranks)
    compute, net = b.lane("compute", "compute"), b.lane("net", "net")
    call, work = b.collective("all_reduce", range(ranks)), []
    for rank in range(ranks):
        for rows in tiles:
            done = b.add(Kind.compute, rank, compute, call=b.kernel("matmul", []))
            b.add(Kind.collective, rank, net, call=call, after=[done])
            work += [rows * SEED_ROW_S, seed_all_reduce_s(rows)]
    program = b.build()
    return program, Prices.plain(program, work)


def ends(timeline: Timeline) -> list[float]:
    return [float(end) for end in timeline.columns["end_s"]]


def starts(timeline: Timeline) -> list[float]:
    return [float(start) for start in timeline.columns["start_s"]]


def messages(count: int, depth: int = 8) -> Program:
    """Return `count` sends on one lane of rank 0, then `count` receives on one lane of rank 1."""
    b = Builder("messages", 2)
    net, channel = b.lane("net", "net"), b.channel(0, 1, depth=depth)
    for kind, rank, chan in ((Kind.send, 0, "chan_out"), (Kind.recv, 1, "chan_in")):
        for _ in range(count):
            b.add(kind, rank, net, **{chan: channel})  # type: ignore[arg-type]
    return b.build()


def test_empty_program() -> None:
    program = Builder("empty", 3).build()
    timeline = simulate(program, Prices.plain(program), "nowhere")
    assert (timeline.num_spans, timeline.makespan_s, timeline.label) == (0, 0.0, "predicted")
    assert timeline.meta == {"program": "empty", "machine": "nowhere"}


def test_one_op() -> None:
    b = Builder("one", 1)
    b.add(Kind.copy, 0, b.lane("copy", "copy"))
    program = b.build()
    assert simulate(program, Prices.plain(program, 2.5)).makespan_s == 2.5


@pytest.mark.parametrize(
    ("tiles", "want_us"),
    [([512, 896, 896, 896, 896], 1283), ([768, 768, 768, 1792], 1266), ([512, 768, 1152, 1664], 1218)],
)
def test_seed_000_plans(tiles: list[int], want_us: float) -> None:
    program, prices = tiled(tiles)
    compute, net = 0.0, 0.0
    for rows in tiles:  # the closed form of a two-stage pipeline
        compute += rows * SEED_ROW_S
        net = max(compute, net) + seed_all_reduce_s(rows)
    makespan = simulate(program, prices).makespan_s
    assert makespan == pytest.approx(net, rel=1e-12)
    assert makespan * 1e6 == pytest.approx(want_us, abs=0.6)


def test_message_closed_form() -> None:
    program = messages(1)
    timeline = simulate(program, Prices.plain(program, [0.0, 0.5], 2.0, latency_s=1.0))
    assert ends(timeline) == [2.0, 3.5]
    assert starts(timeline) == [0.0, 0.0]


def test_messages_pipeline_on_the_wire() -> None:
    program = messages(3)
    assert ends(simulate(program, Prices.plain(program, 0.0, 2.0, latency_s=1.0))) == [2, 4, 6, 3, 5, 7]


def test_fifo_depth_blocks_the_sender() -> None:
    work = [0.0] * 4 + [10.0] * 4  # a slow receiver
    for depth, want in ((1, [1, 2, 12, 22]), (2, [1, 2, 3, 12]), (4, [1, 2, 3, 4])):
        program = messages(4, depth)
        assert ends(simulate(program, Prices.plain(program, work, 1.0)))[:4] == want


def test_rendezvous_waits_for_the_receive() -> None:
    b = Builder("late", 2)
    net, compute, channel = b.lane("net", "net"), b.lane("compute", "compute"), b.channel(0, 1)
    b.add(Kind.send, 0, net, chan_out=channel)
    busy = b.add(Kind.compute, 1, compute)
    b.add(Kind.recv, 1, net, chan_in=channel, after=[busy])
    program = b.build()
    eager = Prices.plain(program, [0.0, 5.0, 0.0], 1.0)
    assert ends(simulate(program, eager)) == [1, 5, 5]
    assert ends(simulate(program, eager.with_columns(rendezvous=[True] * 3))) == [6, 5, 6]


def test_links_serve_in_order_of_request() -> None:
    """Three senders share the receiver's link; rank 1 requests it first, then 2, then 3; the order in a route is
    irrelevant."""
    b = Builder("incast", 4)
    net, compute = b.lane("net", "net"), b.lane("compute", "compute")
    for src in (1, 2, 3):
        ready = b.add(Kind.compute, src, compute)
        b.add(Kind.send, src, net, chan_out=b.channel(src, 0), after=[ready])
        b.add(Kind.recv, 0, b.lane(f"net{src}", "net"), chan_in=b.channel(src, 0))
    program = b.build()
    work = np.zeros(9)
    work[[0, 3, 6]] = [0.1, 0.2, 0.3]
    routes = {"route_start": [0, 2, 4, 6], "route": [0, 3, 3, 1, 2, 3], "num_links": 4}
    prices = Prices.plain(program, work, 1.0, **routes)
    assert [end for i, end in enumerate(ends(simulate(program, prices))) if i % 3 == 1] == [1.1, 2.1, 3.1]


@pytest.mark.parametrize(("stores", "end_s"), [(False, 3.0), (True, 2.0)])
def test_a_switch_that_stores_messages_frees_the_link_to_it(stores: bool, end_s: float) -> None:
    """Rank 0's message to 2 waits for rank 1's; its next, to 1, does so too, unless the switch stores the former."""
    b = Builder("star", 3)
    net = b.lane("net", "net")
    pairs = [(1, 2), (0, 2), (0, 1)]
    channels = [b.channel(*pair) for pair in pairs]
    for (src, _), channel in zip(pairs, channels, strict=True):
        b.add(Kind.send, src, net, chan_out=channel)
    for (_, dst), channel in zip(pairs, channels, strict=True):
        b.add(Kind.recv, dst, b.lane(f"from {channel}", "net"), chan_in=channel)
    program, route = b.build(), [link for src, dst in pairs for link in (src, 3 + dst)]
    uplinks = {"uplinks": [1, 1, 1]} if stores else {}
    prices = Prices.plain(program, wire_s=1.0, route_start=[0, 2, 4, 6], route=route, num_links=6, **uplinks)
    timeline = simulate(program, prices)
    assert ends(timeline)[3:] == [1.0, 2.0, end_s]
    assert ends(timeline)[1] == (1.0 if stores else 2.0)  # the send ends as its message leaves the rank's link


def test_fused_forwards_along_a_chain() -> None:
    b = Builder("chain", 3)
    net = b.lane("net", "net")
    first, second = b.channel(0, 1), b.channel(1, 2)
    b.add(Kind.send, 0, net, chan_out=first)
    b.add(Kind.recv_reduce_copy_send, 1, net, chan_in=first, chan_out=second)
    b.add(Kind.recv_reduce, 2, net, chan_in=second)
    program = b.build()
    timeline = simulate(program, Prices.plain(program, [0.0, 0.25, 0.5], 2.0, latency_s=1.0))
    assert ends(timeline) == [2.0, 5.25, 6.75]


def test_put_signal_wait() -> None:
    b = Builder("one-sided", 2)
    net, channel = b.lane("net", "net"), b.channel(0, 1)
    b.add(Kind.put, 0, net, chan_out=channel)
    b.add(Kind.signal, 0, net, chan_out=channel)
    b.add(Kind.wait, 1, net, chan_in=channel)
    program = b.build()
    timeline = simulate(program, Prices.plain(program, [0, 0, 0.5], 2.0, latency_s=[1.0, 0.25, 0.0]))
    assert ends(timeline) == [3.0, 3.0, 3.75]


def test_get_occupies_the_links_from_the_other_rank() -> None:
    b = Builder("one-sided", 2)
    net, channel = b.lane("net", "net"), b.channel(0, 1)
    b.add(Kind.get, 1, net, chan_in=channel)
    b.add(Kind.put, 0, net, chan_out=channel)  # the same link, one after the other
    program = b.build()
    assert ends(simulate(program, Prices.plain(program, 0, 2.0, latency_s=[1.0, 0.25]))) == [3.0, 4.25]


def test_collective_begins_with_its_last_member() -> None:
    b = Builder("meet", 3)
    compute, net = b.lane("compute", "compute"), b.lane("net", "net")
    call = b.collective("all_reduce", [0, 2])
    for rank in (0, 2):
        late = b.add(Kind.compute, rank, compute)
        b.add(Kind.collective, rank, net, call=call, after=[late])
    program = b.build()
    timeline = simulate(program, Prices.plain(program, [1.0, 3.0, 2.0, 4.0]))
    assert (starts(timeline), ends(timeline)) == ([0, 1, 0, 2], [1, 6, 2, 6])


class TestContention:
    """Rank 0 computes beside a message to rank 1."""

    def program(self) -> Program:
        b = Builder("beside", 2)
        compute, net, channel = b.lane("compute", "compute"), b.lane("net", "net"), b.channel(0, 1)
        b.add(Kind.compute, 0, compute)
        b.add(Kind.send, 0, net, chan_out=channel)
        b.add(Kind.recv, 1, net, chan_in=channel)
        return b.build()

    def test_traffic_slows_compute_while_it_lasts(self) -> None:
        program = self.program()
        prices = Prices.plain(program, [10.0, 0, 0], 4.0, slow_by_net=2.0)
        assert ends(simulate(program, prices)) == [12.0, 4.0, 4.0]  # half speed for 4 s

    def test_compute_slows_traffic_while_it_lasts(self) -> None:
        program = self.program()
        prices = Prices.plain(program, [3.0, 0, 0], 4.0, slow_by_compute=2.0)
        assert ends(simulate(program, prices)) == [3.0, 5.5, 5.5]  # 1.5 s done after 3 s, 2.5 s to go

    def test_each_slows_the_other(self) -> None:
        program = self.program()
        prices = Prices.plain(program, [3.0, 0, 0], 4.0, slow_by_net=1.5, slow_by_compute=2.0)
        assert ends(simulate(program, prices)) == [4.5, 6.25, 6.25]

    def test_latency_is_no_activity(self) -> None:
        program = self.program()
        prices = Prices.plain(program, [10.0, 0, 0], 0.0, latency_s=4.0, slow_by_net=2.0)
        assert simulate(program, prices).makespan_s == 10.0

    def test_receiver_slows_the_message_too(self) -> None:
        b = Builder("there", 2)
        compute, net, channel = b.lane("compute", "compute"), b.lane("net", "net"), b.channel(0, 1)
        b.add(Kind.compute, 1, compute)
        b.add(Kind.send, 0, net, chan_out=channel)
        b.add(Kind.recv, 1, net, chan_in=channel)
        program = b.build()
        prices = Prices.plain(program, [1.0, 0, 0], 1.0, slow_by_compute=4.0)
        assert ends(simulate(program, prices)) == [1.0, 1.75, 1.75]

    def test_collective_is_slowed_by_any_member(self) -> None:
        b = Builder("meet", 2)
        compute, net, call = b.lane("compute", "compute"), b.lane("net", "net"), b.collective("all_reduce", [0, 1])
        b.add(Kind.compute, 1, compute)
        for rank in (0, 1):
            b.add(Kind.collective, rank, net, call=call)
        program = b.build()
        prices = Prices.plain(program, [2.0, 3.0, 3.0], slow_by_compute=2.0, slow_by_net=1.25)
        assert ends(simulate(program, prices)) == [2.5, 4.25, 4.25]


class TestStuck:
    def test_message_that_never_comes(self) -> None:
        b = Builder("lonely", 2)
        b.add(Kind.recv, 1, b.lane("net", "net"), chan_in=b.channel(0, 1), line="lonely.py:3")
        program = b.build()
        with pytest.raises(ProgramError, match="op 0 'recv' on rank 1: rank 0 never sends it") as error:
            simulate(program, Prices.plain(program))
        assert error.value.where == "lonely.py:3"
        assert error.value.found == "0 of 1 ops ended"

    def test_signal_that_never_comes_is_found_behind_others(self) -> None:
        b = Builder("behind", 2)
        net = b.lane("net", "net")
        b.add(Kind.recv, 1, net, chan_in=b.channel(0, 1))
        b.add(Kind.wait, 0, net, chan_in=b.channel(1, 0))
        b.add(Kind.send, 0, net, chan_out=b.channel(0, 1))
        program = b.build()
        with pytest.raises(ProgramError, match="op 1 'wait' on rank 0: rank 1 never signals it"):
            simulate(program, Prices.plain(program))

    def test_receive_before_send_on_both_ranks(self) -> None:
        b = Builder("cycle", 2)
        net = b.lane("net", "net")
        for rank in (0, 1):
            b.add(Kind.recv, rank, net, chan_in=b.channel(1 - rank, rank))
            b.add(Kind.send, rank, net, chan_out=b.channel(rank, 1 - rank))
        program = b.build()
        with pytest.raises(ProgramError, match="deadlock: op 0 'recv' on rank 0 waits for rank 1 to send") as error:
            simulate(program, Prices.plain(program))
        assert "op 3 'send' on rank 1 waits for op 2" in str(error.value)

    def test_full_channel(self) -> None:
        b = Builder("full", 2)
        net, channel = b.lane("net", "net"), b.channel(0, 1, depth=1)
        for _ in range(3):
            b.add(Kind.send, 0, net, chan_out=channel)
        b.add(Kind.recv, 1, net, chan_in=channel)
        program = b.build()
        with pytest.raises(ProgramError, match="op 2 'send' on rank 0: rank 1 never receives on channel 0->1"):
            simulate(program, Prices.plain(program))

    def test_crossed_sends_on_full_channels(self) -> None:
        """Each rank sends twice before it receives, over channels that hold one message."""
        b = Builder("crossed", 2)
        net = b.lane("net", "net")
        for rank in (0, 1):
            for _ in range(2):
                b.add(Kind.send, rank, net, chan_out=b.channel(rank, 1 - rank, depth=1))
            for _ in range(2):
                b.add(Kind.recv, rank, net, chan_in=b.channel(1 - rank, rank, depth=1))
        program = b.build()
        with pytest.raises(ProgramError, match="waits for rank 1 to receive on channel 0->1 of depth 1") as error:
            simulate(program, Prices.plain(program))
        assert error.value.hint == "make the channels deeper, or receive earlier"
        assert simulate(program.with_depth(2), Prices.plain(program, 0.0, 1.0)).makespan_s == 2.0

    def test_crossed_sends_of_messages_that_wait_for_their_receive(self) -> None:
        b = Builder("crossed", 2)
        net = b.lane("net", "net")
        for rank in (0, 1):
            b.add(Kind.send, rank, net, chan_out=b.channel(rank, 1 - rank, depth=4))
            b.add(Kind.recv, rank, net, chan_in=b.channel(1 - rank, rank, depth=4))
        program = b.build()
        prices = Prices.plain(program).with_columns(rendezvous=np.ones(program.num_ops, bool))
        with pytest.raises(ProgramError, match="deadlock") as error:
            simulate(program, prices)
        assert error.value.hint == "receive earlier: messages of this size wait for their receive"
        assert simulate(program, prices.as_run(program)).makespan_s == 0.0

    def test_long_cycles_are_cut_short(self) -> None:
        b = Builder("ring", 20)
        net = b.lane("net", "net")
        for rank in range(20):
            b.add(Kind.recv, rank, net, chan_in=b.channel((rank - 1) % 20, rank))
            b.add(Kind.send, rank, net, chan_out=b.channel(rank, (rank + 1) % 20))
        program = b.build()
        with pytest.raises(ProgramError, match="and so on through 40 ops, back to op 0"):
            simulate(program, Prices.plain(program))

    def test_absent_member(self) -> None:
        b = Builder("absent", 3)
        call = b.collective("all_reduce", [0, 1, 2])
        for rank in (0, 2):
            b.add(Kind.collective, rank, b.lane("net", "net"), call=call)
        program = b.build()
        with pytest.raises(ProgramError, match="rank 1 never makes call 1 of all_reduce"):
            simulate(program, Prices.plain(program))

    def test_op_after_itself(self) -> None:
        b = Builder("self", 1)
        b.add(Kind.nop, 0, b.lane("net", "net"), after=[0])
        program = b.build()
        with pytest.raises(ProgramError, match="deadlock: op 0 'nop' on rank 0 waits for op 0"):
            simulate(program, Prices.plain(program))


def test_near_linear() -> None:
    """With ten times the ops, CPU seconds per op at most double."""
    small, large = ring_all_reduce(64, 1), ring_all_reduce(64, 10)
    calls = [partial(simulate, program, Prices.plain(program, 1.0, 2.0)) for program in (large, small)]
    most = 2 * large.num_ops / small.num_ops
    assert ratio(*calls, most) < most


class TestRefusals:
    def test_channel_of_another_rank(self) -> None:
        b = Builder("foreign", 3)
        b.add(Kind.send, 2, b.lane("net", "net"), chan_out=b.channel(0, 1))
        program = b.build()
        with pytest.raises(ProgramError, match="op 0 'send' on rank 2 has no channel from its rank"):
            simulate(program, Prices.plain(program))

    def test_rank_outside_the_group(self) -> None:
        b = Builder("outside", 3)
        b.add(Kind.collective, 2, b.lane("net", "net"), call=b.collective("all_reduce", [0, 1]))
        program = b.build()
        with pytest.raises(ProgramError, match="is in no group of its rank"):
            simulate(program, Prices.plain(program))

    def test_prices_of_another_program(self) -> None:
        with pytest.raises(CostError, match="do not fit program 'messages'"):
            simulate(messages(2), Prices.plain(messages(1)))

    @pytest.mark.parametrize("fault", [{"work_s": -1.0}, {"wire_s": np.nan}, {"slow_by_net": 0.5}, {"route": [1]}])
    def test_impossible_prices(self, fault: dict[str, object]) -> None:
        with pytest.raises(CostError):
            Prices.plain(messages(1), **fault)
