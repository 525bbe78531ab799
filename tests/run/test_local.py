"""The native engine on threads of one process: what it computes, how it fails, and that it never waits for ever."""

import ctypes
import os
import resource
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ir_programs import rebuilt, specs_of
from matmul_programs import program
from run_programs import DTYPES, KERNELS, assert_same, workload_of
from run_strategies import programs
from thorough import some

from dovetail import _native
from dovetail.collective import family as algorithms
from dovetail.core import ProgramError, RunError
from dovetail.ir import Builder, Kind, Program, Region, Schedule, Slot, Workload, verify
from dovetail.ir.shapes import ring_all_reduce
from dovetail.matmul import MATMUL, MatmulAllReduce
from dovetail.passes import fuse, inline_collectives, slice_messages
from dovetail.run import execute, fresh_inputs, numpy_dtype
from dovetail.run.engine import blas, needs_order
from dovetail.run.local import execute_local, run_unverified
from dovetail.run.options import RunOptions

FLOATS = DTYPES[:4]
options = st.builds(
    RunOptions,
    progress=st.sampled_from(["poll", "thread"]),
    window=st.sampled_from([1, 2, 3, 32]),
    block_rows=st.sampled_from([0, 1, 3]),
    poll_s=st.sampled_from([0.0, 1e-4]),
    stall_s=st.just(60.0),
)


def check(asked: Program, workload: Workload, how: RunOptions, seed: int = 0, kernels=KERNELS):
    inputs = fresh_inputs(asked, workload, seed)
    with np.errstate(all="ignore"):
        found, timeline = execute_local(asked, workload, inputs, kernels=kernels, options=how)
        expected = execute(asked, inputs, kernels, workload=workload).outputs
    assert_same(found, expected)
    assert sorted(timeline.columns["op"]) == list(range(asked.num_ops))
    return found, timeline


