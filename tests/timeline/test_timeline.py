"""timeline: spans, comparison, losses that add up exactly, four definitions of overlap."""

from __future__ import annotations

import json
from math import fsum

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_programs import prices_of, programs
from thorough import some

from dovetail.core import DovetailError
from dovetail.cost.prices import Prices
from dovetail.ir import Builder, Kind, Program, Region
from dovetail.sim import simulate
from dovetail.timeline import (
    Alone,
    Comparison,
    Span,
    Timeline,
    attribute,
    compare,
    from_spans,
    losses,
    on_the_wire,
    overlaps,
    union_s,
)


def alone_of(prices: Prices, compute_s: object, comm_s: object) -> Alone:
    columns = (prices.work_s, prices.wire_s, prices.latency_s, prices.rendezvous)
    return Alone(*columns, compute_s, comm_s)  # type: ignore[arg-type]


def tiled(num_tiles: int, ranks: int = 2) -> Program:
    """Return a program that computes tiles and all-reduces each on another lane; rows alternate between both."""
    b = Builder("tiled", ranks)
    compute, net, call = b.lane("compute", "compute"), b.lane("net", "net"), b.collective("all_reduce", range(ranks))
    for rank in range(ranks):
        for _ in range(num_tiles):
            done = b.add(Kind.compute, rank, compute)
            b.add(Kind.collective, rank, net, call=call, after=[done])
    return b.build()


def of_times(program: Program, times: list[tuple[float, float]]) -> Timeline:
    """Return a measured timeline with one span for each op."""
    spans = [
        Span(op.rank, program.lanes[op.lane].name, op.kind.name, *times[op.index], op=op.index) for op in program.ops()
    ]
    return from_spans("measured", program.num_ranks, spans)


def check_sum(timeline: Timeline, program: Program, alone: Alone) -> dict[str, float]:
    found = losses(timeline, program, alone)
    assert fsum(found.values()) == timeline.makespan_s - alone.ideal_s  # to the last bit
    return {name: seconds for name, seconds in found.items() if seconds}


class TestSpans:
    def test_union(self) -> None:
        assert union_s(np.zeros(0), np.zeros(0)) == 0.0
        assert union_s(np.array([3.0, 0.0, 1.0]), np.array([4.0, 2.0, 1.5])) == 3.0

    def test_round_trip(self) -> None:
        spans = [Span(0, "net", "send", 0.0, 1.0, 3, 64), Span(1, "compute", "matmul", 0.5, 2.0)]
        timeline = from_spans("measured", 2, spans, lanes=["compute", "net"], meta={"clock_error_s": 1e-6})
        again = Timeline.from_json(json.loads(json.dumps(timeline.to_json())))
        assert again.to_json() == timeline.to_json()
        assert (again.lanes, again.names, again.makespan_s) == (("compute", "net"), ("send", "matmul"), 2.0)
        assert (again.busy_s(1, 0), again.busy_s(0, 0)) == (1.5, 0.0)

    def test_empty(self) -> None:
        assert from_spans("measured", 0, []).makespan_s == 0.0


class TestCompare:
    def both(self) -> Comparison:
        program = tiled(2, ranks=1)
        predicted = simulate(program, Prices.plain(program, [1.0, 2.0, 1.0, 2.0]))
        return compare(predicted, of_times(program, [(0, 1.5), (1.5, 4.5), (1.5, 2.5), (4.5, 6.0)]))

    def test_makespan_and_busy(self) -> None:
        found = self.both()
        assert (found.predicted_s, found.measured_s, found.ratio) == (5.0, 6.0, 1.2)
        assert [(b.rank, b.lane, b.predicted_s, b.measured_s) for b in found.busy] == [
            (0, "compute", 2.0, 2.5),
            (0, "net", 4.0, 4.5),
        ]

    def test_op_errors(self) -> None:
        by_name = {row.name: row for row in self.both().errors}
        # the second all_reduce was predicted to wait for the first: 3 s, and took 1.5
        assert by_name["all_reduce"].count == by_name["compute"].count == 2
        assert by_name["compute"].median == pytest.approx(0.25)
        assert by_name["all_reduce"].worst_op in (1, 3)
        assert by_name["compute"].worst_op == 0

    def test_json(self) -> None:
        found = self.both()
        assert Comparison.from_json(json.loads(json.dumps(found.to_json()))) == found

    def test_equal_timelines(self) -> None:
        program = tiled(3)
        timeline = simulate(program, Prices.plain(program, 1.0))
        found = compare(timeline, timeline)
        assert (found.ratio, found.num_missing) == (1.0, 0)
        assert all(row.max_abs == 0 for row in found.errors)

    def test_missing_ops_are_counted(self) -> None:
        program = tiled(1, ranks=1)
        predicted = simulate(program, Prices.plain(program, 1.0))
        assert compare(predicted, from_spans("measured", 1, [])).num_missing == 2

    def test_other_rank_count(self) -> None:
        with pytest.raises(DovetailError, match="not of one program"):
            compare(from_spans("predicted", 1, []), from_spans("measured", 2, []))


