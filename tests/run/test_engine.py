"""A bound engine, used again and again: moved to other arrays, run back to back, without stamps."""

from dataclasses import replace

import numpy as np
import pytest
from run_programs import KERNELS, workload_of

from dovetail import _native
from dovetail.cost.prices import Prices
from dovetail.ir import Builder, Kind, Region
from dovetail.ir.shapes import ring_all_reduce
from dovetail.run.engine import allocate_rank, bind, native_options, run_engines
from dovetail.run.local import execute_local
from dovetail.run.options import RunOptions
from dovetail.sim import simulate

RING = ring_all_reduce(3, 2).with_depth(2)
WORK = workload_of(RING, (5,), "int64")


def engines_on(arrays):
    hub = _native.LocalHub(3)
    return [bind(_native.local_transport(hub, rank), RING, rank, arrays[rank]) for rank in range(3)]


def filled(value: int):
    arrays = [allocate_rank(RING, WORK, rank) for rank in range(3)]
    for rank, held in enumerate(arrays):
        held["x"][...] = value + rank
    return arrays


class TestRebase:
    def test_moves_to_other_arrays(self):
        first, second = filled(1), filled(10)
        engines = engines_on(first)
        assert run_engines(engines, RunOptions()) == ["", "", ""]
        for rank, engine in enumerate(engines):
            engine.rebase(0, second[rank]["x"].ctypes.data)
        assert run_engines(engines, RunOptions()) == ["", "", ""]
        for held, total in ((first, 1 + 2 + 3), (second, 10 + 11 + 12)):
            assert all((arrays["x"] == total).all() for arrays in held)

    def test_is_refused_where_kernels_hold_arrays(self):
        b = Builder("kernel", 1)
        b.buffer("y", "output", 1)
        b.add(Kind.compute, 0, b.lane("work", "compute"), writes=[Region("y", 0, 1)], call=b.kernel("one", ()))
        arrays = allocate_rank(b.build(), workload_of(b.build(), (1,), "int8"), 0)
        kernels = {"one": lambda reads, writes: writes[0].fill(1)}
        engine = bind(_native.local_transport(_native.LocalHub(1), 0), b.build(), 0, arrays, kernels)
        with pytest.raises(ValueError, match="kernels in Python cannot be rebased"):
            engine.rebase(0, arrays["y"].ctypes.data)

    def test_of_no_buffer_is_refused(self):
        engine = engines_on(filled(1))[0]
        with pytest.raises(IndexError):
            engine.rebase(1, 0)


class TestRepeats:
    @pytest.mark.parametrize("progress", ["poll", "thread"])
    def test_run_back_to_back(self, progress):
        """In place, each run sums what the one before left: the total grows by the number of ranks."""
        arrays = filled(1)
        found = run_engines(engines_on(arrays), RunOptions(progress, repeats=5))
        assert found == ["", "", ""]
        assert all((held["x"] == 6 * 3**4).all() for held in arrays)

    def test_spans_are_those_of_the_last_run(self):
        inputs = {"x": [held["x"] for held in filled(1)]}
        _, timeline = execute_local(RING, WORK, inputs, options=RunOptions(repeats=20))
        assert sorted(timeline.columns["op"]) == list(range(RING.num_ops))

    def test_without_stamps(self):
        inputs = {"x": [held["x"] for held in filled(1)]}
        found, timeline = execute_local(RING, WORK, inputs, options=RunOptions(spans=False))
        assert (found["x"][0] == 6).all()
        assert len(timeline.columns["op"]) == 0

    def test_one_rank_on_this_thread(self):
        b = Builder("copy", 1)
        b.buffer("x", "input", 2), b.buffer("y", "output", 2)
        b.add(Kind.copy, 0, b.lane("net", "net"), reads=[Region("x", 0, 2)], writes=[Region("y", 0, 2)])
        arrays = allocate_rank(b.build(), workload_of(b.build(), (3,), "float32"), 0)
        arrays["x"][...] = 7
        engine = bind(_native.local_transport(_native.LocalHub(1), 0), b.build(), 0, arrays, KERNELS)
        choices = native_options(RunOptions(repeats=2))
        assert [engine.run(choices), engine.run(choices)] == ["", ""]
        np.testing.assert_array_equal(arrays["y"], arrays["x"])


def test_a_measured_op_has_the_name_of_a_predicted_one():
    """Its kernel's, its collective's, or else its kind."""
    b = Builder("three", 1)
    net = b.lane("net", "net")
    b.buffer("x", "input", 1), b.buffer("y", "output", 1), b.buffer("z", "output", 1), b.buffer("s", "output", 1)
    x, y, z, s = (Region(name, 0, 1) for name in "xyzs")
    b.add(Kind.compute, 0, b.lane("own", "compute"), reads=[x], writes=[y], call=b.kernel("f", ("each",)))
    b.add(Kind.collective, 0, net, reads=[x], writes=[z], call=b.collective("all_reduce", (0,)))
    b.add(Kind.copy, 0, net, reads=[x], writes=[s])
    program = b.build()
    work, inputs = workload_of(program, (2,), "float32"), {"x": [np.ones((1, 2), "f4")]}
    _, measured = execute_local(program, work, inputs, kernels=KERNELS)
    predicted = simulate(program, Prices.plain(program, np.ones(3), np.zeros(3)))
    for found in (measured, predicted):
        ops, rows = (found.columns[name].tolist() for name in ("op", "name"))
        names = dict(zip(ops, (found.names[row] for row in rows), strict=True))
        assert names == {0: "f", 1: "all_reduce", 2: "copy"}


def test_columns_lie_in_memory_however_they_like():
    """Strided views are legal columns; the engine reads them where they are."""
    backwards = {name: np.ascontiguousarray(column[::-1])[::-1] for name, column in RING.columns.items()}
    wide = {name: np.repeat(column, 3)[::3] for name, column in RING.columns.items()}
    for columns in (backwards, wide):
        inputs = {"x": [held["x"] for held in filled(1)]}
        found, _ = execute_local(replace(RING, columns=columns), WORK, inputs)
        assert (found["x"][2] == 6).all()
