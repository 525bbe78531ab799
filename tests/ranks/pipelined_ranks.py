"""Run by the ranks of an MPI: pipelines on blocks of arrays, called again and again, on parts of the ranks too."""

import sys

import numpy as np
from mpi4py import MPI

from dovetail import bind
from dovetail.core import OperatorError
from dovetail.loops import problems

COMM = MPI.COMM_WORLD


def refusal(call):
    """What a call is refused with; pytest is not in every environment that ranks run in."""
    try:
        call()
    except OperatorError as error:
        return str(error)
    return "nothing"


def arrays(operator, seed=3):
    rng = np.random.default_rng(seed)
    whole = operator.inputs(operator.serial(1), 1)
    return [(4 * rng.random(spec.shapes[0])).astype(spec.dtype) for spec in whole]


def check(comm, name, grid, steps=None, dtype="float64", **asked):
    made = getattr(problems, name)
    asked |= {"steps": steps} if steps else {}
    here = bind(made, comm, grid, dtype=dtype, **asked)
    given = arrays(here.operator)
    mine = [array[here.blocks[each]] for each, array in zip(made.arrays, given, strict=True)]
    wanted = made.reference(*given, **({"steps": steps} if steps else {}))
    for _ in range(2):
        assert np.array_equal(here(*mine), wanted[here.block]), (name, asked)
    return here, mine


def test_every_problem(comm):
    for overlapped in (True, False):
        for mapped, cut in ((0, (1, comm.size)), (1, (comm.size, 1))):
            about = {"mapped": mapped, "cut": cut, "overlapped": overlapped, "grain": 3}
            check(comm, "sync_p2p", (17, 19), 3, **about)
            check(comm, "gauss_seidel2d", (18, 17), 4, "float32", **about)
            check(comm, "sor2d", (17, 18), 2, **about)
            check(comm, "ssor2d", (14, 13), 2, **about)
            check(comm, "lcs", (20, 21), **about)
            check(comm, "smith_waterman", (21, 20), **about)
        check(comm, "seidel2d", (15, 16), 3, grain=4, overlapped=overlapped)
    check(comm, "seidel2d", (40, 30), 2)
    check(comm, "seidel1d", (41,), 9, depth=2, grain=6)
    check(comm, "seidel1d", (300,), 40, "float32")
    check(comm, "triple_nest", (9, 10, 33))
    check(comm, "triple_nest", (10, 9, 8), mapped=1, grain=2)


def test_a_part_of_the_ranks(comm):
    half = comm.Split(comm.rank % 2, -comm.rank)
    check(half, "gauss_seidel2d", (12 + comm.rank % 2, 13), 3)


def test_results_in_place(comm):
    here, (mine,) = check(comm, "sync_p2p", (16, 15), 2)
    out = np.empty_like(mine)
    assert np.shares_memory(here(mine, out=out), out)
    assert np.array_equal(out, here(mine))
    turned, (mine,) = check(comm, "sync_p2p", (16, 15), 2, mapped=1)
    for there in (np.empty_like(mine), np.empty((*mine.shape[:1], 2 * mine.shape[1]))[:, ::2]):
        assert turned(mine, out=there) is there
        assert np.array_equal(there, turned(mine))


def test_what_does_not_fit(comm):
    here, (mine,) = check(comm, "sync_p2p", (16, 15), 2)
    for wrong in (mine[1:], mine.astype("float32"), mine[:, 1:]):
        given = wrong if comm.rank == comm.size - 1 else mine
        assert f"rank {comm.size - 1}" in refusal(lambda given=given: here(given))
    assert "has no steps" in refusal(lambda: bind(problems.lcs, comm, (9, 9), steps=2))


if __name__ == "__main__":
    for each in (test_every_problem, test_a_part_of_the_ranks, test_results_in_place, test_what_does_not_fit):
        each(COMM)
    if COMM.rank == 0:
        print("all right")
    sys.stdout.flush()
