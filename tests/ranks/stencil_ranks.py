"""Run by the ranks of an MPI: stencils on blocks of arrays, called again and again, on parts of the ranks too."""

import platform
import sys
import warnings
from dataclasses import replace

import numpy as np
from mpi4py import MPI

from dovetail import bind, operator_of
from dovetail.call import bound as stencils
from dovetail.core import DovetailError, ProgramError
from dovetail.ir import Schedule
from dovetail.loops import problems
from dovetail.loops.grid.blocks import cuts
from dovetail.run.ranks.embedded import ranks_of
from dovetail.store.tuned_schedules import save_schedule, schedule_item

COMM = MPI.COMM_WORLD


def refusal(call):
    """What a call is refused with; pytest is not in every environment that ranks run in."""
    try:
        call()
    except DovetailError as error:
        return str(error)
    return "nothing"


def arrays(made, grid, dtype):
    rng = np.random.default_rng(3)
    shapes = [(made.levels[n].given, *grid) if n in made.levels else grid for n in made.arrays]
    return [
        rng.random(shape[1:] if shape[0] == 1 and len(shape) > len(grid) else shape).astype(dtype) for shape in shapes
    ]


def block(array, grid, here):
    return array[here.block] if array.ndim == len(grid) else array[(slice(None), *here.block)]


def as_tuple(found):
    return found if isinstance(found, tuple) else (found,)


def check(comm, name, grid, dtype, steps=4, **asked):
    made = getattr(problems, name)
    here = bind(made, comm, grid, steps=steps, dtype=dtype, **asked)
    given = arrays(made, grid, dtype)
    mine = [block(each, grid, here) for each in given]
    wanted = as_tuple(made.reference(*given, steps=steps))
    for _ in range(2):
        for have, want in zip(as_tuple(here(*mine)), wanted, strict=True):
            assert np.array_equal(have, block(want, grid, here)), (name, asked)
    return here, mine


def test_ranks_that_ask_for_different_things(comm):
    """All ranks raise, where they would otherwise wait for one another."""
    if comm.size == 1:
        return
    last = comm.rank == comm.size - 1
    for made, grid, asked in (
        (problems.jacobi2d, (12, 9), {"steps": 3 + last}),
        (problems.jacobi2d, (12, 9 + last), {}),
        (problems.jacobi2d, (12,) if last else (12, 9), {}),
        (problems.laplace2d if last else problems.jacobi2d, (12, 9), {}),
        (problems.gauss_seidel2d, (12, 9), {"grain": 3 + last}),
        (problems.jacobi2d, (12, 9), {"mapped": 1} if last else {}),
        (problems.jacobi2d, (12, 9), {"wibble": 1} if last else {}),
    ):
        found = refusal(lambda: bind(made, comm, grid, **({"steps": 3} | asked)))  # noqa: B023
        assert f"rank {comm.size - 1} " in found, (made, grid, asked, found)


def test_every_way(comm):
    for cut in cuts(comm.size, 1):
        for depth, overlapped in ((0, False), (0, True), (2, True)):
            check(comm, "jacobi2d", (6 * comm.size + 3, 9), "float32", cut=cut, depth=depth, overlapped=overlapped)
    for cut in cuts(comm.size, 2):
        check(comm, "heat3d", (4 * cut[0] + 1, 4 * cut[1] + 2, 5), "float64", cut=cut, overlapped=True)
    check(comm, "acoustic3d", (6 * comm.size, 9, 7), "float32")
    check(comm, "fdtd2d", (6 * comm.size, 9), "float64", depth=1)
    check(comm, "jacobi1d", (9 * comm.size,), "float64", depth=3)
    check(comm, "heat3d", (4 * comm.size, 5, 4), "float64", depth=2, tile=3, cut=(comm.size, 1))


def test_a_part_of_the_ranks(comm):
    half = comm.Split(comm.rank % 2, -comm.rank)
    check(half, "jacobi2d", (5 * half.size + comm.rank % 2, 8), "float32")


