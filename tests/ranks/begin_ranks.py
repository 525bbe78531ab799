"""Run by every rank of an MPI: calls that are begun, held against the blocking ones, whatever the order of waits."""

import os
import random
import signal
import sys
import threading
import warnings

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy as np
from mpi4py import MPI

import dovetail as dt
from dovetail.call import use
from dovetail.collective import algorithms_for
from dovetail.core import DovetailError
from dovetail.loops import problems
from dovetail.run import requests
from dovetail.run.ranks import comm as run_comm
from dovetail.store.selection import Row, Selection

WORLD = MPI.COMM_WORLD
RANK, RANKS = WORLD.rank, WORLD.size
OVERLAPS = MPI.Query_thread() == MPI.THREAD_MULTIPLE
ALONE = ("ends", "fails")  # how the process ends: nothing may follow
RING = Selection(
    {},
    tuple(
        Row(kind, RANKS, 1, 0, 1 << 40, f"ring_{kind}")
        for kind in ("all_reduce", "all_gather", "reduce_scatter")
        if f"ring_{kind}" in algorithms_for(kind)
    ),
)


def numbers(shape, seed=0):
    """Small whole numbers of this rank, so that sums are exact in every order."""
    return np.random.default_rng([seed, RANK, *shape]).integers(-4, 5, shape).astype("f8")


def calls_on(comm):
    """Pairs of a blocking function and the one that begins it, with what makes their arguments: (seed, count)."""
    counts = [1 + rank for rank in range(RANKS)]
    table = np.arange(RANKS * RANKS).reshape(RANKS, RANKS) + 1
    last = RANKS - 1

    def of(name, make, **said):
        return getattr(dt, name), getattr(dt, f"begin_{name}"), lambda s, n: (make(s, n), said | {"comm": comm})

    def wide(s, n):
        return [numbers((RANKS * n,), s)]

    nest = dt.bind(problems.jacobi2d, comm, (8 * RANKS, 12), steps=3)
    bound = dt.bind(dt.MatmulAllReduce(24, 8 * RANKS, 5, dtype="float64"), comm)
    block = np.arange(96.0 * RANKS, dtype="f4").reshape(8 * RANKS, 12)[nest.blocks["u"]]
    return [
        of("all_reduce", lambda s, n: [numbers((n,), s)]),
        of("all_reduce", lambda s, n: [numbers((n,), s)], op="max"),
        of("all_gather", lambda s, n: [numbers((n,), s)]),
        of("reduce_scatter", wide),
        of("all_to_all", wide),
        of("all_to_next", lambda s, n: [numbers((n,), s)]),
        of("broadcast", lambda s, n: [numbers((n,), s)], root=last),
        of("reduce", lambda s, n: [numbers((n,), s)], root=last),
        of("gather", lambda s, n: [numbers((n,), s)], root=last),
        of("scatter", lambda s, n: wide(s, n) if last == RANK else [None], root=last, out=np.zeros(3)),
        of("all_gather_v", lambda s, n: [numbers((counts[RANK],), s)], counts=counts),
        of("reduce_scatter_v", lambda s, n: [numbers((sum(counts),), s)], counts=counts),
        of("all_to_all_v", lambda s, n: [numbers((int(table[RANK].sum()),), s)], counts=table),
        of("matmul_all_reduce", lambda s, n: [numbers((n, 4), s), numbers((4, 3), s)]),
        of("all_gather_matmul", lambda s, n: [numbers((n, 4), s), numbers((4, 3), s)]),
        (bound, bound.begin, lambda s, n: ([numbers((24, 8), s), numbers((8, 5), s)], {})),
        (nest, nest.begin, lambda s, n: ([block + np.float32(s)], {})),
    ]


def said_of(said):
    """The keywords of a call, with an `out` of its own."""
    return said | ({"out": said["out"].copy()} if "out" in said else {})


def copies(arrays):
    return [each if each is None else each.copy() for each in arrays]


def same(found, expected):
    if isinstance(expected, tuple):
        return all(map(same, found, expected))
    return np.array_equal(found, expected) if expected is not None else found is None


def interleaved(comm, trials, seed):
    """Begin and call at random, equally on all ranks; wait in an order of this rank's own."""
    calls, drawn, own = calls_on(comm), random.Random(seed), random.Random(seed + RANK)
    begun = []
    for trial in range(trials):
        blocking, begin, make = calls[drawn.randrange(len(calls))]
        arrays, said = make(trial, 3)
        expected = blocking(*copies(arrays), **said_of(said))
        if drawn.random() < 0.7:
            begun.append((begin(*arrays, **said_of(said)), expected, blocking))
        else:
            assert same(blocking(*arrays, **said_of(said)), expected), blocking
        while begun and own.random() < 0.3:
            request, wanted, what = begun.pop(own.randrange(len(begun)))
            assert same(request.wait(), wanted), what
            assert request.test()
    own.shuffle(begun)
    for request, wanted, what in begun:
        assert same(request.wait(), wanted), what
        assert same(request.wait(), wanted), "a second wait"


