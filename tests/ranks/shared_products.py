"""Run by ranks without MPI: products by every family on arrays that other ranks read, which change after each call; and
a program whose sender overwrites what it has sent."""

import numpy as np

import dovetail as dt
from dovetail.ir import Builder, Kind, Region, Slot, Workload, verify
from dovetail.matmul import AllGatherMatmul, MatmulAllReduce, MatmulReduceScatter
from dovetail.run.options import RunOptions
from dovetail.run.ranks.embedded import Embedded

comm = dt.world()
RANKS, RANK = comm.size, comm.rank
ROWS, DEPTH, COLUMNS = 48 * RANKS, 50 * RANKS, 60 * RANKS  # blocks of more than 8 KiB, which stay with their sender


def part(array, axis):
    return np.split(array, RANKS, axis)[RANK]


def check(kind, cut_a, cut_b, cut_c):
    """Each call has other numbers in the same arrays: a rank that still read those of the call before would show."""
    operator = kind(ROWS, DEPTH, COLUMNS)
    plan = dt.plan(operator, "shared-memory-2", extrapolate=True)
    a, b = (dt.empty(part(whole, cut).shape, "f4", comm) for whole, cut in (
        (np.empty((ROWS, DEPTH)), cut_a), (np.empty((DEPTH, COLUMNS)), cut_b)))  # fmt: skip
    rng = np.random.default_rng(7)
    for schedule in (operator.serial(RANKS), plan.schedule, *(rival.schedule for rival in plan.rivals)):
        bound = dt.bind(operator, comm, schedule=schedule)
        for _ in range(3):
            whole_a, whole_b = rng.integers(-9, 9, (ROWS, DEPTH)), rng.integers(-9, 9, (DEPTH, COLUMNS))
            a[...], b[...] = part(whole_a, cut_a), part(whole_b, cut_b)
            found, exact = bound(a, b), (whole_a @ whole_b).astype("f4")
            a[...], b[...] = 0, 0
            assert np.array_equal(found, exact if cut_c is None else part(exact, cut_c)), schedule


def check_overwritten():
    """Rank 0 sends S, overwrites it, and sends it again; rank 1 reads the first message once both have come."""
    slots = 2000
    b = Builder("overwritten", 2)
    for name, role in (("A", "input"), ("S", "scratch"), ("R", "scratch"), ("C", "output")):
        b.buffer(name, role, 2 * slots if name in "AR" else slots)
    work, net, channel = b.lane("work", "compute"), b.lane("net", "net"), b.channel(0, 1, depth=2)
    whole, first, second = Region("S", 0, slots), Region("A", 0, slots), Region("A", slots, slots)
    copied = b.add(Kind.copy, 0, work, reads=[first], writes=[whole])
    sent = b.add(Kind.send, 0, net, reads=[whole], chan_out=channel, after=[copied])
    again = b.add(Kind.copy, 0, work, reads=[second], writes=[whole], after=[sent])
    b.add(Kind.send, 0, net, reads=[whole], chan_out=channel, after=[again])
    came = [b.add(Kind.recv, 1, net, writes=[Region("R", i * slots, slots)], chan_in=channel) for i in (0, 1)]
    b.add(Kind.copy, 1, work, reads=[Region("R", 0, slots)], writes=[Region("C", 0, slots)], after=came)
    program = b.build()
    verify(program).raise_if_bad()
    workload = Workload({buffer.name: (Slot((), "float64"),) * 2 for buffer in program.buffers})
    bound = Embedded(program, workload, RunOptions(), comm.world)
    given = np.arange(2.0 * slots)
    found = bound({"A": given})["C"]
    assert RANK == 0 or np.array_equal(found, given[:slots])


check(AllGatherMatmul, 0, 1, 1)
check(MatmulReduceScatter, 1, 0, 0)
check(MatmulAllReduce, 1, 0, None)
check_overwritten()
if RANK == 0:
    print("all the same")
