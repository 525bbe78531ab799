"""Run by the ranks of an MPI: products on arrays, uneven, tuned or not, and with arguments that do not fit."""

import dataclasses
import os
import sys
import warnings

import numpy as np
from any_ranks import WORLD as COMM

import dovetail as dt
from dovetail import (
    all_gather_columns_matmul,
    all_gather_matmul,
    all_to_all_matmul,
    matmul_all_reduce,
    matmul_all_to_all,
    matmul_reduce_scatter,
)
from dovetail.call import products, schedule_for
from dovetail.core import OperatorError
from dovetail.ir import Schedule
from dovetail.machine import load
from dovetail.matmul import AllGatherMatmul, MatmulAllReduce, shard
from dovetail.run.ranks.embedded import ranks_of
from dovetail.store.tuned_schedules import save_schedule

RANK, RANKS = COMM.rank, COMM.size
M, K, N = 37, 23, 19


def whole(dtype, seed=3):
    rng = np.random.default_rng(seed)
    return rng.integers(-4, 5, (M, K)).astype(dtype), rng.integers(-4, 5, (K, N)).astype(dtype)


def uneven(total, ranks):
    """The first rank has most, the last nothing where there are several."""
    rest = [1] * (ranks - 2) + [0] if ranks > 1 else []
    return [total - sum(rest), *rest]


def parts(array, shares, axis):
    return np.ascontiguousarray(np.split(array, np.cumsum(shares)[:-1], axis)[RANK])


def test_gathered(dtype):
    a, b = whole(dtype)
    for rows, columns in ((shard(M, RANKS), shard(N, RANKS)), (uneven(M, RANKS), uneven(N, RANKS))):
        mine, theirs = parts(a, rows, 0), parts(b, columns, 1)
        assert np.array_equal(all_gather_matmul(mine, theirs, COMM), a @ theirs)
        one, two, joined = all_gather_matmul(mine, [theirs, 2 * theirs], COMM, gathered=True)
        assert np.array_equal(one, a @ theirs)
        assert np.array_equal(two, 2 * one)
        assert np.array_equal(joined, a)


def test_gathered_columns(dtype):
    a, b = whole(dtype)
    for depths, columns in ((shard(K, RANKS), shard(N, RANKS)), (uneven(K, RANKS), uneven(N, RANKS))):
        mine, theirs = parts(a, depths, 1), parts(b, columns, 1)
        assert np.array_equal(all_gather_columns_matmul(mine, theirs, COMM), a @ theirs)
        outs = [np.zeros((M, theirs.shape[1]), dtype), np.zeros((M, K), dtype)]
        all_gather_columns_matmul(mine, theirs, COMM, gathered=True, out=outs)
        assert np.array_equal(outs[0], a @ theirs)
        assert np.array_equal(outs[1], a)
    if RANKS > 1:
        less = b[:-1] if RANK == RANKS - 1 else b
        said = refusal(lambda: all_gather_columns_matmul(parts(a, shard(K, RANKS), 1), less, COMM))
        assert f"rank {RANKS - 1} has 22 rows of B" in said, said


def test_summed(dtype):
    a, b = whole(dtype)
    for depths in (shard(K, RANKS), uneven(K, RANKS)):
        mine, theirs = parts(a, depths, 1), parts(b, depths, 0)
        out = np.empty((M, N), dtype)
        assert matmul_all_reduce(mine, theirs, COMM, out=out) is out
        assert np.array_equal(out, a @ b)
        assert np.array_equal(matmul_reduce_scatter(mine, theirs, COMM), parts(a @ b, shard(M, RANKS), 0))


def test_exchanged(dtype):
    counts = [[(2 * q + 3 * r) % 5 for r in range(RANKS)] for q in range(RANKS)]
    held = [whole(dtype, seed=q)[0][: sum(counts[q])] for q in range(RANKS)]
    weights = [whole(dtype, seed=q)[1] for q in range(RANKS)]
    cut = [np.split(each, np.cumsum(row)[:-1]) for each, row in zip(held, counts, strict=True)]
    asked = {"counts": counts[RANK]}
    came = np.concatenate([rows[RANK] for rows in cut])
    assert np.array_equal(all_to_all_matmul(held[RANK], weights[RANK], COMM, **asked), came @ weights[RANK])
    back = np.concatenate([rows[RANK] @ weights[q] for q, rows in enumerate(cut)])
    assert np.array_equal(matmul_all_to_all(held[RANK], weights[RANK], COMM, **asked), back)


