"""Run by 4 ranks of an MPI: plans on communicators of the user's, at the same time, beside other things, wrongly."""

import sys
from functools import partial

import numpy as np
from mpi4py import MPI
from run_programs import library_call, workload_of

import dovetail as dc
import dovetail as dt
from dovetail.call.selection_rules import communicator
from dovetail.core import OperatorError, RunError
from dovetail.ir import Schedule
from dovetail.planner.costs import Costs
from dovetail.planner.search import with_schedule
from dovetail.run.options import RunOptions
from dovetail.run.ranks.embedded import Embedded, ranks_of

WORLD = MPI.COMM_WORLD
M, K, N = 24, 10, 6


def inputs(comm, seed):
    """This rank's part of whole numbers, and what must come of them."""
    rng = np.random.default_rng(seed)
    a, b = rng.integers(-4, 5, (M, K)).astype("f4"), rng.integers(-4, 5, (K, N)).astype("f4")
    mine = slice(0, K // 2) if comm.rank == 0 else slice(K // 2, K)
    return a[:, mine].copy(), b[mine].copy(), a @ b


def test_two_at_once(plan):
    """Halves of the ranks, one of them numbered backwards, each run the plan with their own numbers."""
    half = WORLD.rank % 2
    comm = WORLD.Split(half, -WORLD.rank if half else WORLD.rank)
    assert comm.size == 2
    for turn in range(4):
        a, b, product = inputs(comm, 10 * half + turn)
        out = np.empty((M, N), "f4")
        assert plan.run(a, b, out=out, comm=comm) is out
        assert np.array_equal(out, product), (WORLD.rank, turn)
    assert len(plan._places) == 1
    comm.Free()


def test_beside_other_work(plan):
    """Two ranks run the plan while the others, who never hear of it, talk among themselves."""
    comm = WORLD.Split(WORLD.rank // 2)
    if WORLD.rank >= 2:
        a, b, product = inputs(comm, 7)
        assert np.array_equal(plan.run(a, b, comm=comm), product)
    else:
        for _ in range(100):
            comm.Barrier()
    comm.Free()


def test_beside_collectives(plan):
    """A communicator serves plans and collectives in turn, and begins with its selection table all the same."""
    comm = WORLD.Split(WORLD.rank % 2)
    a, b, product = inputs(comm, 5)
    assert np.array_equal(plan.run(a, b, comm=comm), product)
    assert dc.all_reduce(np.ones(3), comm).tolist() == [2.0] * 3
    assert communicator(comm).has_rules
    assert np.array_equal(plan.run(a, b, comm=comm), product)
    comm.Free()


def test_freed(plan):
    """What ran on a communicator goes with it."""
    for _ in range(3):
        comm = WORLD.Split(WORLD.rank // 2)
        a, b, product = inputs(comm, 1)
        assert np.array_equal(plan.run(a, b, comm=comm), product)
        held = next(world for world in plan._places if not world.freed)
        comm.Free()
        assert held.freed
        assert "the communicator is null" in refusal(partial(plan.run, a, b, comm=comm))
    comm = WORLD.Split(WORLD.rank // 2)
    a, b, product = inputs(comm, 1)
    assert np.array_equal(plan.run(a, b, comm=comm), product)
    assert len(plan._places) == 1, "those of freed communicators are kept"
    comm.Free()


def test_faults_name_ranks_of_the_communicator(plan):
    comm = WORLD.Split(WORLD.rank // 2)
    a, b, product = inputs(comm, 2)
    if WORLD.rank == 3:  # rank 1 there
        a = a[:-1]
    said = refusal(lambda: plan.run(a, b, comm=comm))
    if WORLD.rank >= 2:
        assert "rank 1 cannot run the plan: 'A' has shape (23, 5)" in said, said
    else:
        assert said == "nothing", said
    a, b, product = inputs(comm, 2)
    assert np.array_equal(plan.run(a, b, comm=comm), product)
    said = refusal(lambda: plan.run(a, b, comm=WORLD))
    assert "the plan is for 2 ranks" in said, said
    assert "the communicator has 4" in said, said
    assert "no communicator, but int" in refusal(lambda: plan.run(a, b, comm=3))
    comm.Free()


def test_groups(plan):
    """Any Program runs on a communicator, one whose library calls are on some of its ranks too; all ends with it."""
    asked = library_call("all_gather", [1, 0, 2], (2, 0, 3), ranks=4)
    workload = workload_of(asked, (5,), "int32")
    for _ in range(3):
        comm = WORLD.Split(0, -WORLD.rank)
        run = Embedded(asked, workload, RunOptions(), ranks_of(comm))
        rows = {0: 0, 1: 0, 2: 1, 3: 2}[comm.rank]
        found = run({"x": np.full((rows, 5), comm.rank, "i4")})["y"]
        expected = [] if comm.rank == 1 else [2, 3, 3]
        assert found[: len(expected), 0].tolist() == expected, found
        comm.Free()
        assert "was freed" in refusal(partial(run, {"x": np.zeros((rows, 5), "i4")}), RunError)


def test_alone(plan):
    """A plan for one rank on a communicator of one, while others do nothing."""
    single = dt.plan(dt.MatmulAllReduce(M, K, N), "shared-memory-2", ranks=1)
    rng = np.random.default_rng(0)
    a, b = rng.integers(-4, 5, (M, K)).astype("f4"), rng.integers(-4, 5, (K, N)).astype("f4")
    if WORLD.rank == 1:
        assert np.array_equal(single.run(a, b, comm=MPI.COMM_SELF), a @ b)


def refusal(call, kind=OperatorError):
    """What the error said."""
    try:
        call()
    except kind as error:
        return str(error)
    return "nothing"


def main(*names):
    plan = dt.plan(dt.MatmulAllReduce(M, K, N), "shared-memory-2", ranks=2)
    costs, _ = Costs.of(plan.operator, dt.Machine.load("shared-memory-2"), 2)
    ring = with_schedule(plan, Schedule.of("ring", tiles=(8, 16), by="ring"), costs)
    tests = [value for name, value in globals().items() if name.startswith("test_") and (not names or name in names)]
    for test in tests:
        for each in (plan, ring):
            test(each)
            each._places.clear()
            WORLD.Barrier()
    if WORLD.rank == 0:
        print("all the same")


if __name__ == "__main__":
    main(*sys.argv[1:])
