"""Messages in pieces: the same bits whatever the slice, nothing waits that did not, and forwarding does not wait."""

import time

import numpy as np
import pytest
from effort import ratio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from run_programs import DTYPES, KERNELS, assert_same, uneven_of, workload_of
from run_strategies import movers, programs
from thorough import some

from dovetail.core import RunError
from dovetail.ir import Builder, Kind, Region, Slot, Term, Workload, verify
from dovetail.ir.shapes import ring_all_reduce
from dovetail.passes import fuse
from dovetail.run import execute, fresh_inputs
from dovetail.run.local import execute_local, run_unverified
from dovetail.run.options import RunOptions

options = st.builds(
    RunOptions,
    progress=st.sampled_from(["poll", "poll", "thread"]),
    window=st.sampled_from([1, 2, 3, 32]),
    slice_bytes=st.sampled_from([1, 64, 128, 192, 1 << 20]),
    stall_s=st.just(60.0),
)
SLOW = [HealthCheck.too_slow]


def check(asked, workload, how, kernels=KERNELS, seed=0):
    inputs = fresh_inputs(asked, workload, seed)
    with np.errstate(all="ignore"):
        found, _ = execute_local(asked, workload, inputs, kernels=kernels, options=how)
        assert_same(found, execute(asked, inputs, kernels, workload=workload, reduce_op=how.reduce_op).outputs)
    return inputs, found


class TestResults:
    @pytest.mark.slow
    @settings(max_examples=some(150), deadline=None, suppress_health_check=SLOW)
    @given(programs(), st.sampled_from(DTYPES), st.sampled_from([1, 16, 33, 300]), options)
    def test_random_programs(self, asked, dtype, length, how):
        check(asked, workload_of(asked, (length,), dtype), how)

    @pytest.mark.slow
    @settings(max_examples=some(150), deadline=None, suppress_health_check=SLOW)
    @given(movers(18), st.sampled_from(DTYPES), st.integers(0, 99), st.sampled_from([5, 200]), options)
    def test_random_programs_of_uneven_slots(self, asked, dtype, seed, most, how):
        check(asked, uneven_of(asked, dtype, seed, most), how)

    @settings(max_examples=some(40), deadline=None, suppress_health_check=SLOW)
    @given(st.integers(2, 5), st.integers(1, 2), st.sampled_from(DTYPES), st.integers(1, 400), st.booleans(), options)
    def test_ring_that_forwards(self, ranks, lanes, dtype, length, fused, how):
        ring = ring_all_reduce(ranks, 1, lanes)
        ring = fuse(ring) if fused else ring
        check(ring.with_depth(verify(ring).min_fifo_depth), workload_of(ring, (length,), dtype), how)


def overwrite(depth: int, then: Kind = Kind.copy):
    """Rank 0 sends x again and again, and overwrites it at once, by a copy or by what comes from rank 1."""
    b = Builder("overwrite", 2)
    b.buffer("a", "input", 3), b.buffer("x", "scratch", 1), b.buffer("y", "output", 3)
    net, there, back = b.lane("net", "net"), b.channel(0, 1, 0, depth), b.channel(1, 0, 0, 3)
    if then != Kind.copy:
        for i in range(3):
            b.add(Kind.send, 1, net, reads=[Region("a", i, 1)], chan_out=back)
    for i in range(3):
        into = {"writes": [Region("x", 0, 1)]}
        if then == Kind.copy:
            b.add(Kind.copy, 0, net, reads=[Region("a", i, 1)], **into)
        elif then == Kind.recv or i == 0:
            b.add(Kind.recv, 0, net, chan_in=back, **into)
        else:
            b.add(then, 0, net, reads=[Region("x", 0, 1)], chan_in=back, **into)
        b.add(Kind.send, 0, net, reads=[Region("x", 0, 1)], chan_out=there)
    go = b.channel(0, 1, 1)
    b.add(Kind.signal, 0, net, chan_out=go)
    if depth >= 3:
        b.add(Kind.wait, 1, net, chan_in=go)
    for i in range(3):
        b.add(Kind.recv, 1, net, writes=[Region("y", i, 1)], chan_in=there)
    if depth < 3:
        b.add(Kind.wait, 1, net, chan_in=go)
    return b.build()