def test_tuned(dtype):
    """What was kept for these shapes on these ranks is what runs."""
    world = ranks_of(COMM)
    operator = AllGatherMatmul(8 * RANKS, 6, 4 * RANKS, dtype)
    schedule = Schedule.of("hetero-unfused-1D", tiles=(4, 4), by="messages", own_block="first", fused=False)
    hosts = world.gather(os.uname().nodename)
    if RANK == 0:
        save_schedule(operator, schedule, world.library, hosts)
    a, b = (np.ones(shape, dtype) for shape in ((8 * RANKS, 6), (6, 4)))
    assert np.array_equal(all_gather_matmul(parts(a, (8,) * RANKS, 0), b, COMM), a @ b)
    (embedded,) = [
        each.embedded for kept in products._bound.values() for each in kept.held.values() if each.operator == operator
    ]
    assert embedded.program == operator.program(schedule, RANKS)
    taken = schedule_for("all_gather_matmul", parts(a, (8,) * RANKS, 0), b, COMM)
    assert (taken, taken.family) == (schedule, schedule.family)
    assert taken.notes == (operator.describe(schedule, RANKS),)
    for _ in range(3):  # other arrays of the same shapes: the engine is moved, not bound anew
        again = np.array(a)
        assert np.array_equal(all_gather_matmul(parts(again, (8,) * RANKS, 0), b + 1, COMM), a @ (b + 1))


def test_which_schedule(dtype):
    """`schedule_for` returns the schedule of a call, refuses what the call refuses, and leaves it bound."""
    a, b = whole(dtype)
    odd = RANK == RANKS - 1
    taken = schedule_for("matmul_all_reduce", a, b, COMM)
    operator = MatmulAllReduce(M, K * RANKS, N, dtype)
    assert taken == operator.serial(RANKS)
    assert taken.notes == (operator.describe(taken, RANKS),)
    (kept,) = products._bound.values()
    bound = list(kept.held.values())
    assert np.array_equal(matmul_all_reduce(a, b, COMM), RANKS * (a @ b))
    assert list(kept.held.values()) == bound
    said = refusal(lambda: schedule_for("matmul_all_reduce", a, b[0] if odd else b, COMM))
    assert said.startswith(f"rank {RANKS - 1}: "), said
    for wrong, what in (
        ("jacobi2d", "jacobi2d is no product"),
        ("all_reduce", "is no product"),
        ("x", "no operator 'x'"),
    ):
        assert what in refusal(lambda name=wrong: schedule_for(name, a, b, COMM))


def test_faults(dtype):
    a, b = whole(dtype)
    odd, other = RANK == RANKS - 1, "f8" if dtype == "float32" else "f4"
    for arguments, what in (
        ((a[:, :5] if odd else a, b[:5] if odd else b), f"rank {RANKS - 1} has 5 columns of A"),
        ((a, b.astype(other) if odd else b), f"rank {RANKS - 1}: its A is"),
        (
            (a, b[0] if odd else b),
            f"rank {RANKS - 1}: all_gather_matmul takes arrays of two axes, but its B has 1 axes",
        ),
        ((a, b[:-1] if odd else b), f"rank {RANKS - 1}: A of (37, 23) and B of (22, 19) do not fit"),
    ):
        if RANKS > 1 or "columns of A" not in what:
            assert what in refusal(lambda given=arguments: all_gather_matmul(*given, COMM)), what
    assert "has no argument 'gather'" in refusal(lambda: all_gather_matmul(a, b, COMM, gather=True))
    wrong = [1] * RANKS if odd else [M, *[0] * (RANKS - 1)]
    assert f"rank {RANKS - 1} counts {RANKS} rows" in refusal(lambda: all_to_all_matmul(a, b, COMM, counts=wrong))