def test_ranks_that_compute_side_by_side_share_the_cores():
    """A BLAS that gives each product all cores makes ranks on threads wait for each other: 10 times as long."""
    operator, ring = MatmulAllReduce(4, 8, 4), Schedule.of("uniform", tiles=(4,), by="ring")
    asked, before = operator.program(ring, 2), blas().scipy_openblas_get_num_threads()
    noted = []

    def note(reads, writes):
        writes[0][...] = 0
        noted.append(blas().scipy_openblas_get_num_threads())

    workload = operator.workload(asked, ring)
    blas().scipy_openblas_set_num_threads(before + 1)
    try:
        run_unverified(
            asked, workload, fresh_inputs(asked, workload, 1), {kernel.name: note for kernel in asked.kernels}
        )
        assert noted == [max(1, min(before + 1, len(os.sched_getaffinity(0)) // 2))] * 2
        assert blas().scipy_openblas_get_num_threads() == before + 1
    finally:
        blas().scipy_openblas_set_num_threads(before)


def test_nothing_under_way_is_hardly_looked_for():
    """A helper thread that looks leaves its core each time; a tenth of a second of computing has room for a thousand
    looks, 0.1 ms apart."""
    b = Builder("late", 2)
    b.buffer("x", "input", 1), b.buffer("y", "output", 1)
    compute, net, call = b.lane("compute", "compute"), b.lane("net", "net"), b.kernel("nap", ())
    out = b.channel(0, 1)
    rested = [b.add(Kind.compute, rank, compute, call=call) for rank in range(2)]
    b.add(Kind.send, 0, net, reads=[Region("x", 0, 1)], chan_out=out, after=rested[:1])
    b.add(Kind.recv, 1, net, writes=[Region("y", 0, 1)], chan_in=out, after=rested[1:])
    asked, naps = b.build(), {"nap": lambda reads, writes: time.sleep(0.1)}
    workload = workload_of(asked, (5,), "float32")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    execute_local(asked, workload, fresh_inputs(asked, workload, 0), kernels=naps, options=RunOptions("thread"))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before < 600


class TestResults:
    @pytest.mark.slow
    @settings(max_examples=some(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(programs(), st.sampled_from(DTYPES), st.sampled_from([(), (1,), (3, 2)]), options)
    def test_random_programs(self, asked, dtype, shape, how):
        check(asked, workload_of(asked, shape, dtype), how)

    @settings(max_examples=some(20), deadline=None)
    @given(st.integers(1, 8), st.integers(1, 3), st.integers(1, 2), st.sampled_from(DTYPES), options)
    def test_ring(self, ranks, chunks, lanes, dtype, how):
        ring = ring_all_reduce(ranks, chunks, lanes)
        ring = ring.with_depth(verify(ring).min_fifo_depth)
        workload = workload_of(ring, (5,), dtype)
        inputs = fresh_inputs(ring, workload, 1)
        found, _ = execute_local(ring, workload, inputs, options=how)
        for part in found["x"][1:]:
            assert_same({"x": [part]}, {"x": found["x"][:1]})
        if not np.issubdtype(numpy_dtype(dtype), np.integer):
            return
        np.testing.assert_array_equal(found["x"][0], sum(inputs["x"][1:], inputs["x"][0]))

    @settings(max_examples=some(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.data(), st.integers(1, 4), st.sampled_from(FLOATS), options)
    def test_products(self, data, ranks, dtype, how):
        m, k, n = (data.draw(st.integers(least, 9)) for least in (0, 0, 1))
        tiles = data.draw(st.lists(st.integers(1, 4), max_size=3).filter(lambda t: sum(t) <= m))
        tiles = [*tiles, m - sum(tiles)] if m > sum(tiles) else tiles
        families = ["library", "ring"] + (["exchange"] if ranks == 2 else [])
        operator, family = MatmulAllReduce(m, k, n, dtype), data.draw(st.sampled_from(families))
        asked = program(operator, ranks, tiles, family)
        for change in data.draw(st.lists(st.sampled_from([ours, fuse, cut]), max_size=2)):
            asked = change(asked)
        workload = operator.workload(asked, operator.serial(asked.num_ranks))
        whole = {
            name: [np.rint(2 * part.astype("f4")).astype(part.dtype) for part in parts]
            for name, parts in fresh_inputs(asked, workload, 3).items()
        }  # exact in any order of additions
        with np.errstate(all="ignore"):
            found, _ = execute_local(asked, workload, whole, options=how)
            assert_same(found, execute(asked, whole, workload=workload).outputs)

    def test_column_shards(self):
        """Two lanes that write interleaved columns of one buffer."""
        b = Builder("columns", 2)
        b.buffer("x", "input", 12), b.buffer("y", "output", 12)
        for rank in (0, 1):
            for half in (0, 1):
                lane, region = b.lane(f"net{half}", "net"), Region("x", 2 * half, 2, 4, 3)
                b.add(Kind.send, rank, lane, reads=[region], chan_out=b.channel(rank, 1 - rank, half))
                into = [region._replace(buffer="y")]
                b.add(Kind.recv, rank, lane, writes=into, chan_in=b.channel(1 - rank, rank, half))
        assert not needs_order(b.build())
        check(b.build(), workload_of(b.build(), (2,), "int32"), RunOptions())

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_every_b_of_a_half_product(self, dtype):
        """Half types widen B once; another B, or one that was written since, is widened anew."""
        b = Builder("two", 1)
        b.buffer("A", "input", 2), b.buffer("B", "input", 2), b.buffer("W", "scratch", 1), b.buffer("C", "output", 8)
        lane, call = b.lane("compute", "compute"), b.kernel("matmul", ("each", "all"))
        for i in (0, 1):
            reads = [Region("A", 0, 2), Region("B", i, 1)]
            b.add(Kind.compute, 0, lane, reads=reads, writes=[Region("C", 2 * i, 2)], call=call)
        for i in (0, 1):
            b.add(Kind.copy, 0, lane, reads=[Region("B", i, 1)], writes=[Region("W", 0, 1)])
            reads = [Region("A", 0, 2), Region("W", 0, 1)]
            b.add(Kind.compute, 0, lane, reads=reads, writes=[Region("C", 4 + 2 * i, 2)], call=call)
        shapes = {"A": (3,), "B": (3, 4), "W": (3, 4), "C": (4,)}
        workload = Workload({name: (Slot(shape, dtype),) for name, shape in shapes.items()}, (MATMUL,))
        check(b.build(), workload, RunOptions(), kernels=None)

    def test_product_onto_its_own_operand_and_of_strided_rows(self):
        b = Builder("square", 1)
        b.buffer("A", "input", 4), b.buffer("B", "input", 1), b.buffer("C", "output", 4)
        lane, call = b.lane("compute", "compute"), b.kernel("matmul", ("each", "all"))
        b.add(Kind.copy, 0, lane, reads=[Region("A", 0, 4)], writes=[Region("C", 0, 4)])
        for rows in (Region("C", 0, 4), Region("C", 0, 1, 2, 2)):
            b.add(Kind.compute, 0, lane, reads=[rows, Region("B", 0, 1)], writes=[rows], call=call)
        shapes = {"A": (3,), "B": (3, 3), "C": (3,)}
        workload = Workload({name: (Slot(shape, "float64"),) for name, shape in shapes.items()}, (MATMUL,))
        found, _ = execute_local(b.build(), workload, inputs := fresh_inputs(b.build(), workload, 0))
        once = inputs["A"][0] @ inputs["B"][0][0]
        once[::2] = once[::2] @ inputs["B"][0][0]
        np.testing.assert_allclose(found["C"][0], once)


def ours(asked: Program) -> Program:
    return inline_collectives(asked, algorithms("ring"))


def cut(asked: Program) -> Program:
    return slice_messages(asked, 2)


def order_by_messages() -> Program:
    """Rank 0 reads x on one lane before it receives into x on another, and only rank 1 knows."""
    b = Builder("by messages", 2)
    b.buffer("a", "input", 1), b.buffer("x", "scratch", 1), b.buffer("seen", "output", 1), b.buffer("y", "output", 1)
    work, net = b.lane("work", "compute"), b.lane("net", "net")
    there, back, data = b.channel(0, 1, 0), b.channel(1, 0, 0), b.channel(1, 0, 1)
    a, x = Region("a", 0, 1), Region("x", 0, 1)
    b.add(Kind.wait, 0, net, chan_in=back)
    b.add(Kind.recv, 0, net, writes=[x], chan_in=data)
    b.add(Kind.copy, 0, net, reads=[x], writes=[Region("y", 0, 1)])
    b.add(Kind.copy, 0, work, reads=[a], writes=[x])
    b.add(Kind.compute, 0, work, call=b.kernel("sleep", ()))
    b.add(Kind.copy, 0, work, reads=[x], writes=[Region("seen", 0, 1)])
    b.add(Kind.signal, 0, work, chan_out=there)
    b.add(Kind.send, 1, b.lane("early", "net"), reads=[a], chan_out=data)
    b.add(Kind.wait, 1, net, chan_in=there)
    b.add(Kind.signal, 1, net, chan_out=back)
    return b.build()


class TestOrder:
    @pytest.mark.parametrize("progress", ["poll", "thread"])
    def test_that_comes_by_way_of_messages(self, progress):
        asked = order_by_messages()
        assert verify(asked).checks["races"].ok
        assert needs_order(asked)
        kernels = {"sleep": lambda reads, writes: time.sleep(0.02)}
        check(asked, workload_of(asked, (4,), "int32"), RunOptions(progress=progress), kernels=kernels)

    def test_would_break_if_ops_began_early(self, monkeypatch):
        """The planted fault of the test above: the engine believes that the order is local. Not in every timing."""
        monkeypatch.setattr("dovetail.run.local.needs_order", lambda asked: False)

        def often():
            for _ in range(50):
                self.test_that_comes_by_way_of_messages("poll")

        with pytest.raises(AssertionError, match="of rank 0"):
            often()

    def test_is_known_of_ordinary_programs(self):
        """These keep their window: every rank orders its own accesses."""
        for family in ("library", "exchange", "ring"):
            assert not needs_order(program(MatmulAllReduce(8, 4, 4), 2, [4, 4], family))
        assert not needs_order(ring_all_reduce(4, 3, lanes=2))

    def test_is_lost_with_a_dependency(self):
        asked = program(MatmulAllReduce(8, 4, 4), 2, [4, 4], "exchange")
        ops = specs_of(asked)
        for op in ops:
            op.after.clear()
        assert needs_order(rebuilt(asked, ops))


class TestFifo:
    @pytest.mark.parametrize("progress", ["poll", "thread"])
    @pytest.mark.parametrize("depth", [1, 3])
    def test_sent_data_may_be_overwritten(self, progress, depth):
        """Sends into a deep enough FIFO end before the receiver has begun, whatever becomes of their source."""
        b = Builder("overwrite", 2)
        b.buffer("a", "input", 3), b.buffer("x", "scratch", 1), b.buffer("y", "output", 3)
        net, channel, go = b.lane("net", "net"), b.channel(0, 1, 0, depth), b.channel(0, 1, 1, depth)
        for i in range(3):
            b.add(Kind.copy, 0, net, reads=[Region("a", i, 1)], writes=[Region("x", 0, 1)])
            b.add(Kind.send, 0, net, reads=[Region("x", 0, 1)], chan_out=channel)
        b.add(Kind.signal, 0, net, chan_out=go)
        if depth >= 3:
            b.add(Kind.wait, 1, net, chan_in=go)
        for i in range(3):
            b.add(Kind.recv, 1, net, writes=[Region("y", i, 1)], chan_in=channel)
        if depth < 3:
            b.add(Kind.wait, 1, net, chan_in=go)
        assert verify(b.build()).min_fifo_depth == depth
        check(b.build(), workload_of(b.build(), (1 << 16,), "int32"), RunOptions(progress=progress))

    def test_signals_fill_no_fifo_and_meet_no_message(self):
        b = Builder("signals", 2)
        b.buffer("x", "input", 1), b.buffer("y", "output", 1)
        net, channel = b.lane("net", "net"), b.channel(0, 1, 0, depth=1)
        for _ in range(20):
            b.add(Kind.signal, 0, net, chan_out=channel)
        b.add(Kind.send, 0, net, reads=[Region("x", 0, 1)], chan_out=channel)
        b.add(Kind.recv, 1, net, writes=[Region("y", 0, 1)], chan_in=channel)
        for _ in range(20):
            b.add(Kind.wait, 1, net, chan_in=channel)
        check(b.build(), workload_of(b.build(), (4,), "float32"), RunOptions(stall_s=60))

    def test_collectives_of_one_group_meet_by_name(self):
        """Two lanes call two collectives of the same ranks, in whatever order they come to it."""
        b = Builder("two calls", 2)
        b.buffer("x", "input", 2), b.buffer("y", "output", 4)
        calls = [b.collective(kind, (0, 1)) for kind in ("all_reduce", "all_gather")]
        for rank in (0, 1):
            for lane, (call, size) in enumerate(zip(calls, (1, 2), strict=True)):
                work = b.lane(f"work{lane}", "compute")
                late = b.add(Kind.compute, rank, work, call=b.kernel("late", ())) if lane == rank else None
                regions = {"reads": [Region("x", lane, 1)], "writes": [Region("y", 2 * lane, size)]}
                after = [late] if late is not None else []
                b.add(Kind.collective, rank, b.lane(f"net{lane}", "net"), call=call, after=after, **regions)
        kernels = {"late": lambda reads, writes: time.sleep(0.01)}
        check(b.build(), workload_of(b.build(), (3,), "int64"), RunOptions(), kernels=kernels)


def dropped(asked: Program, kind: Kind) -> Program:
    """The program without its last op of a kind."""
    ops = specs_of(asked)
    del ops[max(i for i, op in enumerate(ops) if op.kind == kind)]
    return rebuilt(asked, ops)


class TestFaults:
    @pytest.mark.parametrize("progress", ["poll", "thread"])
    @pytest.mark.parametrize("kind", [Kind.send, Kind.recv, Kind.recv_reduce])
    def test_a_dropped_op_stalls_and_is_named(self, kind, progress):
        asked = dropped(ring_all_reduce(3, 1).with_depth(1), kind)
        workload = workload_of(asked, (1 << 10,), "float32")
        with pytest.raises(RunError, match=r"rank \d stalled: no op moved for 1 s") as error:  # 0.3 s, rounded up
            run_unverified(asked, workload, fresh_inputs(asked, workload, 0), options=RunOptions(progress, stall_s=0.3))
        assert "lane 0 waits at its op" in str(error.value) or "was never taken" in str(error.value)
        assert 0 < len(error.value.timeline.columns["op"]) < asked.num_ops

    def test_a_bad_program_is_refused(self):
        asked = dropped(ring_all_reduce(2, 1), Kind.send)
        with pytest.raises(ProgramError):
            execute_local(asked, workload_of(asked, (1,), "int8"), {"x": []})
        right = ring_all_reduce(2, 1)
        post = right.posts[0]
        wrong = replace(right, posts=(post._replace(terms=post.terms[:1]),))
        with pytest.raises(ProgramError, match="result"):
            execute_local(wrong, workload_of(wrong, (1,), "int8"), {"x": []})

    @pytest.mark.parametrize("progress", ["poll", "thread"])
    @pytest.mark.parametrize("engine", ["compute", "net"])
    def test_what_a_kernel_raises_comes_through(self, progress, engine):
        b = Builder("raise", 2)
        b.buffer("x", "input", 1), b.buffer("y", "output", 1)
        call, net, x, y = b.kernel("bad", ("each",)), b.lane("net", "net"), Region("x", 0, 1), Region("y", 0, 1)
        made = b.add(Kind.compute, 1, b.lane("work", engine), reads=[x], writes=[y], call=call)
        b.add(Kind.send, 1, net, reads=[y], chan_out=b.channel(1, 0), after=[made])
        b.add(Kind.recv, 0, net, writes=[y], chan_in=b.channel(1, 0))
        workload = workload_of(b.build(), (1,), "int8")
        with pytest.raises(ZeroDivisionError):
            execute_local(
                b.build(),
                workload,
                fresh_inputs(b.build(), workload, 0),
                kernels={"bad": lambda reads, writes: 1 // 0},
                options=RunOptions(progress, stall_s=3600),  # longer than a test may take
            )

    def test_a_message_of_another_size(self):
        b = Builder("sizes", 3)
        b.buffer("x", "input", 1), b.buffer("y", "output", 1)
        net = b.lane("net", "net")
        for src, dst in ((0, 1), (1, 2)):
            b.add(Kind.send, src, net, reads=[Region("x", 0, 1)], chan_out=b.channel(src, dst))
            b.add(Kind.recv, dst, net, writes=[Region("y", 0, 1)], chan_in=b.channel(src, dst))
        slots = {"x": (Slot((4,), "int8"),) * 3, "y": (Slot((4,), "int8"), Slot((3,), "int8"), Slot((4,), "int8"))}
        workload = Workload(slots)
        with pytest.raises(RunError, match=r"rank [01]: the two sides of a message"):
            execute_local(b.build(), workload, fresh_inputs(b.build(), workload, 0), options=RunOptions(stall_s=3600))

    def test_slots_of_another_shape_and_missing_inputs(self):
        b = Builder("copy", 1)
        b.buffer("x", "input", 1), b.buffer("y", "output", 1)
        b.add(Kind.copy, 0, b.lane("copy", "copy"), reads=[Region("x", 0, 1)], writes=[Region("y", 0, 1)])
        workload = Workload({"x": (Slot((4,), "int8"),), "y": (Slot((8,), "int8"),)})
        with pytest.raises(RunError, match="moves slots of buffer 'x'"):
            execute_local(b.build(), workload, fresh_inputs(b.build(), workload, 0))
        with pytest.raises(RunError, match="no array for input buffer 'x'"):
            execute_local(b.build(), workload, {})
        with pytest.raises(RunError, match="another size or dtype"):
            execute_local(b.build(), workload, {"x": [np.zeros((1, 4), "int16")]})

    @pytest.mark.slow
    def test_a_rank_that_computes_is_no_stall(self):
        b = Builder("long", 2)
        b.buffer("y", "output", 1)
        work, net, y = b.lane("work", "compute"), b.lane("net", "net"), Region("y", 0, 1)
        made = b.add(Kind.compute, 0, work, writes=[y], call=b.kernel("long", ()))
        b.add(Kind.send, 0, net, reads=[y], chan_out=b.channel(0, 1), after=[made])
        b.add(Kind.recv, 1, net, writes=[y], chan_in=b.channel(0, 1))

        def long(reads, writes):
            time.sleep(0.5)
            writes[0][...] = 7

        workload = workload_of(b.build(), (1,), "int8")
        for progress in ("poll", "thread"):
            how = RunOptions(progress, stall_s=0.2)
            found, _ = execute_local(b.build(), workload, {}, kernels={"long": long}, options=how)
            assert found["y"][1] == 7

    def test_what_the_engine_lacks_is_refused(self):
        for kind, rank, end in ((Kind.put, 0, "chan_out"), (Kind.get, 1, "chan_in")):
            b = Builder("one_sided", 2)
            b.buffer("x", "input", 1), b.buffer("y", "output", 1)
            regions = {"reads": [Region("x", 0, 1)], "writes": [Region("y", 0, 1)]}
            b.add(kind, rank, b.lane("net", "net"), **regions, **{end: b.channel(0, 1)})
            workload = workload_of(b.build(), (1,), "int8")
            with pytest.raises(RunError, match=f"one-sided {kind.name}"):
                execute_local(b.build(), workload, fresh_inputs(b.build(), workload, 0))


class TestHalfTypes:
    """The engine's own reductions, called as the MPI shim calls them, against NumPy and ml_dtypes."""

    REDUCE = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_longlong)

    def reduce(self, dtype, op, src, dst):
        result = dst.copy()
        function = self.REDUCE(_native.mpi_reduce_function())
        function(DTYPES.index(dtype), op, src.ctypes.data, result.ctypes.data, len(src))
        return result

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_every_value_to_float_and_back(self, dtype):
        """Adding -0 widens and narrows: every value comes back, NaN as a NaN of its sign."""
        bits = np.arange(1 << 16, dtype=np.uint16)
        values = bits.view(numpy_dtype(dtype))
        found = self.reduce(dtype, 0, np.full(1 << 16, -0.0).astype(values.dtype), values)
        nan = np.isnan(values.astype(np.float32))
        np.testing.assert_array_equal(found.view(np.uint16)[~nan], bits[~nan])
        assert np.isnan(found[nan].astype(np.float32)).all()

    @pytest.mark.parametrize("op", range(4))
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_rounding(self, dtype, op):
        """All operations on values of every size: subnormals, ties, overflow, infinities."""
        rng, np_dtype = np.random.default_rng(op), numpy_dtype(dtype)
        raw = rng.integers(0, 256, (2, 1 << 17, np_dtype.itemsize), dtype=np.uint8)
        a, b = (part.view(np_dtype).ravel() for part in raw)
        wide = np.float32 if np_dtype.itemsize == 2 else np_dtype
        function = (np.add, np.multiply, np.minimum, np.maximum)[op]
        with np.errstate(all="ignore"):
            expected = function(a.astype(wide), b.astype(wide)).astype(np_dtype)
            found = self.reduce(dtype, op, b, a)
            finite = ~np.isnan(a.astype(wide)) & ~np.isnan(b.astype(wide)) if op > 1 and dtype in FLOATS else a == a
        same = (found == expected) | ((found != found) & (expected != expected))
        assert same[finite].all()
        if op < 2 and dtype in FLOATS:
            zero = expected == 0
            np.testing.assert_array_equal(np.signbit(found[zero]), np.signbit(expected[zero]))
