"""The interpreter on host threads: equal to the reference by every protocol, in small FIFOs and slices; and it stalls
with words."""

from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ir_programs import rebuilt, specs_of
from msccl_files import index, path, verdict
from needs import SHARED
from run_programs import DTYPES, OneSided, TwoSided, assert_same, uneven_of, workload_of
from run_strategies import programs
from thorough import some

from dovetail.collective import ALGORITHMS, build
from dovetail.collective.msccl import read
from dovetail.core import OperatorError, ProgramError, RunError
from dovetail.ir import Builder, Kind, Region, Slot, Workload, verify
from dovetail.ir.shapes import ring_all_reduce
from dovetail.run import execute, fresh_inputs
from dovetail.run.interpreter import PROTOCOLS, Layout, run_interpreter, run_unverified
from dovetail.run.options import RunOptions

FLOATS = DTYPES[:4]
layouts = st.builds(
    Layout,
    protocol=st.sampled_from(PROTOCOLS),
    place_bytes=st.sampled_from([0, 16, 64, 1000]),
    slice_bytes=st.sampled_from([0, 1, 48, 500]),
    threads=st.sampled_from([1, 1, 2, 3]),
)
MOVES = st.one_of(programs(20, OneSided), programs(20, TwoSided))
few = settings(max_examples=some(80), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def check(asked, workload, layout, how=None, seed=0):
    inputs, how = fresh_inputs(asked, workload, seed), how or RunOptions(stall_s=60)
    with np.errstate(all="ignore"):
        found, timeline = run_interpreter(asked, workload, inputs, layout, how)
        assert_same(found, execute(asked, inputs, workload=workload, reduce_op=how.reduce_op).outputs)
    rounds = timeline.meta["rounds"]
    assert sorted(timeline.columns["op"]) == sorted(list(range(asked.num_ops)) * rounds)
    return timeline


class TestResults:
    @pytest.mark.slow
    @few
    @given(MOVES, st.sampled_from(DTYPES), st.sampled_from([(), (1,), (3, 2), (40,)]), layouts)
    def test_random_programs(self, asked, dtype, shape, layout):
        check(asked, workload_of(asked, shape, dtype), layout)

    @pytest.mark.slow
    @few
    @given(MOVES, st.sampled_from(DTYPES), st.integers(0, 99), st.integers(1, 60), layouts)
    def test_slots_of_different_sizes(self, asked, dtype, seed, most, layout):
        check(asked, uneven_of(asked, dtype, seed, most), layout)

    @pytest.mark.slow
    @pytest.mark.parametrize("dtype", [*DTYPES, "int16", "uint16", "uint32", "uint64"])
    def test_every_reduction_of_every_dtype(self, dtype):
        ring = ring_all_reduce(4, 1).with_depth(2)
        ops = ["sum", "prod", "min", "max"] + (["avg"] if dtype in FLOATS else [])
        for protocol, op in product(PROTOCOLS, ops):
            check(ring, workload_of(ring, (37,), dtype), Layout(protocol, 64, 32), RunOptions(reduce_op=op, stall_s=60))

    @pytest.mark.slow
    @pytest.mark.parametrize("name", sorted(ALGORITHMS))
    def test_every_algorithm(self, name):
        asked = None
        for ranks, more in ((3, {}), (4, {"nodes": 2, "instances": 2}), (8, {"nodes": 4})):
            try:
                asked = build(name, ranks, **more)
            except OperatorError:  # an algorithm for other numbers of ranks
                continue
            least = verify(asked).min_fifo_depth
            for protocol in PROTOCOLS:
                for elements in (1, 29, 300):
                    check(asked.with_depth(least), workload_of(asked, (elements,), "int32"), Layout(protocol, 512, 128))
        assert asked is not None

    def test_long_slots_are_cut_into_tiles(self):
        ring = ring_all_reduce(3, 1).with_depth(1)
        timeline = check(ring, workload_of(ring, (10_000,), "float32"), Layout("Simple", 4096, 1024))
        assert timeline.meta["rounds"] == 10
        assert timeline.meta["slice_bytes"] == 1024

    def test_messages_that_order_a_ranks_own_accesses_are_reported_whole(self):
        """Rank 0 sends x on one lane, and receives it back, shifted by one slot, on another."""
        b = Builder("there and back", 2)
        b.buffer("x", "input", 3), b.buffer("y", "output", 2)
        one, two = b.lane("one", "net"), b.lane("two", "net")
        b.add(Kind.send, 0, one, reads=[Region("x", 0, 2)], chan_out=b.channel(0, 1))
        b.add(Kind.recv, 1, one, writes=[Region("y", 0, 2)], chan_in=b.channel(0, 1))
        b.add(Kind.send, 1, one, reads=[Region("y", 0, 2)], chan_out=b.channel(1, 0))
        b.add(Kind.recv, 0, two, writes=[Region("x", 1, 2)], chan_in=b.channel(1, 0))
        for protocol in PROTOCOLS:
            timeline = check(b.build(), workload_of(b.build(), (1000,), "int32"), Layout(protocol, 64, 32))
            assert timeline.meta["protocol"] == "Simple"
            assert timeline.meta["slice_bytes"] >= 2 * timeline.meta["tile_bytes"]

    def test_two_lanes_may_share_an_end_of_a_channel(self):
        """Ordered by a dependency: then slots are not cut, so that no lane's next round comes before the other's."""
        b = Builder("shared", 2)
        b.buffer("x", "input", 2), b.buffer("y", "output", 2)
        lanes, channel = [b.lane("one", "net"), b.lane("two", "net")], b.channel(0, 1, 0, 2)
        last = None
        for turn in (1, 0):
            at = Region("x", turn, 1)
            last = b.add(Kind.send, 0, lanes[turn], reads=[at], chan_out=channel, after=[] if last is None else [last])
            b.add(Kind.recv, 1, lanes[0], writes=[at._replace(buffer="y")], chan_in=channel)
        timeline = check(b.build(), workload_of(b.build(), (100,), "int32"), Layout("Simple", 64))
        assert timeline.meta["rounds"] == 1

    @pytest.mark.slow
    @pytest.mark.needs("shared")
    @pytest.mark.parametrize("row", [r for r in index() if verdict(r) == "valid"], ids=lambda row: row["file"])
    def test_every_valid_file(self, row):
        asked = read(path(row).read_text()).program
        asked = asked.with_depth(max(verify(asked).min_fifo_depth, 2))
        for protocol in PROTOCOLS:
            for elements in (1, 5, 65):
                check(asked, workload_of(asked, (elements,), "int32"), Layout(protocol, 4096, 64))


def dropped(asked, kind):
    """The program without its last op of a kind."""
    ops = specs_of(asked)
    del ops[max(i for i, op in enumerate(ops) if op.kind == kind)]
    return rebuilt(asked, ops)


class TestFaults:
    @pytest.mark.parametrize("protocol", PROTOCOLS)
    def test_a_message_never_sent_stalls_and_is_named(self, protocol):
        asked = dropped(ring_all_reduce(3, 1).with_depth(1), Kind.send)
        workload = workload_of(asked, (64,), "float32")
        with pytest.raises(RunError, match=r"lane 0 of rank \d waits at its op \d+ 'recv") as error:
            run_unverified(asked, workload, fresh_inputs(asked, workload, 0), Layout(protocol), RunOptions(stall_s=0.3))
        assert "for a message from rank" in str(error.value)

    @pytest.mark.parametrize("protocol", PROTOCOLS)
    def test_a_depth_of_one_too_few_stalls(self, protocol):
        """Two ranks that send three messages each before they receive: three places are needed."""
        b = Builder("exchange", 2)
        b.buffer("x", "input", 3), b.buffer("y", "output", 3)
        net = b.lane("net", "net")
        for rank in (0, 1):
            for i in range(3):
                b.add(Kind.send, rank, net, reads=[Region("x", i, 1)], chan_out=b.channel(rank, 1 - rank, 0, 3))
            for i in range(3):
                b.add(Kind.recv, rank, net, writes=[Region("y", i, 1)], chan_in=b.channel(1 - rank, rank))
        workload = workload_of(b.build(), (100,), "int32")
        assert verify(b.build()).min_fifo_depth == 3
        for layout in (Layout(protocol), Layout(protocol, 64, 16)):
            check(b.build(), workload, layout)
            shallow = b.build().with_depth(2)
            with pytest.raises(ProgramError):
                run_interpreter(shallow, workload, {}, layout)
            inputs = fresh_inputs(shallow, workload, 0)
            with pytest.raises(RunError, match=r"op 2 'send' .* to take earlier messages"):
                run_unverified(shallow, workload, inputs, layout, RunOptions(stall_s=0.2))

    @pytest.mark.parametrize("protocol", PROTOCOLS)
    def test_each_lane_says_what_it_waits_for(self, protocol):
        """A signal that never comes, and an op of another lane that waits for it."""
        b = Builder("signal", 2)
        b.buffer("x", "input", 1), b.buffer("y", "output", 1)
        one, two = b.lane("one", "net"), b.lane("two", "compute")
        waits = b.add(Kind.wait, 1, one, chan_in=b.channel(0, 1))
        b.add(Kind.copy, 1, two, reads=[Region("x", 0, 1)], writes=[Region("y", 0, 1)], after=[waits])
        asked = b.build()
        workload = workload_of(asked, (4,), "int32")
        with pytest.raises(RunError) as error:
            run_unverified(asked, workload, fresh_inputs(asked, workload, 0), Layout(protocol), RunOptions(stall_s=0.2))
        assert "lane 0 of rank 1 waits at its op 0 'wait' (row 0) for a signal from rank 0" in error.value.found
        assert "lane 1 of rank 1 waits at its op 0 'copy' (row 1) for an op of another lane" in error.value.found

    def test_ops_that_it_lacks_are_refused(self):
        b = Builder("library", 2)
        b.buffer("x", "input", 1), b.buffer("y", "output", 1)
        call = b.collective("all_reduce", (0, 1))
        for rank in (0, 1):
            regions = {"reads": [Region("x", 0, 1)], "writes": [Region("y", 0, 1)]}
            b.add(Kind.collective, rank, b.lane("net", "net"), call=call, **regions)
        with pytest.raises(RunError, match="no collective ops") as error:
            run_interpreter(b.build(), workload_of(b.build(), (1,), "int8"), {})
        assert "inline_collectives" in str(error.value)

    def test_no_layout_out_of_range(self):
        for bad in ({"protocol": "LL64"}, {"place_bytes": -1}, {"threads": 0}):
            with pytest.raises(RunError):
                Layout(**bad)

    def test_no_average_of_integers(self):
        ring = ring_all_reduce(2, 1)
        workload = Workload({"x": (Slot((), "int32"),) * 2})
        with pytest.raises(RunError, match="no average"):
            run_interpreter(ring, workload, fresh_inputs(ring, workload, 0), options=RunOptions(reduce_op="avg"))


def test_the_corpus_is_there_where_it_is_promised():
    assert not SHARED.is_dir() or index()