def test_out(dtype):
    """`out` is written to; one that does not fit is refused on all ranks before anything moves."""
    a, b = whole(dtype)
    odd, good = RANK == RANKS - 1, np.zeros((M, N), dtype)
    assert matmul_all_reduce(a, b, COMM, out=good) is good
    fixed, room = np.zeros((M, N), dtype), np.zeros(M * max(K, N), dtype)
    fixed.flags.writeable = False
    inside = np.ndarray(a.shape, dtype, room.data)
    inside[...] = a
    other = "f8" if dtype == "float32" else "f4"
    for out, what in (
        (np.zeros((M, N - 1), dtype), "its `out` has shape (37, 18), and the result (37, 19)"),
        (np.zeros((M, N), other), "and its `out` float"),
        (np.zeros((N, M), dtype).T, "must be C-contiguous"),
        (fixed, "must be C-contiguous and writeable"),
        ([good, good], "'out' shares memory with 'out 1'"),
        ([good, good.copy()], "its `out` has shape (37, 19), (37, 19), and the result (37, 19)"),
        ("here", "`out` takes NumPy arrays, not str"),
        (np.ndarray((M, N), dtype, room.data), "'out' shares memory with 'argument 1'"),
    ):
        first = inside if what.endswith("argument 1'") else a
        said = refusal(lambda given=first, into=out: matmul_all_reduce(given, b, COMM, out=into if odd else good))
        assert said.startswith(f"rank {RANKS - 1}: "), said
        assert what in said, said
    mine, theirs = parts(a, shard(M, RANKS), 0), parts(b, shard(N, RANKS), 1)
    outs = [np.zeros((M, theirs.shape[1]), dtype), np.zeros((M, K), dtype)]
    assert all_gather_matmul(mine, theirs, COMM, gathered=True, out=outs) is outs
    assert np.array_equal(outs[0], a @ theirs)
    assert np.array_equal(outs[1], a)


class Lent:
    """Lends an array by DLPack, as tensors do."""

    def __init__(self, held):
        self.held = held

    def __dlpack__(self, **asked):
        return self.held.__dlpack__(**asked)

    def __dlpack_device__(self):
        return 1, 0


def test_arrays_of_others(dtype):
    a, b = whole(dtype)
    mine, out = np.ascontiguousarray(np.array_split(a, RANKS, 1)[RANK]), Lent(np.zeros((M, N), a.dtype))
    other = np.ascontiguousarray(np.array_split(b, RANKS)[RANK])
    for _ in range(2):
        assert matmul_all_reduce(Lent(mine), Lent(other), COMM, out=out) is out
        assert np.array_equal(out.held, a @ b)
    if np.dtype(dtype) == np.float64:
        tensor = Lent(np.full(3, RANK + 1.0))
        assert dt.all_reduce(tensor, COMM) is tensor
        assert tensor.held.tolist() == [RANKS * (RANKS + 1) / 2] * 3
        assert dt.all_gather(Lent(np.full(2, RANK)), COMM).tolist() == [r for r in range(RANKS) for _ in range(2)]


def test_arguments_that_cannot_be(dtype):
    """On one rank alone, so that the others would wait for it."""
    a, b = whole(dtype)
    odd, even = RANK == RANKS - 1, list(shard(M, RANKS))
    for counts in ({0: M}, 4, [even], ["x"] * RANKS, [0.5] * RANKS, [-1, *[1] * (RANKS - 1)], [], [2**70] * RANKS):
        said = refusal(lambda mine=counts: all_to_all_matmul(a, b, COMM, counts=mine if odd else even))
        assert said.startswith(f"rank {RANKS - 1}"), said
    assert "gathered must be True or False" in refusal(lambda: all_gather_matmul(a, b, COMM, gathered="no"))
    big = np.dtype(dtype).newbyteorder(">")
    assert f"rank {RANKS - 1}: " in refusal(lambda: matmul_all_reduce(a.astype(big) if odd else a, b, COMM))
    assert f"rank {RANKS - 1}: " in refusal(lambda: matmul_all_reduce(a, [b, b] if odd else b, COMM))
    if RANKS > 1:
        calls = matmul_all_to_all if odd else all_to_all_matmul
        assert f"rank {RANKS - 1} calls matmul_all_to_all" in refusal(lambda: calls(a, b, COMM))


def test_what_was_kept_wrongly(dtype):
    """A schedule in the cache that does not fit is left aside, with a warning, on all ranks."""
    world = ranks_of(COMM)
    hosts = world.gather(os.uname().nodename)
    a, b = np.ones((5, 6), dtype), np.ones((6, 4), dtype)
    if RANK == 0:
        operator = MatmulAllReduce(5, 6 * RANKS, 4, dtype)
        save_schedule(operator, Schedule.of("mc2", tiles=(3,), by="library"), world.library, hosts)
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        assert np.array_equal(matmul_all_reduce(a, b, COMM), RANKS * (a @ b))
    assert ["left aside" in str(each.message) for each in reported] == [True]