def all_begun(comm, trials, seed):
    """Begin everything first, so that nothing but begun calls runs; the blocking forms come before, on their own."""
    calls, drawn, own = calls_on(comm), random.Random(seed), random.Random(seed + RANK)
    asked = []
    for trial in range(trials):
        blocking, begin, make = calls[drawn.randrange(len(calls))]
        arrays, said = make(trial, 3)
        asked.append((begin, arrays, said, blocking(*copies(arrays), **said_of(said))))
    begun = [(begin(*arrays, **said_of(said)), expected, begin) for begin, arrays, said, expected in asked]
    own.shuffle(begun)
    for request, expected, what in begun:
        assert same(request.wait(), expected), what


def test_library():
    for seed in range(2):
        comm = WORLD.Dup()
        use(comm, None)
        interleaved(comm, 40, seed)
        all_begun(comm, 40, seed)
        comm.Free()


def test_programs():
    comm = WORLD.Dup()
    use(comm, RING)
    interleaved(comm, 40, 5)
    all_begun(comm, 40, 5)
    comm.Free()


def test_two_communicators():
    """Requests of two communicators are independent: each rank waits for another one first."""
    one, two = WORLD.Dup(), WORLD.Dup()
    begun = [dt.begin_all_reduce(np.ones(3), comm) for comm in (one, two) for _ in range(3)]
    if not OVERLAPS:  # the waits themselves run the calls: all ranks in one order
        assert [each.wait().tolist() for each in begun] == [[RANKS] * 3] * 6
    else:
        order = begun if RANK % 2 else begun[::-1]
        assert [each.wait().tolist() for each in order] == [[RANKS] * 3] * 6
    one.Free(), two.Free()


def raised(act):
    try:
        act()
    except DovetailError as error:
        return str(error)
    return ""


def test_one_rank_fails():
    """What one rank raises, all ranks raise at `wait`; what was begun after it moves nothing, what comes later runs."""
    bad = np.ones((4, 4))[:, ::2] if RANK == RANKS - 1 else np.ones((4, 2))
    before = dt.begin_all_reduce(np.ones(2), WORLD)
    failing = [dt.begin_all_reduce(bad, WORLD), dt.begin_matmul_all_reduce(bad, np.ones(3), WORLD)]
    behind = np.ones(2)
    after = dt.begin_all_reduce(behind, WORLD)
    assert before.wait().tolist() == [RANKS] * 2
    assert "C-contiguous" in raised(failing[0].wait)
    assert "C-contiguous" in raised(after.wait)
    assert "C-contiguous" in raised(failing[1].wait)
    assert behind.tolist() == [1, 1]
    assert dt.begin_all_reduce(behind, WORLD).wait().tolist() == [RANKS] * 2
    assert "all_reduce" in raised(dt.begin_matmul_all_reduce(bad, np.ones(3), WORLD).wait)
    assert dt.all_reduce(np.ones(2), WORLD).tolist() == [RANKS] * 2


def test_blocking_raises():
    """An error that nobody waited for is raised in place of the next blocking call, once."""
    for blocking in (
        lambda: dt.all_reduce(np.ones(2), WORLD),
        lambda: dt.matmul_all_reduce(np.ones((2, 2)), np.ones((2, 2)), WORLD),
    ):
        dt.begin_all_reduce("text" if RANK == 0 else np.ones(2), WORLD)
        assert "takes NumPy arrays" in raised(blocking)
        assert blocking() is not None


def test_bound_fails():
    bound = dt.bind(dt.MatmulAllReduce(8, 4 * RANKS, 2, dtype="float64"), WORLD)
    good = np.ones((8, 4)), np.ones((4, 2))
    request = bound.begin(*(good if RANK else (good[0], good[0])))
    assert "rank 0" in raised(request.wait)
    assert bound.begin(*good).wait()[0, 0] == 4 * RANKS
    dt.begin_all_reduce("text", WORLD)
    assert "takes NumPy arrays" in raised(lambda: bound(*good))
    assert bound(*good)[0, 0] == 4 * RANKS


