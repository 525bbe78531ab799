"""Every door at the level of thread support that MPI was started with; nothing of ours raises it. For two ranks."""

import sys
from dataclasses import replace

import numpy as np
from mpi4py import MPI

import dovetail as dt
from dovetail.call import choice_for, use
from dovetail.ir import Schedule
from dovetail.store.selection import Row, Selection

COMM = MPI.COMM_WORLD
NAMES = {getattr(MPI, f"THREAD_{name.upper()}"): name for name in ("single", "funneled", "serialized", "multiple")}


def collectives() -> None:
    """By the library and by an engine, called and begun."""
    for rows in ((), (Row("all_reduce", COMM.size, 1, 1, 1 << 20, "ring_all_reduce"),)):
        use(COMM, Selection({}, rows))
        assert (choice_for(COMM, "all_reduce", 4096, "float32") is None) is (not rows)
        for _ in range(3):  # an engine is made for the second call of a kind
            assert (dt.all_reduce(np.ones(1024, np.float32), COMM) == COMM.size).all()
        assert (dt.begin_all_reduce(np.ones(1024, np.float32), COMM).wait() == COMM.size).all()


def products() -> None:
    """By the serial schedule, and by one that asks for a helper thread, which polls where MPI allows none."""
    a, b = np.ones((64, 32)), np.ones((32, 16))
    operator = dt.MatmulAllReduce(64, 32 * COMM.size, 16, dtype="float64")
    assert (dt.matmul_all_reduce(a, b, COMM) == 32 * COMM.size).all()
    for progress in ("poll", "thread"):
        schedule = Schedule.of("optimal", tiles=(32, 32), by="library")
        bound = dt.bind(operator, COMM, schedule=replace(schedule, progress=progress))
        assert (bound(a, b) == 32 * COMM.size).all()


def stencils() -> None:
    whole = np.arange(64.0).reshape(8, 8)
    bound = dt.bind(dt.Jacobi2d((8, 8), steps=4, dtype="float64"), COMM)
    alone = dt.bind(dt.Jacobi2d((8, 8), steps=4, dtype="float64"), MPI.COMM_SELF)
    assert np.array_equal(bound(whole[bound.block]), alone(whole)[bound.block])


if __name__ == "__main__":
    asked = sys.argv[1]
    for door in (collectives, products, stencils):
        door()
        assert NAMES[MPI.Query_thread()] == asked, f"MPI has {NAMES[MPI.Query_thread()]} after {door.__name__}"
    if COMM.rank == 0:
        print("all at", asked)