def test_results_in_place(comm):
    here, (mine,) = check(comm, "jacobi2d", (5 * comm.size, 8), "float32")
    out = np.empty_like(mine)
    found = here(mine, out=out)
    assert np.shares_memory(found, out)
    assert np.array_equal(out, here(mine))
    rows, columns = mine.shape
    for there in (
        np.zeros((rows, 2 * columns), "float32")[:, ::2],
        np.zeros((columns, rows), "float32").T,
        out[:, ::-1],
    ):
        assert here(mine, out=there) is there
        assert np.array_equal(there, here(mine))
    both = np.zeros((rows, 2 * columns), "float32")
    both[:, 1::2] = mine  # interleaved with the result, of which it shares no element
    assert np.array_equal(here(both[:, 1::2], out=both[:, ::2]), here(mine))


def test_results_that_do_not_fit(comm):
    here, (mine,) = check(comm, "jacobi2d", (5 * comm.size, 8), "float32")
    fixed = np.empty_like(mine)
    fixed.flags.writeable = False
    for wrong, words in (
        (fixed, "is read-only"),
        (mine, "shares memory with u"),
        (mine[::-1], "shares memory with u"),
        (np.empty_like(mine)[1:], "must be the rank's block"),
        (np.empty(mine.shape), "must be float32"),
        ((np.empty_like(mine), np.empty_like(mine)), "takes 1 array: u"),
        ((), "takes 1 array: u"),
        (mine.tolist(), "takes 1 array: u"),
    ):
        out = wrong if comm.rank == comm.size - 1 else None
        said = refusal(lambda out=out: here(mine, out=out))
        assert f"rank {comm.size - 1} cannot run the plan" in said, said
        assert words in said, said


def test_arrays_that_do_not_fit(comm):
    here, (mine,) = check(comm, "jacobi2d", (5 * comm.size, 8), "float32")
    shape = f"must be the rank's block, of shape {mine.shape}"
    for wrong, words in (
        (mine[1:], shape),
        (mine[:, 1:], shape),
        (mine.reshape(-1), shape),
        (mine.reshape(8, 5), shape),
        (mine[None], shape),
        (np.array(3.0, "float32"), shape),
        (mine.astype("float64"), "must be float32"),
        (mine.astype(">f4"), "order of another machine"),
        (mine.astype(object), "must be float32"),
        (mine.tolist(), "must be a NumPy array"),
        (np.ma.masked_array(mine, mine > 0.5), "is a masked array"),
    ):
        given = wrong if comm.rank == comm.size - 1 else mine
        said = refusal(lambda given=given: here(given))
        assert f"rank {comm.size - 1} cannot run the plan: 'u' of rank {comm.size - 1} " in said, said
        assert words in said, said
    assert "takes 1 array: u" in refusal(lambda: here(mine, mine))
    assert "takes 1 array: u" in refusal(lambda: here())
    box, (cube,) = check(comm, "heat3d", (2 * comm.size, 6, 5), "float32", cut=(comm.size, 1))
    assert "must be the rank's block, of shape (2, 6, 5)" in refusal(lambda: box(cube.transpose(1, 0, 2)))


def test_shares(comm):
    rows = tuple(3 + rank for rank in range(comm.size))
    check(comm, "jacobi2d", (sum(rows), 9), "float32", shares=rows)
    here, _ = check(comm, "heat3d", (6 * comm.size, 5, 4), "float32", shares="measured")
    assert sum(here.schedule["shares"]) == 6 * comm.size


def test_until_it_has_converged(comm):
    made, grid = problems.laplace2d, (6 * comm.size, 7)
    here = bind(made, comm, grid, steps=20, dtype="float64", test=10)
    (given,) = arrays(made, grid, "float64")
    found, steps, changed = here.until(given[here.block], change=1e-9)
    wanted = made(given, steps=steps)
    assert 0 < changed <= 1e-9
    assert np.array_equal(found, wanted[here.block])
    before = made(given, steps=steps - 20)
    assert np.linalg.norm(made(before, steps=1) - before) > 1e-9  # it was not so before
    assert here.until(given[here.block], change=1e-9, calls=2)[1] == 40
    last = comm.rank == comm.size - 1
    for limits, words in (
        ({"change": float("nan")}, "change must be a number"),
        ({"change": -1.0}, "change must be a number"),
        ({"change": "small"}, "change must be a number"),
        ({"change": None}, "change must be a number"),
        ({"change": 1.0, "calls": 2.5}, "calls must be"),
        ({"change": 1.0, "calls": -1}, "calls must be"),
        ({"change": 2.0}, "ranks do not ask for the same" if comm.size > 1 else "nothing"),
        ({"change": 1.0, "calls": 7}, "ranks do not ask for the same" if comm.size > 1 else "nothing"),
    ):
        asked = limits if last else {"change": 1.0}
        said = refusal(lambda asked=asked: here.until(given[here.block], **asked))
        assert words in said, (limits, said)
    untested = bind(made, comm, grid, steps=20)
    assert "does not test its last step" in refusal(lambda: untested.until(given[here.block], change=1.0))


