"""What reducing ops compute: every operation and dtype, native against NumPy, to the bit; averages; and their speed."""

import ctypes

import numpy as np
import pytest
from effort import ratio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from run_programs import DTYPES, KERNELS, assert_same, workload_of
from run_strategies import programs
from thorough import some

from dovetail import _native
from dovetail.collective import custom
from dovetail.core import RunError
from dovetail.ir import Builder, Kind, Region
from dovetail.ir.shapes import ring_all_reduce
from dovetail.run import execute, fresh_inputs, numpy_dtype
from dovetail.run.engine import DTYPES as NATIVE_DTYPES
from dovetail.run.engine import allocate_rank, bind, run_engines
from dovetail.run.local import execute_local
from dovetail.run.options import RunOptions
from dovetail.run.reduce import REDUCE_OPS, combine, quotients

FLOATS = DTYPES[:4]
asked_ops = st.sampled_from(
    [(dtype, op) for dtype in NATIVE_DTYPES for op in REDUCE_OPS if op != "avg" or dtype in FLOATS]
)


def check(asked, dtype, op, shape=(3,), seed=0):
    workload = workload_of(asked, shape, dtype)
    inputs = fresh_inputs(asked, workload, seed)
    with np.errstate(all="ignore"):
        found, _ = execute_local(asked, workload, inputs, kernels=KERNELS, options=RunOptions(reduce_op=op, stall_s=60))
        assert_same(found, execute(asked, inputs, KERNELS, workload=workload, reduce_op=op).outputs)
    return inputs, found


def ring(ranks: int):
    return ring_all_reduce(ranks, 1).with_depth(2)


class TestPrograms:
    @settings(max_examples=some(120), deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(programs(), asked_ops)
    def test_random_ones(self, asked, how):
        check(asked, *how)

    @settings(max_examples=some(30), deadline=None)
    @given(st.integers(1, 5), asked_ops)
    def test_ring(self, ranks, how):
        check(ring(ranks), *how)

    @pytest.mark.parametrize("op", REDUCE_OPS)
    def test_ring_means_what_it_says(self, op):
        inputs, found = check(ring(4), "float64", op)
        whole = {"sum": np.sum, "prod": np.prod, "min": np.min, "max": np.max, "avg": np.mean}[op](inputs["x"], axis=0)
        for part in found["x"]:
            np.testing.assert_allclose(part, whole, rtol=1e-14)

    def test_another_operation_is_noticed(self, monkeypatch):
        """Planted: the reference takes the minimum where the engine adds; or averages only one of the two."""
        workload = workload_of(ring(3), (3,), "float32")
        inputs = fresh_inputs(ring(3), workload, 0)
        found, _ = execute_local(ring(3), workload, inputs, options=RunOptions(reduce_op="sum"))
        expected = execute(ring(3), inputs, workload=workload, reduce_op="min").outputs
        with pytest.raises(AssertionError, match="of rank"):
            assert_same(found, expected)
        monkeypatch.setattr("dovetail.run.engine.quotients", lambda *which: [])
        with pytest.raises(AssertionError, match="of rank"):
            check(ring(3), "float32", "avg")


class TestAverage:
    def test_each_slot_by_its_own_number_of_terms(self):
        """Slot 0 sums two inputs, slot 1 holds one, slot 2 three; slot 3 nobody asked for."""
        want = {0: [(0, 0), (1, 0)], 1: [(1, 1)], 2: [(0, 2), (1, 2), (1, 3)], 3: []}
        asked = custom(2, 4, 4, lambda rank, slot: want[slot] if rank == 0 else [])
        b = Builder("custom", 2)
        for buffer in asked.buffers:
            b.buffer(*buffer)
        for post in asked.posts:
            b.post(*post)
        net, channel = b.lane("net", "net"), b.channel(1, 0)
        b.add(Kind.copy, 0, net, reads=[Region("input", 0, 4)], writes=[Region("output", 0, 4)])
        for slot, source, kind in (
            (0, 0, Kind.recv_reduce),
            (1, 1, Kind.recv),
            (2, 2, Kind.recv_reduce),
            (2, 3, Kind.recv_reduce),
        ):
            b.add(Kind.send, 1, net, reads=[Region("input", source, 1)], chan_out=channel)
            into = Region("output", slot, 1)
            b.add(kind, 0, net, reads=[into] if kind == Kind.recv_reduce else [], writes=[into], chan_in=channel)
        made = b.build()
        assert quotients(made, "output", 0) == [(0, 1, 2), (2, 3, 3)]
        assert quotients(made, "output", 1) == []
        inputs, found = check(made, "float64", "avg", shape=())
        x, y = inputs["input"]
        np.testing.assert_allclose(found["output"][0], [(x[0] + y[0]) / 2, y[1], (x[2] + y[2] + y[3]) / 3, x[3]])

    @pytest.mark.parametrize("dtype", FLOATS)
    def test_is_rounded_once(self, dtype):
        """The quotient of the rounded sum, from numbers whose sum is exact."""
        inputs = {"x": [np.full((3, 5), value).astype(numpy_dtype(dtype)) for value in (1, 2, 4)]}
        workload = workload_of(ring(3), (5,), dtype)
        found, _ = execute_local(ring(3), workload, inputs, options=RunOptions(reduce_op="avg"))
        wide = np.float64 if dtype == "float64" else np.float32
        expected = (wide(7) / wide(3)).astype(numpy_dtype(dtype))
        assert (found["x"][2] == expected).all()

    @pytest.mark.parametrize("dtype", ["int32", "uint8"])
    def test_of_integers_is_refused(self, dtype):
        workload = workload_of(ring(2), (2,), dtype)
        inputs = fresh_inputs(ring(2), workload, 0)
        with pytest.raises(RunError, match=f"no average of {dtype}"):
            execute(ring(2), inputs, workload=workload, reduce_op="avg")
        with pytest.raises(RunError, match=f"no average of {dtype}"):
            execute_local(ring(2), workload, inputs, options=RunOptions(reduce_op="avg"))
        hub = _native.LocalHub(2)
        engines = [
            bind(_native.local_transport(hub, rank), ring(2), rank, allocate_rank(ring(2), workload, rank))
            for rank in (0, 1)
        ]
        assert "average of integers" in run_engines(engines, RunOptions(reduce_op="avg"))[1]

    def test_an_unknown_operation_is_refused(self):
        with pytest.raises(RunError, match="unknown reduce op 'mean'"):
            RunOptions(reduce_op="mean")  # type: ignore[arg-type]


REDUCE = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_longlong)


