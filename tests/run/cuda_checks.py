"""What must hold of runs on a CUDA device: a real one, or the pretended one that test_cuda.py puts in its place."""

import ctypes
import gc
import os
import weakref
from dataclasses import replace
from importlib import import_module
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from needs import need
from product_runs import gathers, scatters
from run_programs import DTYPES, OneSided, TwoSided, assert_same, library_call, uneven_of, workload_of
from run_strategies import programs
from thorough import some

from dovetail import trace
from dovetail.collective import ALGORITHMS, build
from dovetail.core import EnvironmentFault, OperatorError, RunError
from dovetail.ir import Builder, Kind, Region, Schedule, Slot, Workload, verify
from dovetail.ir.shapes import ring_all_reduce
from dovetail.matmul import AllGatherMatmul, MatmulAllReduce, MatmulReduceScatter
from dovetail.run import execute, fresh_inputs
from dovetail.run.check import check_outputs, check_rank
from dovetail.run.cuda.device import ON_CUDA, ON_HOST, DeviceMemory, Gpu, native
from dovetail.run.cuda.executor import CudaExecutor
from dovetail.run.cuda.runs import (
    ONE_RANK,
    InterpretedRun,
    OneRank,
    StreamsOptions,
    StreamsRun,
    fill,
    outputs,
    plain_sum,
    run_interpreted,
    run_streams,
)
from dovetail.run.interpreter import PROTOCOLS, Layout
from dovetail.run.job import Job, Variant
from dovetail.run.options import RunOptions
from dovetail.trace.to_timeline import to_timeline

WAYS = (
    StreamsOptions(),
    StreamsOptions(graph=False),
    StreamsOptions(copies="kernel", copy_blocks=3),
    StreamsOptions(graph=False, copies="overlapping"),
)
SHAPES = st.sampled_from([(), (3, 2), (40,)])
STALL_S = float(os.environ.get("STALL_S", "60"))  # host threads that share few cores are slow to move
MOVES = st.one_of(programs(20, OneSided), programs(20, TwoSided))
few = settings(max_examples=some(60), deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)


@pytest.fixture(scope="module")
def gpu():
    return Gpu()


@pytest.fixture(autouse=True, scope="module")
def _imported():
    """What was imported is no garbage: each test searches for it among what was made since."""
    gc.freeze()


@pytest.fixture(autouse=True)
def callers_context(request):
    """What calls us finds the device again that it had chosen, or none, as PyTorch does."""
    if "library" in request.fixturenames:  # which chooses one itself
        yield
        gc.collect()  # what the library holds ends here, not in the next test
        return
    driver, before, after = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
    assert (driver.cuInit(0), driver.cuCtxSetCurrent(before)) == (0, 0)
    yield
    gc.collect()
    assert driver.cuCtxGetCurrent(ctypes.byref(after)) == 0
    assert after.value == before.value


def same(asked, workload, ran, how=None):
    """Equal to the reference, to the bit."""
    inputs, how = fresh_inputs(asked, workload, 0), how or RunOptions(stall_s=STALL_S)
    with np.errstate(all="ignore"):
        found, timeline = ran(asked, workload, inputs, how)
        assert_same(found, execute(asked, inputs, workload=workload, reduce_op=how.reduce_op).outputs)
    return timeline


def on_streams(gpu, how):
    return lambda asked, workload, inputs, options: run_streams(asked, workload, inputs, options, how, gpu)


def interpreted(gpu, layout):
    return lambda asked, workload, inputs, options: run_interpreted(asked, workload, inputs, layout, options, gpu)