def test_what_was_tuned_is_used(comm):
    operator = operator_of(problems.jacobi2d)(f"{8 * comm.size}x7", 4, "float32")
    world = ranks_of(comm)
    found, hosts = Schedule.of("deep", cut=(comm.size,), depth=2), world.gather(MPI.Get_processor_name())
    if comm.rank == 0:
        save_schedule(operator, found, world.library, [platform.node()] * len(hosts))
    comm.Barrier()
    here, _ = check(comm, "jacobi2d", (8 * comm.size, 7), "float32")
    assert here.schedule == found
    assert here.explain() == f"deep, cut {comm.size}, depth 2: {comm.size} parts, ghosts for 2 steps, then all rows"
    again = bind(operator, comm)  # the operator itself, by what was tuned for it
    assert (again.schedule, again.block) == (found, here.block)


def test_a_broken_kept_schedule_is_left_aside(comm):
    """No rank waits for one that refuses a file: all warn, and run what is usual."""
    operator = operator_of(problems.jacobi2d)(f"{7 * comm.size}x7", 4, "float32")
    hosts = [platform.node()] * comm.size
    for text in ("{", '{"schema": "wrong"}', None):
        if comm.rank == 0:
            save_schedule(operator, Schedule.of("deep", cut=(comm.size + 1,), depth=2), ranks_of(comm).library, hosts)
            if text:
                schedule_item(operator, ranks_of(comm).library, hosts).path.write_text(text)
        comm.Barrier()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            here, _ = check(comm, "jacobi2d", (7 * comm.size, 7), "float32")
        assert here.schedule == operator.default_schedule(comm.size)
        assert any("the tuned schedule is left aside" in str(each.message) for each in seen)


def test_schedules_that_are_none_or_differ(comm):
    """Each is refused on every rank, also where one rank alone gives it."""
    operator = operator_of(problems.jacobi2d)(f"{8 * comm.size}x7", 4, "float32")
    last = comm.rank == comm.size - 1
    for wrong, said in (("deep", "no Schedule, but str"), (Schedule, "a class"), ({"family": "deep"}, "but dict")):
        for given in (wrong, wrong if last else None):
            found = refusal(lambda: bind(operator, comm, schedule=given))  # noqa: B023
            assert said in found, found
    assert "bind(…, schedule='deep')" in refusal(lambda: bind(operator, comm, schedule="deep"))
    assert "found       steps" in refusal(lambda: bind(operator, comm, steps=4))
    assert "found       step" in refusal(lambda: bind(operator, comm, **({"step": 4} if last else {})))
    assert "did you mean 'depth'" in refusal(lambda: bind(problems.jacobi2d, comm, (12, 9), steps=2, dept=4))
    slabs = {"cut": (comm.size, 1), "depth": 2}
    alike = [Schedule.of("asked", **slabs, shares=(8,) * (comm.size - 2) + pair) for pair in ((9, 7), (7, 9))]
    if comm.size > 1:
        assert str(alike[0]) == str(alike[1])
        assert "do not ask for the same" in refusal(lambda: bind(operator, comm, schedule=alike[last]))