def native(dtype: str, op: str, local, message):
    """The engine's own reduction, called as the MPI shim calls it."""
    result = local.copy()
    function = REDUCE(_native.mpi_reduce_function())
    function(NATIVE_DTYPES.index(dtype), REDUCE_OPS.index(op), message.ctypes.data, result.ctypes.data, len(local))
    return result


class TestElements:
    @pytest.mark.parametrize("op", REDUCE_OPS)
    @pytest.mark.parametrize("dtype", NATIVE_DTYPES)
    def test_all_kinds_of_values(self, dtype, op):
        """Subnormals, ties, overflow, infinities, NaN, both zeros; lengths that fill no vector."""
        rng, np_dtype = np.random.default_rng(1), numpy_dtype(dtype)
        raw = rng.integers(0, 256, (2, (1 << 16) + 13, np_dtype.itemsize), dtype=np.uint8)
        a, b = (part.view(np_dtype).ravel() for part in raw)
        if dtype in FLOATS:
            special = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1.0]).astype(np_dtype)
            a[:36], b[:36] = np.repeat(special, 6), np.tile(special, 6)
        with np.errstate(all="ignore"):
            assert_same({"x": [native(dtype, op, a, b)]}, {"x": [combine(op, a, b)]})

    @pytest.mark.parametrize("op", REDUCE_OPS)
    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_half_types_where_there_are_no_vectors(self, dtype, op):
        """Too few at a time for the processor's own conversions: those of plain integer arithmetic."""
        rng = np.random.default_rng(2)
        a, b = rng.integers(0, 1 << 16, (2, 1 << 14), dtype=np.uint16).view(numpy_dtype(dtype))
        with np.errstate(all="ignore"):
            found = [native(dtype, op, a[i : i + 7], b[i : i + 7]) for i in range(0, len(a), 7)]
            assert_same({"x": [np.concatenate(found)]}, {"x": [combine(op, a, b)]})

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_half_types_are_not_slow(self, dtype):
        """Within a few times of float32; it was 50 times."""
        half, single = (np.ones(1 << 15, numpy_dtype(each)) for each in (dtype, "float32"))

        def adds(each, values):
            for _ in range(5):
                native(each, "sum", values, values)

        assert ratio(lambda: adds(dtype, half), lambda: adds("float32", single), 20, rounds=100) < 20