class TestMovement:
    @few
    @given(MOVES, st.sampled_from(DTYPES), SHAPES, st.sampled_from(WAYS))
    def test_random_programs_on_streams(self, gpu, asked, dtype, shape, how):
        timeline = same(asked, workload_of(asked, shape, dtype), on_streams(gpu, how))
        assert sorted(timeline.columns["op"].tolist()) == list(range(asked.num_ops))

    @few
    @given(MOVES, st.sampled_from(DTYPES), st.integers(0, 99), st.integers(1, 60))
    def test_slots_of_different_sizes_on_streams(self, gpu, asked, dtype, seed, most):
        same(asked, uneven_of(asked, dtype, seed, most), on_streams(gpu, StreamsOptions()))

    @few
    @given(
        programs(20, OneSided),
        st.sampled_from(DTYPES),
        st.sampled_from([(), (3, 2), (40,)]),
        st.sampled_from(PROTOCOLS),
    )
    def test_random_programs_interpreted(self, gpu, asked, dtype, shape, protocol):
        same(asked, workload_of(asked, shape, dtype), interpreted(gpu, Layout(protocol, 1000, 500)))

    @pytest.mark.parametrize("dtype", [*DTYPES, "int16", "uint16", "uint32", "uint64"])
    def test_every_reduction_of_every_dtype(self, gpu, dtype):
        ring = ring_all_reduce(4, 1).with_depth(2)
        ways = [on_streams(gpu, StreamsOptions()), *(interpreted(gpu, Layout(protocol)) for protocol in PROTOCOLS)]
        for ran, op in product(ways, ["sum", "prod", "min", "max"] + (["avg"] if dtype in DTYPES[:4] else [])):
            same(ring, workload_of(ring, (37,), dtype), ran, RunOptions(reduce_op=op, stall_s=STALL_S))

    @pytest.mark.parametrize("name", sorted(ALGORITHMS))
    def test_every_algorithm(self, gpu, name):
        asked = None
        for ranks, more in ((3, {}), (4, {"nodes": 2, "instances": 2}), (8, {"nodes": 4})):
            try:
                asked = build(name, ranks, **more)
            except OperatorError:  # an algorithm for other numbers of ranks
                continue
            least = asked.with_depth(verify(asked).min_fifo_depth)
            for elements in (1, 29, 300):
                workload = workload_of(asked, (elements,), "int32")
                same(least, workload, on_streams(gpu, StreamsOptions()))
                for protocol in PROTOCOLS:
                    same(least, workload, interpreted(gpu, Layout(protocol, 512, 128)))
        assert asked is not None

    def test_runs_again_and_again(self, gpu):
        """A graph is replayed, and the interpreter's channels go on from where they were."""
        ring = ring_all_reduce(3, 1)
        workload = workload_of(ring, (50,), "int32")
        for make in (StreamsRun, InterpretedRun):
            memory = DeviceMemory(gpu, ring, workload)
            bound = make(memory)
            for seed in range(4):
                inputs = fresh_inputs(ring, workload, seed)
                fill(memory, inputs)
                bound.run()
                assert_same(outputs(memory, RunOptions()), execute(ring, inputs, workload=workload).outputs)

    def test_an_overwrite_waits_for_who_reads_elsewhere(self, gpu):
        """Rank 1 sends x to rank 0, and overwrites it as soon as rank 2's message is there."""
        b = Builder("overwritten", 3)
        b.buffer("x", "input", 1), b.buffer("y", "output", 1)
        net, x, y = b.lane("net", "net"), Region("x", 0, 1), Region("y", 0, 1)
        b.add(Kind.recv, 0, net, writes=[y], chan_in=b.channel(1, 0))
        b.add(Kind.send, 1, net, reads=[x], chan_out=b.channel(1, 0))
        b.add(Kind.recv, 1, net, writes=[x], chan_in=b.channel(2, 1))
        b.add(Kind.copy, 1, net, reads=[x], writes=[y])
        b.add(Kind.send, 2, net, reads=[x], chan_out=b.channel(2, 1))
        b.add(Kind.copy, 2, net, reads=[x], writes=[y])
        for _ in range(10):
            same(b.build(), workload_of(b.build(), (99,), "int32"), on_streams(gpu, StreamsOptions()))

    @pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_to_all"])
    @pytest.mark.parametrize("ranks", [1, 2, 3, 5])
    def test_collectives_of_the_library(self, gpu, kind, ranks):
        asked = library_call(kind, [[2] * ranks] * ranks if kind == "all_to_all" else [2] * ranks)
        for shape, how in product([(), (7,)], WAYS):
            same(asked, workload_of(asked, shape, "int32"), on_streams(gpu, how))

    def test_a_message_is_kept_where_its_home_is_overwritten_first(self, gpu):
        """Rank 0 sends x, overwrites it, and only then lets rank 1 receive."""
        b = Builder("overwritten", 2)
        b.buffer("x", "input", 2), b.buffer("y", "output", 1)
        net, x = b.lane("net", "net"), Region("x", 0, 1)
        data, go = b.channel(0, 1, 0), b.channel(0, 1, 1)
        b.add(Kind.send, 0, net, reads=[x], chan_out=data)
        b.add(Kind.copy, 0, net, reads=[Region("x", 1, 1)], writes=[x])
        b.add(Kind.signal, 0, net, chan_out=go)
        b.add(Kind.wait, 1, net, chan_in=go)
        b.add(Kind.recv, 1, net, writes=[Region("y", 0, 1)], chan_in=data)
        for how in WAYS:
            same(b.build(), workload_of(b.build(), (99,), "int32"), on_streams(gpu, how))