class TestOverwriting:
    """A send ends in its FIFO: pieces that have not left yet must not show what is written afterwards."""

    @pytest.mark.parametrize("then", [Kind.copy, Kind.recv, Kind.recv_reduce])
    @pytest.mark.parametrize("depth", [1, 3])
    @pytest.mark.parametrize("slice_bytes", [64, 1 << 12, 0])
    def test_of_what_was_sent(self, depth, then, slice_bytes):
        asked = overwrite(depth, then)
        assert verify(asked).min_fifo_depth == depth
        check(asked, workload_of(asked, (1 << 14,), "int32"), RunOptions(slice_bytes=slice_bytes, stall_s=60))

    def test_by_each_other(self):
        """Both ranks send all of x and add what comes into it: pieces meet half way."""
        b = Builder("doubling", 2)
        b.buffer("x", "input", 1)
        net, x = b.lane("net", "net"), Region("x", 0, 1)
        for rank in (0, 1):
            b.add(Kind.send, rank, net, reads=[x], chan_out=b.channel(rank, 1 - rank, 0, 1))
            b.add(Kind.recv_reduce, rank, net, reads=[x], writes=[x], chan_in=b.channel(1 - rank, rank, 0, 1))
        b.post((0, 1), x, [Term(None, ((rank, x),)) for rank in (0, 1)])
        for seed in range(10):
            how = RunOptions(slice_bytes=64 << (seed % 5), stall_s=60)
            check(b.build(), workload_of(b.build(), (50_000,), "int32"), how, seed=seed)


def relay(kind: Kind, hops: int = 3):
    """Rank 0 sends its x; each hop adds its own and forwards it, or only forwards; the last one keeps it."""
    b = Builder("relay", hops + 2)
    b.buffer("x", "input", 1), b.buffer("y", "output", 1)
    net, x, y = b.lane("net", "net"), Region("x", 0, 1), Region("y", 0, 1)
    b.add(Kind.send, 0, net, reads=[x], chan_out=b.channel(0, 1, 0, 1))
    for rank in range(1, hops + 1):
        ends = {"chan_in": b.channel(rank - 1, rank, 0, 1), "chan_out": b.channel(rank, rank + 1, 0, 1)}
        writes = [] if kind == Kind.recv_reduce_send else [y]
        b.add(kind, rank, net, reads=[] if kind == Kind.recv_copy_send else [x], writes=writes, **ends)
    b.add(Kind.recv, hops + 1, net, writes=[y], chan_in=b.channel(hops, hops + 1, 0, 1))
    return b.build()


class TestForwarding:
    @pytest.mark.parametrize("kind", [Kind.recv_copy_send, Kind.recv_reduce_send, Kind.recv_reduce_copy_send])
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
    def test_of_each_kind(self, kind, dtype):
        asked = relay(kind)
        for length in (1, 1000, 100_001):
            check(asked, workload_of(asked, (length,), dtype), RunOptions(slice_bytes=4096, stall_s=60))

    @pytest.mark.slow
    def test_is_no_slower_than_whole_messages(self):
        """And is proved to begin before the message is there in native/test/run.cpp."""
        asked = relay(Kind.recv_reduce_copy_send, hops=6)
        workload = workload_of(asked, (4 << 20,), "float32")
        inputs = fresh_inputs(asked, workload, 0)

        def runs(slice_bytes):
            execute_local(asked, workload, inputs, options=RunOptions(slice_bytes=slice_bytes, repeats=3))

        assert ratio(lambda: runs(256 << 10), lambda: runs(0), 1.5, clock=time.perf_counter) < 1.5

    def test_fills_no_more_of_a_fifo(self):
        """Depth counts messages, however many pieces they are: what needs depth 2 still stalls at 1."""
        asked = overwrite(3).with_depth(1)
        assert not verify(asked).ok
        workload = workload_of(asked, (4096,), "int32")
        with pytest.raises(RunError, match="to take earlier messages"):
            run_unverified(
                asked, workload, fresh_inputs(asked, workload, 0), options=RunOptions(slice_bytes=64, stall_s=0.3)
            )


def test_ends_that_disagree_on_size_are_reported():
    ring = ring_all_reduce(2, 1)
    sizes = {"x": (np.array([1000, 1010]), np.array([1010, 1000]))}
    apart = Workload({"x": (Slot((), "int8"),) * 2}, sizes=sizes)
    with pytest.raises(RunError, match="the two sides of a message"):
        execute_local(ring, apart, fresh_inputs(ring, apart, 0), options=RunOptions(slice_bytes=64))


def test_pieces_of_another_size_at_one_end_are_noticed():
    """Planted: one rank cuts its messages elsewhere."""
    from dovetail import _native
    from dovetail.run.engine import allocate_rank, bind, native_options

    ring = ring_all_reduce(2, 1)
    workload = workload_of(ring, (1000,), "int8")
    hub, failures = _native.LocalHub(2), []
    engines = [
        bind(_native.local_transport(hub, rank), ring, rank, allocate_rank(ring, workload, rank)) for rank in (0, 1)
    ]
    from threading import Thread

    runs = [
        Thread(target=lambda e=e, s=s: failures.append(e.run(native_options(RunOptions(slice_bytes=s, stall_s=2)))))
        for e, s in zip(engines, (64, 128), strict=True)
    ]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert any("the two sides of a message" in failure for failure in failures)