class TestLosses:
    def test_serial_loses_the_shorter_resource(self) -> None:
        program = tiled(1)
        prices = Prices.plain(program, [3.0, 5.0] * 2)
        alone = alone_of(prices, 3.0, 5.0)
        assert check_sum(simulate(program, prices), program, alone) == {"head": 3.0}
        prices = Prices.plain(program, [5.0, 3.0] * 2)
        assert check_sum(simulate(program, prices), program, alone_of(prices, 5.0, 3.0)) == {"tail": 3.0}

    def test_pieces_cost_more_and_leave_gaps(self) -> None:
        program = tiled(3)
        prices = Prices.plain(program, [2.0, 3.0, 4.0, 3.0, 2.0, 6.0] * 2)
        timeline = simulate(program, prices)  # net: 2..5, 6..9, 9..15
        found = check_sum(timeline, program, alone_of(prices, 8.0, 10.0))
        assert found == {"head": 2.0, "stall": 1.0, "dil": 2.0}

    def test_a_single_piece_loses_nothing_by_cutting(self) -> None:
        """Not even a rounding error, if the piece was scaled to the whole: 0.3 · (0.7 / 0.3) is not 0.7."""
        program = tiled(1, ranks=1)
        alone = alone_of(Prices.plain(program, [0.3, 0.2]), 0.7, 0.1).scaled(program, 0.7 / 0.3, 0.1 / 0.2)
        found = check_sum(of_times(program, [(0.0, 0.75), (0.75, 0.85)]), program, alone)
        assert list(alone.work_s) == pytest.approx([0.7, 0.1])
        assert alone.work_s[0] != 0.7
        assert found == {"cil": pytest.approx(0.05), "tail": pytest.approx(0.1)}

    def test_contention(self) -> None:
        program = tiled(2)
        prices = Prices.plain(program, [2.0, 2.0] * 4, slow_by_net=2.0)
        timeline = simulate(program, prices)  # the second tile computes beside the first all_reduce: 2..5
        found = check_sum(timeline, program, alone_of(prices, 4.0, 3.0))
        assert found == {"cil": 1.0, "tail": 2.0}

    def test_measured_noise_is_cil_and_may_be_a_gain(self) -> None:
        program = tiled(1, ranks=1)
        alone = alone_of(Prices.plain(program, [4.0, 1.0]), 4.0, 1.0)
        found = check_sum(of_times(program, [(0.0, 3.5), (3.5, 4.5)]), program, alone)
        assert found == {"cil": -0.5, "tail": 1.0}

    def test_startup(self) -> None:
        program = tiled(1, ranks=1)
        alone = alone_of(Prices.plain(program, [4.0, 1.0]), 4.0, 1.0)
        found = check_sum(of_times(program, [(0.5, 4.5), (4.5, 5.5)]), program, alone)
        assert found == {"startup": 0.5, "tail": 1.0}

    def test_late_rank_is_imbalance(self) -> None:
        program = tiled(1)
        alone = alone_of(Prices.plain(program, [1.0, 4.0] * 2), 1.0, 4.0)
        late = of_times(program, [(0.0, 1.0), (1.0, 7.0), (2.0, 3.0), (3.0, 7.0)])
        found = attribute(late, program, alone)
        assert (found.rank, found.lane, found.bound) == (0, 1, "comm")
        assert check_sum(late, program, alone) == {"imbalance": 2.0, "head": 1.0}

    def test_uneven_work_is_no_loss(self) -> None:
        """Rank 1 has all the work; rank 0, which ends last, only waited for it."""
        program = tiled(1)
        alone = alone_of(Prices.plain(program, [1.0, 1.0, 4.0, 1.0]), [1.0, 4.0], 1.0)
        timeline = of_times(program, [(0.0, 1.0), (1.0, 5.5), (0.0, 4.0), (4.0, 5.0)])
        found = attribute(timeline, program, alone)
        assert found.rank == 0
        assert found.losses["imbalance"] == 0.0
        assert check_sum(timeline, program, alone) == {"tail": 1.5}

    def test_losses_of_an_exchange_are_those_of_the_receiving_lane(self) -> None:
        """Two ranks exchange two tiles; a receive is active from the start of its send, not from its posting."""
        b = Builder("exchange", 2)
        compute, send, recv = b.lane("compute", "compute"), b.lane("send", "net"), b.lane("recv", "net")
        for rank in (0, 1):
            for _ in range(2):
                tile = b.add(Kind.compute, rank, compute)
                b.add(Kind.send, rank, send, chan_out=b.channel(rank, 1 - rank), after=[tile])
                b.add(Kind.recv, rank, recv, chan_in=b.channel(1 - rank, rank))
        program = b.build()
        prices = Prices.plain(program, [1.0, 0.0, 0.5] * 4, 4.0, latency_s=0.25)
        timeline = simulate(program, prices)  # wires 1..5 and 5..9; receives end 5.75 and 9.75
        found = check_sum(timeline, program, alone_of(prices, 2.0, 8.0))
        assert found == {"head": 1.0, "dil": 0.75}

    def test_slow_wire_is_cil_of_the_receive(self) -> None:
        b = Builder("slow", 2)
        compute, net = b.lane("compute", "compute"), b.lane("net", "net")
        b.add(Kind.compute, 0, compute)
        b.add(Kind.send, 0, net, chan_out=b.channel(0, 1))
        b.add(Kind.recv, 1, net, chan_in=b.channel(0, 1))
        program = b.build()
        prices = Prices.plain(program, [9.0, 0.0, 0.0], 10.0, slow_by_compute=1.5)
        timeline = simulate(program, prices)
        assert timeline.makespan_s == 13.0
        assert check_sum(timeline, program, alone_of(prices, 9.0, 10.0)) == {"cil": 3.0}

    def test_rendezvous_wait_is_imbalance_of_the_sender(self) -> None:
        b = Builder("late", 2)
        compute, net = b.lane("compute", "compute"), b.lane("net", "net")
        b.add(Kind.send, 0, net, chan_out=b.channel(0, 1))
        busy = b.add(Kind.compute, 1, compute)
        b.add(Kind.recv, 1, net, chan_in=b.channel(0, 1), after=[busy])
        program = b.build()
        prices = Prices.plain(program, [0.0, 3.0, 0.0], 4.0, rendezvous=True)
        timeline = simulate(program, prices)
        found = attribute(timeline, program, alone_of(prices, 3.0, 4.0))
        assert (found.rank, found.losses["imbalance"], timeline.makespan_s) == (0, 3.0, 7.0)

    def test_empty_timelines(self) -> None:
        program = Builder("empty", 1).build()
        alone = alone_of(Prices.plain(program), 0.0, 0.0)
        assert check_sum(simulate(program, Prices.plain(program)), program, alone) == {}

    def test_inputs_of_another_program_are_refused(self) -> None:
        program = tiled(1)
        timeline = simulate(program, Prices.plain(program))
        with pytest.raises(DovetailError, match="is not for program"):
            losses(timeline, program, alone_of(Prices.plain(tiled(2)), 1.0, 1.0))
        with pytest.raises(DovetailError, match="timeline is of another program"):
            losses(simulate(tiled(2), Prices.plain(tiled(2))), program, alone_of(Prices.plain(program), 1.0, 1.0))