OPERATORS = (
    (AllGatherMatmul(24, 16, 8), gathers),
    (AllGatherMatmul(13, 9, 7, "bfloat16"), gathers),
    (MatmulReduceScatter(19, 9, 7), scatters),
    (MatmulReduceScatter(16, 12, 8, "float64"), scatters),
)


class TestProducts:
    @pytest.mark.parametrize(("operator", "families"), OPERATORS, ids=str)
    @pytest.mark.parametrize("ranks", [2, 4])
    def test_every_family_is_right(self, gpu, operator, families, ranks):
        for schedule in families(operator, ranks, ("library", "messages"))[::2]:
            self.right(gpu, operator, schedule, ranks)

    @pytest.mark.parametrize("ranks", [2, 8])
    @pytest.mark.parametrize("dtype", ["float16", "float32"])
    def test_all_reduce(self, gpu, ranks, dtype):
        operator = MatmulAllReduce(16, 40, 8, dtype)
        for tiles in ((16,), (4, 12), (2,) * 8):
            for by in ("library", "ring"):
                self.right(gpu, operator, Schedule.of("any", tiles=tiles, by=by), ranks)

    def right(self, gpu, operator, schedule, ranks):
        asked = operator.program(schedule, ranks)
        workload = operator.workload(asked, schedule)
        inputs = fresh_inputs(asked, workload, 3)
        found, _ = run_streams(asked, workload, inputs, gpu=gpu)
        agreed = check_outputs(asked, workload, inputs, found)
        assert agreed.ok, agreed.worst

    @pytest.mark.parametrize(("operator", "families"), OPERATORS, ids=str)
    def test_one_rank_alone(self, gpu, operator, families):
        for schedule in families(operator, 4, ("library", "messages"))[::3]:
            asked = operator.program(schedule, 4)
            workload = operator.workload(asked, schedule)
            inputs = fresh_inputs(asked, workload, 1)
            alone = OneRank(gpu, asked, workload, inputs, rank=1)
            for _ in range(2):
                alone.run.run()
            held = {name: arrays[0] for name, arrays in outputs(alone.run.memory, RunOptions()).items()}
            agreed = check_rank(asked, workload, 1, held, lambda name, rank, given=inputs: given[name][rank])
            assert agreed.ok, agreed.worst
            timeline = alone.run.timeline()
            assert timeline.meta["label"] == ONE_RANK
            assert set(timeline.columns["rank"].tolist()) == {1}

    def test_other_kernels_are_refused(self, gpu):
        b = Builder("odd", 1)
        b.buffer("x", "input", 1), b.buffer("y", "output", 1)
        regions = {"reads": [Region("x", 0, 1)], "writes": [Region("y", 0, 1)]}
        b.add(Kind.compute, 0, b.lane("cpu", "compute"), call=b.kernel("odd", ["each"]), **regions)
        asked = b.build()
        workload = workload_of(asked, (2,), "float32")
        with pytest.raises(RunError, match="no kernel 'odd' for devices"):
            run_streams(asked, workload, fresh_inputs(asked, workload, 0), gpu=gpu)


