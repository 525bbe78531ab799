"""Run by ranks with and without MPI: calls on arrays that other ranks read, as source, as result, in part, beside
plain ones."""

import platform
from pathlib import Path

import numpy as np
from any_ranks import WORLD

import dovetail as dt
from dovetail.core import DovetailError, EnvironmentFault, OperatorError

RANKS, RANK = WORLD.size, WORLD.rank
comm = WORLD.Dup()


def values(rank, count):
    return np.arange(count, dtype="f8") + 1000.0 * rank


def check(rows):
    """Long calls, whose messages are lent, and short ones; a rank whose array is plain takes part."""
    count = rows * RANKS
    parts = [values(rank, count) for rank in range(RANKS)]
    own = slice(RANK * rows, (RANK + 1) * rows)
    for plain in range(-1, RANKS):
        make = np.zeros if plain == RANK else (lambda n: dt.empty(n, "f8", comm))
        if plain >= 0 and plain == RANK:
            dt.empty(0, "f8", comm), dt.empty(0, "f8", comm)  # all ranks make them together
        held, out = make(count), make(count)
        held[...] = parts[RANK]
        assert np.array_equal(dt.all_reduce(held, comm, out=out), sum(parts))
        assert np.array_equal(dt.all_to_all(held, comm, out=out), np.concatenate([part[own] for part in parts]))
        assert np.array_equal(dt.reduce_scatter(held, comm), sum(parts)[own])
        assert np.array_equal(
            dt.all_gather(held[own], comm), np.concatenate([parts[r][r * rows : (r + 1) * rows] for r in range(RANKS)])
        )
        assert np.array_equal(dt.broadcast(held, comm, RANKS - 1), parts[-1])
        held[...] = parts[RANK]
        request = dt.begin_all_reduce(held, comm)
        assert np.array_equal(request.wait(), sum(parts))


def refusal(call):
    try:
        call()
    except DovetailError as error:
        return error
    raise AssertionError("it was not refused")


def check_refusals():
    """On every rank, whichever gives what is no array; the next one is made."""
    for shape, dtype, words in (
        ((2, -1), "f8", "shape"),
        ("x", "f8", "no array"),
        (3, "O", "object"),
        (3, "q8x", "q8x"),
    ):
        asked = (shape, dtype) if RANK else (3, "f8")
        said = refusal(lambda asked=asked: dt.empty(*asked, comm))
        assert isinstance(said, OperatorError)
        assert words in str(said), said
        assert dt.empty(3, "f8", comm).tolist() == [0.0] * 3


def check_hosts():
    """The ranks of a communicator that say they are on several hosts."""
    name, platform.node = platform.node, lambda: f"host {RANK}"
    apart = WORLD.Dup()
    said = refusal(lambda: dt.empty(3, "f8", apart))
    assert isinstance(said, EnvironmentFault)
    assert f"ranks are on {RANKS} hosts" in str(said), said
    platform.node = name
    apart.Free()


def check_memory():
    """It is given back: the pages by each rank, the mapping when the next array is made."""

    def maps():
        return sum("memfd:dovetail" in line for line in Path("/proc/self/maps").read_text().splitlines())

    dt.empty(4, "f8", comm)
    comm.barrier()
    before = maps()
    for _ in range(5):
        dt.empty(1000, "f8", comm)
        comm.barrier()
    assert maps() <= before, (before, maps())


check_refusals()
check_hosts()
check_memory()
for size in (1, 1000, 30_000):
    for _ in range(3):
        check(size)
shared = dt.share(np.full((40, 50), RANK + 1.0), comm)
product = dt.matmul_all_reduce(shared, np.ones((50, 60)), comm)
assert np.array_equal(product, np.full((40, 60), 50.0 * RANKS * (RANKS + 1) / 2)), product
if RANK == 0:
    print("all the same")