def test_plans_refuse_what_cannot_be(dtype):
    """Whatever is wrong on one rank alone is heard on all; then the plan still runs."""
    if RANKS != 2:  # of the machine that is planned for
        return
    operator = AllGatherMatmul(2 * RANKS, 2 * RANKS + 1, 3 * RANKS, dtype)  # K in slices of unlike width, flat inside
    plan = dt.plan(operator, load("two-hosts-1gbit"), extrapolate=True)
    sliced = Schedule.of("uniform-fused-2D", slices=RANKS, by="messages", own_block="together", fused=True)
    program = operator.program(sliced, RANKS)
    plan = dataclasses.replace(plan, schedule=sliced, program=program)
    a, b, odd = np.ones((2, operator.k), dtype), np.ones((operator.k, 3), dtype), RANK == RANKS - 1
    flat = np.zeros(operator.m * 3 + 4, dtype)
    for given, out, what in (
        ((), None, "takes A, B0"),
        ((a, b, b), None, "takes A, B0"),
        ((a, b.T), None, f"'B0' has shape (3, {operator.k})"),
        ((a[0], b), None, "'A' has shape"),
        (("x", b), None, "could not convert"),
        (([[1.0], [2.0, 3.0]], b), None, "inhomogeneous"),
        ((a, None), None, "'B0' has shape ()"),
        ((a.astype(object), b), None, "'A' is object"),
        ((a * np.nan, b), None, "NaN or infinite"),
        ((a, b), np.zeros((1, 1), dtype), "'C0' has shape (1, 1)"),
        ((a, b), (np.zeros((operator.m, 3), dtype),) * 2, "1 results"),
        (
            (a, flat[: operator.k * 3].reshape(operator.k, 3)),
            flat[: operator.m * 3].reshape(operator.m, 3),
            "shares memory",
        ),
    ):
        said = refusal(lambda g=given, o=out: plan.run(*(g if odd else (a, b)), comm=COMM, out=o if odd else None))
        assert said.startswith(f"rank {RANKS - 1} cannot run the plan: "), said
        assert what in said, said
    assert np.array_equal(plan.run(a, b, comm=COMM), np.full((operator.m, 3), operator.k, dtype))


def test_only_the_latest_are_kept(dtype):
    """Counts that differ in every call, as a router's do, leave nothing behind; all ranks keep the same."""
    world = ranks_of(COMM)
    weights = np.ones((2, 3), dtype)
    for tokens in range(products.MOST + 9):
        rows = np.full((tokens, 2), RANK + 1, dtype)
        assert all_to_all_matmul(rows, weights, COMM, counts=[tokens, *[0] * (RANKS - 1)]).shape[1] == 3
    held = next(iter(products._bound.values())).held
    kept = world.share(world.gather([each.operator for each in held.values()]))
    assert len(held) <= products.MOST
    assert all(each == kept[0] for each in kept)


def test_one_rank_changes(dtype):
    """Shapes that only one rank knows are new to both; arguments that do not fit raise, without a wait."""
    a, b = whole(dtype)
    matmul_all_reduce(a, b, COMM)
    less = a[:-1] if RANK == RANKS - 1 else a
    if RANKS > 1:
        assert f"rank {RANKS - 1} has 36 rows of A" in refusal(lambda: matmul_all_reduce(less, b, COMM))
    assert np.array_equal(matmul_all_reduce(a, b, COMM), RANKS * (a @ b))
    for held in (1, 2, 1):
        mine = np.full((held if RANK == RANKS - 1 else 3, K), RANK + 1, dtype)
        found = all_gather_matmul(mine, b, COMM)
        assert found.shape == (3 * (RANKS - 1) + held, N)
        assert np.array_equal(found[-1], RANKS * b.sum(axis=0))


def refusal(call):
    try:
        call()
    except OperatorError as error:
        return str(error)
    return "nothing"


def main(*names):
    tests = [value for name, value in globals().items() if name.startswith("test_") and (not names or name in names)]
    for test in tests:
        for dtype in ("f4", "f8"):
            test(np.dtype(dtype).name)
            COMM.Barrier()
    if RANK == 0:
        print("all the same")


if __name__ == "__main__":
    main(*sys.argv[1:])