@pytest.fixture(scope="module")
def gpus(gpu):
    try:
        return [gpu, Gpu(1)]
    except EnvironmentFault:
        pytest.skip("there is one device")


class TestSeveralDevices:
    @few
    @given(MOVES, st.sampled_from(DTYPES), SHAPES, st.sampled_from(WAYS))
    def test_random_programs(self, gpus, asked, dtype, shape, how):
        same(asked, workload_of(asked, shape, dtype), on_streams(gpus, how))

    @pytest.mark.parametrize(("operator", "families"), OPERATORS, ids=str)
    def test_every_family_is_right(self, gpus, operator, families):
        for schedule in families(operator, 3, ("library", "messages"))[::2]:
            asked = operator.program(schedule, 3)
            workload = operator.workload(asked, schedule)
            inputs = fresh_inputs(asked, workload, 3)
            found, timeline = run_streams(asked, workload, inputs, gpu=gpus)
            assert check_outputs(asked, workload, inputs, found).ok
            assert timeline.meta["devices"] == [0, 1]

    def test_jobs(self, gpus):
        operator = MatmulAllReduce(16, 40, 8, "float32")
        ring = Schedule.of("any", tiles=(4, 12), by="ring")
        asked = operator.program(ring, 4)
        job = Job((Variant("four ranks", asked, operator.workload(asked, ring), check=True),), rounds=2)
        (outcome,) = CudaExecutor(more=(1,)).execute(job).outcomes
        assert outcome.num_wrong == 0

    def test_a_job_is_held_against_another_program(self, gpu):
        """A product without post-conditions, against the library's, and against what copies A."""
        operator, schedule = MatmulAllReduce(6, 8, 4, "float32"), Schedule.of("any", tiles=(2, 4), by="ring")
        asked, right = operator.program(schedule, 2), operator.program(operator.serial(2), 2)
        workload, b = operator.workload(asked, schedule), Builder("copy", 2)
        b.buffer("A", "input", 6), b.buffer("C", "output", 6)
        for rank in (0, 1):
            b.add(Kind.copy, rank, b.lane("copy", "copy"), reads=[Region("A", 0, 6)], writes=[Region("C", 0, 6)])
        copies = b.build(), Workload({name: workload.slots[name] for name in "AC"})
        for against, is_wrong in (((right, operator.workload(right, operator.serial(2))), False), (copies, True)):
            bare = replace(asked, posts=asked.posts[:0])
            job = Job((Variant("one", bare, workload, check=True, against=against),), rounds=1, warmup=0)
            assert CudaExecutor().execute(job)["one"].is_wrong == is_wrong

    def test_ranks_are_dealt_out(self, gpus):
        ring = ring_all_reduce(3, 1)
        workload = workload_of(ring, (6,), "float32")
        memory = DeviceMemory(gpus[0], ring, workload, more=(gpus[1],))
        arrays = [memory.on_device(ring.buffers[0].name, rank) for rank in range(3)]
        assert [native().describe(array)[2] for array in arrays] == [0, 1, 0]
        with pytest.raises(RunError, match="runs on one device"):
            InterpretedRun(memory)

    def test_one_real_rank_needs_one_device(self):
        with pytest.raises(RunError, match="needs one device"):
            CudaExecutor(real=0, more=(1,))