def test_options_of_another_kind(comm):
    """Each is refused on every rank; so it is where one rank asks for it alone."""
    check(comm, "jacobi2d", (12, 9), "float32", cut=(comm.size,))  # which is remembered: (2.0,) equals (2,)
    about = {"steps": 2}
    for name, asked, words in (
        ("jacobi2d", {}, "needs steps=…"),
        ("gauss_seidel2d", {}, "needs steps=…"),
        ("seidel1d", {}, "needs steps=…"),
        ("lcs", about, "has no steps"),
        *[("jacobi2d", {"steps": steps}, "steps must be") for steps in (True, 2.0, -1, "2")],
        *[("jacobi2d", {"steps": steps}, "steps would have") for steps in (10**9, 10**20)],
        *[("gauss_seidel2d", {"steps": steps}, "steps would have") for steps in (10**9, 10**20)],
        *[("seidel1d", {"steps": steps}, "bands") for steps in (10**9, 10**20)],
        ("jacobi2d", {"steps": 10**9, "depth": 10**8}, "repeats only after"),
        *[("jacobi2d", about | {"cut": cut}, "must be several") for cut in (comm.size, "2", 2.0, {comm.size})],
        *[("jacobi2d", about | {"cut": (cut,)}, "number of cut must be") for cut in (float(comm.size), "2", True, -1)],
        ("gauss_seidel2d", about | {"cut": (1, float(comm.size))}, "number of cut must be"),
        ("jacobi2d", about | {"overlapped": "yes"}, "must be True or False"),
        ("gauss_seidel2d", about | {"overlapped": 1}, "must be True or False"),
        *[("jacobi2d", about | {name: 2.0}, f"{name} must be") for name in ("depth", "tile", "test")],
        *[("gauss_seidel2d", about | {name: True}, f"{name} must be") for name in ("grain", "mapped")],
        *[("jacobi2d", about | {"shares": shares}, "shares must be several") for shares in (12, 1.5)],
        ("jacobi2d", about | {"shares": (12.0,)}, "number of shares must be"),
        ("jacobi2d", about | {"dtype": 3}, "dtype must be a native"),
        ("jacobi2d", about | {"schedule": Schedule.of("serial")}, "takes no 'schedule'"),
        ("lcs", {"tile": 2}, "takes no 'tile'"),
        ("lcs", {"depth": 2}, "takes no 'depth'"),
    ):
        made = getattr(problems, name)
        grid = (50,) if name == "seidel1d" else (12, 9)
        found = refusal(lambda: bind(made, comm, grid, **asked))  # noqa: B023
        assert words in found, (name, asked, found)
    last = comm.rank == comm.size - 1
    for grid in (None, (12, 9.0), {12, 9}, (12, True)):
        given = grid if last else (12, 9)
        assert refusal(lambda: bind(problems.jacobi2d, comm, given, steps=1)) != "nothing"  # noqa: B023
    for asked in ({"cut": np.array([comm.size])}, {"steps": np.int64(4)}, {"overlapped": np.True_}):
        here = bind(problems.jacobi2d, comm, np.array([12, 9]), dtype=np.float32, **({"steps": 4} | asked))
        assert here.operator == operator_of(problems.jacobi2d)("12x9", 4, "float32")


def test_proved_once_and_again_where_it_differs(comm):
    """A tiled Program of many ops is written at the first start, not at the next, and again if the Program differs."""
    given = {"grid": (128, 9), "dtype": "float64", "cut": (comm.size,), "depth": 8, "tile": 2}
    plain_verify, plain_program_of, proofs = stencils.verify, stencils.program_of, []

    def counted(*args, **more):
        proofs.append(1)
        return plain_verify(*args, **more)

    def another(*asked):
        """A step that reads a row too early."""
        program = plain_program_of(*asked)
        offsets = program.columns["read_offset"].copy()
        offsets[len(offsets) // 2] ^= 1
        return replace(program, columns=program.columns | {"read_offset": offsets})

    stencils.verify = counted
    check(comm, "jacobi2d", steps=24, **given)
    assert len(proofs) == (comm.rank == 0)
    check(comm, "jacobi2d", steps=24, **given)
    assert len(proofs) == (comm.rank == 0)
    stencils.program_of = another
    try:
        bind(problems.jacobi2d, comm, steps=24, **given)
        raise AssertionError("a wrong program was let pass")
    except ProgramError:
        assert len(proofs) == 2 * (comm.rank == 0)
    finally:
        stencils.verify, stencils.program_of = plain_verify, plain_program_of


if __name__ == "__main__":
    for each in (test_every_way, test_a_part_of_the_ranks, test_results_in_place, test_arrays_that_do_not_fit):
        each(COMM)
    test_results_that_do_not_fit(COMM)
    test_options_of_another_kind(COMM)
    test_schedules_that_are_none_or_differ(COMM)
    test_a_broken_kept_schedule_is_left_aside(COMM)
    test_ranks_that_ask_for_different_things(COMM)
    test_shares(COMM)
    test_until_it_has_converged(COMM)
    test_what_was_tuned_is_used(COMM)
    test_proved_once_and_again_where_it_differs(COMM)
    if COMM.rank == 0:
        print("all right")
    sys.stdout.flush()