@pytest.mark.slow
@settings(max_examples=some(200), deadline=None)
@given(st.data())
def test_losses_always_add_up(data: st.DataObject) -> None:
    program = data.draw(programs())
    prices = data.draw(prices_of(program))
    wholes = [data.draw(st.floats(0, 20)) for _ in range(2)]
    timeline = simulate(program, prices)
    alone = alone_of(prices, *wholes)
    found = losses(timeline, program, alone)
    assert fsum(found.values()) == timeline.makespan_s - alone.ideal_s
    assert all(found[name] >= -1e-12 for name in ("head", "tail", "startup", "stall", "imbalance"))


class TestOverlaps:
    def test_the_four_definitions_differ(self) -> None:
        program = tiled(2, ranks=1)
        prices = Prices.plain(program, [2.0, 3.0] * 2)
        timeline = simulate(program, prices)  # compute 0..4, net 2..8
        found = overlaps(timeline, program, alone_of(prices, 4.0, 5.0))
        assert found == pytest.approx({"imb": 1 / 5, "osu": 1 - 4 / 5, "hta": 2 / 6, "min": 1 / 4})

    def test_serial_hides_nothing(self) -> None:
        program = tiled(1)
        prices = Prices.plain(program, [2.0, 3.0] * 2)
        assert set(overlaps(simulate(program, prices), program, alone_of(prices, 2.0, 3.0)).values()) == {0.0}

    def test_a_loss_shows_in_min_only(self) -> None:
        program = tiled(1, ranks=1)
        alone = alone_of(Prices.plain(program, [2.0, 3.0]), 2.0, 3.0)
        found = overlaps(of_times(program, [(0.0, 3.0), (3.0, 6.0)]), program, alone)
        assert found == {"imb": 0.0, "osu": 0.0, "hta": 0.0, "min": -0.5}


def test_a_measured_send_is_on_the_wire_until_it_is_received() -> None:
    """The library accepted the message at 1 s, the peer had it at 4 s."""
    b = Builder("one message", 2)
    b.buffer("x", "input", 1), b.buffer("y", "output", 1)
    net, channel = b.lane("net", "net"), b.channel(0, 1)
    sent = b.add(Kind.send, 0, net, reads=[Region("x", 0, 1)], chan_out=channel)
    came = b.add(Kind.recv, 1, net, writes=[Region("y", 0, 1)], chan_in=channel)
    columns = {
        "rank": np.array([0, 1], "i4"),
        "lane": np.array([0, 0], "i4"),
        "op": np.array([sent, came], "i8"),
        "name": np.array([0, 0], "i4"),
        "num_bytes": np.array([8, 8], "i8"),
        "start_s": np.array([0.0, 0.0]),
        "end_s": np.array([1.0, 4.0]),
    }
    timeline = Timeline("measured", 2, ("net",), ("span",), columns)
    assert on_the_wire(timeline, b.build()).columns["end_s"].tolist() == [4.0, 4.0]
    assert timeline.columns["end_s"].tolist() == [1.0, 4.0]