def side_by_side(lanes):
    """A copy on each of so many lanes."""
    b = Builder("wide", 1)
    b.buffer("x", "input", 1), b.buffer("y", "output", lanes)
    for i in range(lanes):
        lane = b.lane(f"lane {i}", "net")
        b.add(Kind.copy, 0, lane, reads=[Region("x", 0, 1)], writes=[Region("y", i, 1)])
    return b.build()


class TestFaults:
    def test_a_stall_names_what_each_lane_waits_for(self, gpu):
        b = Builder("signal", 2)
        b.buffer("x", "input", 1), b.buffer("y", "output", 1)
        b.add(Kind.wait, 1, b.lane("one", "net"), chan_in=b.channel(0, 1))
        asked = b.build()
        memory = DeviceMemory(gpu, asked, workload_of(asked, (4,), "int32"))
        for protocol in PROTOCOLS:
            bound = InterpretedRun(memory, Layout(protocol), RunOptions(stall_s=0.2))
            with pytest.raises(RunError, match=r"op 0 'wait' \(row 0\) for a signal from rank 0"):
                bound.run()
            with pytest.raises(EnvironmentFault, match="stalled before"):
                bound.run()

    def test_more_lanes_than_are_resident(self, gpu):
        """With as many threads as were asked for, or with any."""
        processors = gpu.facts()["multiprocessors"]
        for threads, lanes, fewest in ((512, 4 * processors + 1, 512), (1, 32 * processors + 1, 32)):
            asked = side_by_side(lanes)
            memory = DeviceMemory(gpu, asked, workload_of(asked, (1,), "int8"))
            words = rf"{lanes} lanes, and .* holds \d+ threadblocks of {fewest} threads"
            with pytest.raises(EnvironmentFault, match=words):
                InterpretedRun(memory, Layout(threads=threads))

    def test_many_lanes_have_fewer_threads(self, gpu):
        asked = side_by_side(4 * gpu.facts()["multiprocessors"] + 1)
        timeline = same(asked, workload_of(asked, (99,), "int8"), interpreted(gpu, Layout()))
        assert timeline.meta["threads"] in (32, 64, 128, 256)

    def test_too_little_memory(self, gpu):
        ring = ring_all_reduce(2, 1)
        huge = Workload({b.name: (Slot((1 << 46,), "int8"),) * 2 for b in ring.buffers})
        with pytest.raises(EnvironmentFault, match=r"too little memory on .* for \d+ bytes: \d+ are free"):
            DeviceMemory(gpu, ring, huge)

    def test_what_fails_halfway_gives_its_memory_back(self, gpu):
        free, ring = gpu.device.free_bytes(), ring_all_reduce(2, 1)
        most = Workload({b.name: (Slot((free // 3,), "int8"),) * 2 for b in ring.buffers})
        with pytest.raises(EnvironmentFault, match="too little memory"):
            DeviceMemory(gpu, ring, most)
        gc.collect()
        assert gpu.device.free_bytes() > free - free // 4

    def test_copies_for_copy_engines_fit_in_no_graph(self):
        with pytest.raises(RunError, match="cannot be part of a graph"):
            StreamsOptions(copies="overlapping")


def others_arrays(library):
    """To the device and back by another library; skipped where it has none."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else JAX takes most of the memory
    need(library)
    found = import_module(library)
    if library == "torch":
        if not found.cuda.is_available():
            pytest.skip("needs gpu: PyTorch has no device")
        return SimpleNamespace(
            put=lambda array: found.from_numpy(array).cuda(), take=lambda ours: found.from_dlpack(ours).cpu().numpy()
        )
    if library == "cupy":
        if not found.cuda.is_available():
            pytest.skip("needs gpu: CuPy has no device")
        return SimpleNamespace(put=found.asarray, take=lambda ours: found.asnumpy(found.from_dlpack(ours)))
    if not any(each.platform == "gpu" for each in found.devices()):
        pytest.skip("needs gpu: JAX has no device")
    return SimpleNamespace(put=found.device_put, take=lambda ours: np.asarray(found.dlpack.from_dlpack(ours)))


class TestArrays:
    ring = ring_all_reduce(2, 1)

    def memory(self, gpu, given):
        return DeviceMemory(gpu, self.ring, workload_of(self.ring, (6,), "float32"), given)

    def test_arrays_on_the_device_are_used_where_they_lie(self, gpu):
        first = self.memory(gpu, {})
        name = first.program.buffers[0].name
        held = {(name, rank): first.on_device(name, rank) for rank in range(2)}
        second = self.memory(gpu, held)
        assert [second.address(rank, name) for rank in range(2)] == [first.address(rank, name) for rank in range(2)]

    def test_a_run_waits_for_who_still_writes_what_was_given(self, gpu, monkeypatch):
        first = self.memory(gpu, {})
        name = first.program.buffers[0].name
        given = self.memory(gpu, {(name, rank): first.on_device(name, rank) for rank in range(2)})
        for make in (StreamsRun, InterpretedRun):
            runs, waited = [make(first), make(given)], []
            device = SimpleNamespace(synchronize=lambda found=waited: found.append("waited"))
            with monkeypatch.context() as patched:
                for memory in (first, given):
                    patched.setattr(memory, "gpu", SimpleNamespace(device=device))
                for run in runs:
                    run.run()
            assert waited == ["waited"]

    def test_what_we_made_speaks_dlpack(self, gpu):
        """As the array API asks: two methods, all keywords, and a new capsule each time, which keeps the memory."""
        memory = self.memory(gpu, {})
        name, kept, here = self.ring.buffers[0].name, weakref.ref(memory), (ON_CUDA, gpu.index)
        ours, address = memory.on_device(name, 0), memory.address(0, name)
        assert ours.__dlpack_device__() == here
        jax, cupy = {"stream": None}, {"stream": 1, "max_version": (1, 0), "copy": None}
        asked = ({}, jax, cupy, {"max_version": (1, 0), "dl_device": here, "copy": False})
        capsules = [ours.__dlpack__(**each) for each in asked]
        assert [native().describe(each)[0] for each in (*capsules, ours)] == [address] * 5
        for refused in ({"copy": True}, {"dl_device": (ON_HOST, 0)}):
            with pytest.raises(BufferError, match="is used where it lies"):
                ours.__dlpack__(**refused)
        capsules = [ours.__dlpack__(), ours.__dlpack__()]
        del memory, ours
        while capsules:
            gc.collect()
            assert kept() is not None
            capsules.pop()
        gc.collect()
        assert kept() is None

    @pytest.mark.parametrize("library", ["torch", "cupy", "jax"])
    def test_arrays_of_others_go_in_and_out(self, gpu, library):
        """What another library made is used where it lies, and what we made is taken by it where it lies."""
        others = others_arrays(library)
        name, rows = self.ring.buffers[0].name, np.arange(12, dtype=np.float32).reshape(2, 6)
        given = {(name, rank): others.put(rows + rank) for rank in range(2)}
        memory = self.memory(gpu, given)
        inputs = {name: [rows, rows + 1]}
        for make in (StreamsRun, InterpretedRun):
            for rank in range(2):
                assert memory.address(rank, name) == native().describe(given[name, rank])[0]
                memory.put(name, rank, inputs[name][rank])
            make(memory).run()
            expected = execute(self.ring, inputs, workload=memory.workload).outputs
            for buffer, parts in expected.items():
                for rank, part in enumerate(parts):
                    assert (others.take(memory.on_device(buffer, rank)) == part).all()

    def test_arrays_elsewhere_are_refused(self, gpu):
        name = self.ring.buffers[0].name
        with pytest.raises(RunError, match="is on another device") as error:
            self.memory(gpu, {(name, 0): np.zeros((2, 6), np.float32)})
        assert "CUDA device 0" in str(error.value)

    def test_arrays_of_another_shape_or_none_at_all(self, gpu):
        first = self.memory(gpu, {})
        name = first.program.buffers[0].name
        other = DeviceMemory(gpu, self.ring, workload_of(self.ring, (5,), "float32"))
        with pytest.raises(RunError, match="another size or dtype"):
            self.memory(gpu, {(name, 0): other.on_device(name, 0)})
        with pytest.raises(RunError, match="does not support DLPack"):
            self.memory(gpu, {(name, 0): object()})


class TestTraces:
    """Every run leaves its ops in the trace that is recorded, at the device's times, stamped otherwise or not."""

    ring = ring_all_reduce(3, 3)

    def traced(self, folder, job):
        """What a job leaves: its trace, and what it returned."""
        trace.init(folder)
        try:
            found = job()
        finally:
            trace.finalize()
        return trace.merge(folder).read(), found

    def lanes(self, found):
        return {*to_timeline(found).lanes}

    @pytest.mark.parametrize("how", WAYS[:3])
    def test_streams(self, gpu, how, tmp_path):
        workload = workload_of(self.ring, (40,), "float32")
        timed = Variant("timed", self.ring, workload, RunOptions(repeats=2, spans=False), check=False)
        job = Job((timed,), rounds=2, budget_s=30)
        found, result = self.traced(tmp_path, lambda: CudaExecutor(options=how).execute(job))
        assert result["timed"].timelines == ()
        assert self.lanes(found) == {f"rank {rank} net, CUDA device 0" for rank in range(3)} | {"main"}
        runs = found.columns["name"] == found.names.index("timed")
        assert np.bincount(found.columns["arg"][~runs]).tolist() == [2 * np.sum(runs)] * self.ring.num_ops
        start_s, end_s = (found.columns[name] for name in ("start_s", "end_s"))
        assert start_s[runs].max() < end_s[~runs].max() <= end_s[runs].max(), "it ended while the host waited for it"

    def test_times_are_those_of_the_timeline(self, gpu, tmp_path):
        workload = workload_of(self.ring, (40,), "float32")
        inputs = fresh_inputs(self.ring, workload, 0)
        for run in (
            lambda: run_streams(self.ring, workload, inputs, gpu=gpu),
            lambda: run_interpreted(self.ring, workload, inputs, gpu=gpu),
        ):
            found, (_, timeline) = self.traced(tmp_path / str(len(list(tmp_path.iterdir()))), run)
            both = found.columns, timeline.columns
            lengths = [
                (col["end_s"] - col["start_s"])[np.argsort(col[key])]
                for col, key in zip(both, ("arg", "op"), strict=True)
            ]
            assert np.allclose(*lengths, rtol=0.05, atol=5e-7)
            names = [found.names[name] for name in found.columns["name"][np.argsort(found.columns["arg"])]]
            assert names == [op.kind.name for op in self.ring.ops()]

    def test_one_rank_is_labelled(self, gpu, tmp_path):
        workload = workload_of(self.ring, (40,), "float32")
        job = Job((Variant("alone", self.ring, workload),), rounds=1, budget_s=30)
        found, _ = self.traced(tmp_path, lambda: CudaExecutor(real=1).execute(job))
        assert self.lanes(found) == {f"rank 1 net, CUDA device 0 ({ONE_RANK})", "main"}


def test_a_plain_sum_takes_time(gpu):
    assert plain_sum(gpu, 1 << 16, 8) > 0


def test_which_copies_run_on_copy_engines(gpu):
    rows = native().try_engines(gpu.device, [1 << 16], 0.2)
    verdicts = {variant: beside for variant, _, beside, _ in rows}
    assert not verdicts["kernel, device to device"]  # it has nowhere to run: the method detects it
    assert verdicts["memcpy, host to device"]
    assert verdicts["memcpy, device to host"]