def test_dropped_and_freed():
    """A request that is dropped ends all the same; so do those of a communicator that is freed."""
    comm = WORLD.Dup()
    held = [np.ones(1000) for _ in range(5)]
    for array in held:
        dt.begin_all_reduce(array, comm)
    bound = run_comm.known(comm).bound
    last = dt.begin_all_gather(np.ones(2), comm)
    comm.Free()
    assert bound.freed
    assert not bound.has_begun
    assert all((array == RANKS).all() for array in held)
    assert last.wait().tolist() == [1] * 2 * RANKS
    assert "null" in raised(lambda: dt.begin_all_reduce(np.ones(1), comm))


def test_freed_plan():
    comm = WORLD.Dup()
    bound = dt.bind(dt.MatmulAllReduce(8, 4 * RANKS, 2, dtype="float64"), comm)
    comm.Free()
    assert "freed" in raised(bound.begin(np.ones((8, 4)), np.ones((4, 2))).wait)


def test_interrupted_wait():
    """Ctrl-C ends the wait; the request can be waited for again. The last rank begins only when that has happened."""
    if RANKS == 1 or not OVERLAPS:
        return
    if RANK < RANKS - 1:
        request = dt.begin_all_reduce(np.ones(2), WORLD)
        timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        try:
            request.wait()
        except KeyboardInterrupt:
            WORLD.send(None, RANKS - 1)
        else:
            raise AssertionError("the wait was not interrupted")
        assert not request.test()
    else:
        for _ in range(RANKS - 1):
            WORLD.recv()
        request = dt.begin_all_reduce(np.ones(2), WORLD)
    assert request.wait().tolist() == [RANKS] * 2


def test_test():
    """`test` becomes true without a wait."""
    request = dt.begin_all_reduce(np.ones(2), WORLD)
    polls = 0
    while not request.test():
        polls += 1
    assert OVERLAPS or not polls
    assert request.wait().tolist() == [RANKS] * 2


def test_arguments_compared():
    """Where ranks compare arguments, one that calls what others begin is refused on all."""
    os.environ["DOVETAIL_CHECK_CALLS"] = "1"
    comm = WORLD.Dup()
    assert dt.begin_all_reduce(np.ones(2), comm).wait().tolist() == [RANKS] * 2
    act = dt.begin_all_reduce(np.ones(2), comm).wait if RANK else lambda: dt.all_reduce(np.ones(2), comm)
    assert RANKS == 1 or "begun" in raised(act)
    comm.Free()
    del os.environ["DOVETAIL_CHECK_CALLS"]


def test_no_thread_stays():
    """The thread of a communicator ends when it has nothing to do."""
    before = requests.IDLE_S
    requests.IDLE_S = 0.01
    comm = WORLD.Dup()
    dt.begin_all_reduce(np.ones(2), comm).wait()
    thread = run_comm.known(comm).world.requests._thread
    if thread is not None:
        thread.join(60)
        assert not thread.is_alive()
    assert dt.begin_all_reduce(np.ones(2), comm).wait().tolist() == [RANKS] * 2
    comm.Free()
    requests.IDLE_S = before


def ends():
    """Dropped requests end before the process does, whichever rank comes first; an error is printed."""
    held = np.ones(1000)
    dt.all_reduce(held, WORLD)
    if RANK == RANKS - 1:
        WORLD.Barrier()
    dt.begin_all_reduce(held, WORLD)
    dt.begin_all_reduce("text" if RANK == 0 else held, WORLD)
    if RANK < RANKS - 1:
        WORLD.Barrier()


def fails():
    """A rank that ends by an exception, with calls that nobody else comes to, ends the job."""
    requests.SAID_S = 0.1
    dt.all_reduce(np.ones(2), WORLD)
    if RANK == 0:
        dt.begin_all_reduce(np.ones(2), WORLD)
        raise ValueError("nobody catches this")
    WORLD.recv()  # that never comes


def plant(fault):
    """Break what the tests are to see: a result of another call, an error that no call raises."""
    if fault == "result":
        run = requests.Request.run
        requests.Request.run = lambda request: (np.zeros(1), run(request)[1])
    elif fault == "silent":
        requests.RequestQueue.take_error = lambda queue, error=None: None
    return fault in ("result", "silent")


def main(*names):
    names = [name for name in names if not plant(name)]
    if not OVERLAPS:
        warnings.filterwarnings("ignore", "MPI was started for calls by one thread at a time")
    tests = [value for name, value in globals().items() if name.startswith("test_") and (not names or name in names)]
    for test in tests or [globals()[name] for name in names]:
        try:
            test()
            if test.__name__ not in ALONE:
                WORLD.Barrier()
        except AssertionError as error:
            print(f"{error!r} in {test.__name__}", file=sys.stderr)
            raise
    if RANK == 0:
        print("all the same")


if __name__ == "__main__":
    main(*sys.argv[1:])
