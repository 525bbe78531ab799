"""A user's nest as a standalone MPI program, by mpicc alone: the numbers that the nest itself gives."""

import re
import subprocess

import numpy as np
import pytest
from tile_programs import built

from dovetail import operator_of
from dovetail.cli import main
from dovetail.core import OperatorError
from dovetail.loops import array, loop, minimum, nest, problems
from dovetail.loops.code import reference
from dovetail.tiling.mpi_code import program
from dovetail.tiling.nest_code import nest_code, sizes_of
from dovetail.tiling.search import best_tile

FACTORS = (7919, 104729, 1299709, 15485863)
ORDER_4 = problems.acoustic3d_of(4)
CASES = {  # grid, steps, dtype
    "gauss_seidel2d": ("19x23", 4, "float64"),
    "seidel2d": ("17x12", 3, "float32"),
    "jacobi2d": ("15x13", 5, "float32"),
    "jacobi1d": ("41", 9, "float64"),
    "triple_nest": ("9x8x21", 1, "float32"),
    "lcs": ("25x31", 1, "float64"),
    "smith_waterman": ("25x31", 1, "float64"),
    "fdtd2d": ("15x13", 5, "float32"),
    "red_black2d": ("14x11", 4, "float64"),
    "heat3d": ("6x5x7", 3, "float32"),
    "acoustic3d_4": ("9x8x7", 3, "float64"),
}
LARGE = ("heat3d", "acoustic3d_4")  # half of the time of all


@nest(u=array("n", "m", time=True, boundary="reflecting"))
def mirrored(u, steps):
    n, m = u.shape
    for t in loop(steps):
        for i in loop(n):
            for j in loop(m):
                u[t + 1, i, j] = 0.5 * u[t, i, j] + 0.125 * (u[t, i - 2, j] + u[t, i + 1, j] + u[t, i, j - 1])


@nest(u=array("n", time=True, boundary="periodic"), v=array("n", time=True, boundary="periodic"))
def round_pair(u, v, steps):
    (n,) = u.shape
    for t in loop(steps):
        for i in loop(n):
            u[t + 1, i] = u[t, i] - 0.25 * (v[t, i + 2] - v[t, i - 1])
        for i in loop(n):
            v[t + 1, i] = v[t, i] - 0.25 * (u[t + 1, i + 1] - u[t + 1, i - 3])


@nest(u=array("n", "m"), w=array("n", "m", dtype="int64"))
def partly(u, w, steps):
    n, m = u.shape
    for _ in loop(steps):
        for i in loop(1, n - 1):
            for j in loop(1, m - 1):
                u[i, j] = 0.25 * (u[i - 1, j] + u[i, j - 1] + u[i + 1, j] + u[i, j + 1])
        for i in loop(2, n - 3):
            for j in loop(1, m - 2):
                u[i, j] = 0.5 * u[i, j] + 0.25
        for i in loop(1, n - 1):
            for j in loop(1, m - 1):
                w[i, j] = w[i - 1, j] + 3 * w[i, j - 1] - w[i, j]


@nest(u=array("n", "m"), v=array("n", "m"))
def one_after_the_other(u, v):
    n, m = u.shape
    for i in loop(1, n):
        for j in loop(1, m):
            u[i, j] = 0.5 * (u[i - 1, j] + u[i, j - 1])
    for i in loop(1, n - 1):
        for j in loop(1, m - 2):
            v[i, j] = v[i - 1, j] + u[i + 1, j + 2] + u[i, j]


OWN = [
    (mirrored, {"n": 14, "m": 9, "steps": 4}, "float32"),
    (round_pair, {"n": 15, "steps": 5}, "float64"),
    (partly, {"n": 14, "m": 11, "steps": 3}, "float32"),
    (one_after_the_other, {"n": 14, "m": 11}, "float64"),
]


def shipped(name):
    return ORDER_4 if name == "acoustic3d_4" else getattr(problems, name)


def cases():
    for name, (grid, steps, dtype) in CASES.items():
        marks = [pytest.mark.thorough] if name in LARGE else []
        yield pytest.param(
            shipped(name), sizes_of(operator_of(shipped(name))(grid, steps)), dtype, id=name, marks=marks
        )
    yield from (pytest.param(*each, id=each[0].name) for each in OWN)


def started(shape, dtype):
    """What the program starts from."""
    places = sum(place * factor for place, factor in zip(np.indices(shape), FACTORS, strict=False))
    whole = places % (4 if dtype.endswith("8") else 1000)
    return whole.astype(dtype) / np.dtype(dtype).type(1000) if dtype.startswith("float") else whole.astype(dtype)


def wanted(one, sizes, dtype, monkeypatch):
    """The sum of all that the nest's own function computes, element after element."""
    held, total = [], 0.0
    for name, each in one.arrays.items():
        levels = one.levels[name].given if each.time else 1
        shape = ((levels,) if levels > 1 else ()) + tuple(sizes.get(size, size) for size in each.shape)
        held.append(started(shape, each.dtype or dtype))

    def summed(store):
        def stored(view, at, value):
            nonlocal total
            store(view, at, value)
            total += float(view[at])

        return stored

    for view in (reference.Plain, reference.Timed):
        monkeypatch.setattr(view, "__setitem__", summed(view.__setitem__))
    one.reference(*held, **{name: sizes[name] for name in one.parameters})
    return total


def checked_sum(mpi, ranks, path):
    """The sum of all that the program computes, and how many of the values are not those of its plain loops."""
    done = subprocess.run([*mpi.mpiexec(ranks), path, "check"], env=mpi.env, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return float(re.search(r"their sum is (\S+)", done.stdout)[1]), int(re.search(r"(\d+) of", done.stdout)[1])


@pytest.mark.mpi
@pytest.mark.parametrize(("one", "sizes", "dtype"), list(cases()))
def test_gives_the_numbers_of_the_nest(mpi, one, sizes, dtype, tmp_path, monkeypatch):
    code = nest_code(one, sizes, dtype)
    text = program(best_tile(code.deps, 40).tiling, code.space, None, code)
    path = built(mpi, text, tmp_path, "-ffp-contract=off", "-Wl,--no-as-needed", "-lm")
    sum_of_nest = pytest.approx(wanted(one, sizes, dtype, monkeypatch), rel=1e-12)
    for ranks in (1, 2, 3):
        assert checked_sum(mpi, ranks, path) == (sum_of_nest, 0)


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("one", "old", "new"),
    [
        (problems.fdtd2d, "shifts[NUM_FIELDS][N] = {{0, 0, 0}, {0, 0, 0}, {0, 1, 1}}", "shifts[NUM_FIELDS][N] = {{0}}"),
        (problems.fdtd2d, "if (read_of[d] != field) continue;", "if (read_of[d] == field) continue;"),
        (round_pair, "if (far == p[k]) return 0;", "return 0;"),
    ],
    ids=["not shifted", "another statement's dependences", "one half only"],
)
def test_planted_faults_are_seen(mpi, one, old, new, tmp_path):
    code = nest_code(one, {"n": 15, "m": 13, "steps": 5})
    text = program(best_tile(code.deps, 12).tiling, code.space, 1, code)
    assert old in text
    path = built(mpi, text.replace(old, new), tmp_path, "-Wno-missing-field-initializers", "-lm")
    assert checked_sum(mpi, 2, path)[1] > 0


def test_by_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--grid", "30x20", "--steps", "4", "--emit-c", "mine.c"]
    assert main(["tile", "gauss_seidel2d", *words]) == 0
    text = (tmp_path / "mine.c").read_text()
    head = text[: text.index("*/")]
    assert all(word in head for word in ("D ", "P ", "H ", "Pi ", "to ranks"))
    assert "/* u[i, j] =" in text
    assert main(["tile", "fdtd2d", *words, "--dtype", "float32"]) == 0
    text = (tmp_path / "mine.c").read_text()
    assert "is computed (0, 1, 1) behind its own indices" in text
    assert "static float* values2;" in text
    assert main(["tile", "fdtd2d", *words, "--dtype", "flot32"]) == 2
    assert "float32" in capsys.readouterr().err
    assert main(["tile", "jacobi2d", "--grid", "4096x4096", "--steps", "20"]) == 0
    assert "needs 2.62 GiB" in capsys.readouterr().out
    for words in (
        ["tile"],
        ["tile", "--deps", "1,0;0,1", "--tile", "4x4", "--dtype", "float32"],
        ["tile", "lcs"],
        ["tile", "lcs", "--grid", "9x9", "--space", "9x9"],
    ):
        assert main(words) == 2
    capsys.readouterr()


@nest(u=array("n", "m"), w=array("n", "m"))
def handed_on(u, w, steps):
    """Elements that one sweep leaves to the next; loops in another order than the axes."""
    n, m = u.shape
    for _ in loop(steps):
        for j in loop(2, m):
            for i in loop(1, n):
                u[i, j] = 0.25 * (u[i - 1, j] + u[i, j - 2] + w[i, j])
        u[0, 3] = 0.5 * u[n - 1, m - 2] + w[1, 1]
        u[2, 0] = u[0, 3] - u[n - 2, m - 1]


@nest(u=array("n", "m"))
def downwards(u, steps):
    """One loop goes down along its axis."""
    n, m = u.shape
    for _ in loop(steps):
        for i in loop(1, n):
            for j in loop(1, m):
                u[n - 1 - i, j] = 0.25 * u[n - i, j] + 0.5 * u[n - 1 - i, j - 1]
        u[n - 1, 1] = u[0, m - 1] - u[1, m - 2]


CLOSED = [  # nest, sizes, dtype, what a sweep writes
    (problems.sync_p2p, {"n": 14, "m": 11, "steps": 3}, "float64", np.s_[1:, 1:]),
    (problems.sync_p2p, {"n": 9, "m": 25, "steps": 1}, "int64", np.s_[1:, 1:]),
    (handed_on, {"n": 13, "m": 12, "steps": 4}, "float64", np.s_[1:, 2:]),
    (downwards, {"n": 11, "m": 9, "steps": 3}, "float64", np.s_[:-1, 1:]),
]


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("one", "sizes", "dtype", "swept"), CLOSED, ids=["two axes", "whole numbers", "handed on", "down"]
)
def test_sweep_after_sweep(mpi, one, sizes, dtype, swept, tmp_path):
    code = nest_code(one, sizes, dtype)
    text = program(best_tile(code.deps, 12).tiling, code.space, None, code)
    path = built(mpi, text, tmp_path, "-ffp-contract=off", "-Wl,--no-as-needed", "-lm")
    given = [started((sizes["n"], sizes["m"]), dtype) for _ in one.arrays]
    last = one.reference(*given, steps=sizes["steps"])[swept]
    for ranks in (1, 2, 3, 4):
        assert checked_sum(mpi, ranks, path) == (pytest.approx(float(last.sum()), rel=1e-12), 0)
    path = built(mpi, text.replace("if (!inside(f, p)) return;", "if (1) return;"), tmp_path, "-lm")
    if sizes["steps"] > 1:
        assert checked_sum(mpi, 4, path)[1] > 0  # where nobody receives it


@nest(u=array("n", "m"))
def out_of_reach(u, steps):
    n, m = u.shape
    for _ in loop(steps):
        for i in loop(2, n):
            for j in loop(1, m):
                u[i, j] = u[i - 1, j] + u[i, j - 1]
        u[0, 0] = u[n - 1, m - 1]


@nest(u=array("n", "m"))
def of_the_step_before(u, steps):
    n, m = u.shape
    for _ in loop(steps):
        for i in loop(1, n):
            for j in loop(1, m):
                u[i, j] = 0.5 * (u[i - 1, j] + u[i, j])
        u[0, 0] = u[n - 1, m - 1]


@nest(u=array("n", "m"), v=array("n", "m"))
def each_other(u, v, steps):
    n, m = u.shape
    for _ in loop(steps):
        for i in loop(1, n):
            for j in loop(m):
                u[i, j] = 0.5 * v[i - 1, j]
        for i in loop(n):
            for j in loop(m - 1):
                v[i, j] = u[i, j + 1]
        for j in loop(m):
            u[0, j] = v[0, j]


@nest(d=array("n", "n"))
def floyd_warshall(d):
    n, _ = d.shape
    for k in loop(n):
        for i in loop(n):
            for j in loop(n):
                d[i, j] = minimum(d[i, j], d[i, k] + d[k, j])


@nest(u=array("n", "m"), c=array("n", "m"))
def scaled(u, c):
    for i in loop(u.shape[0]):
        for j in loop(u.shape[1]):
            u[i, j] = 2 * c[i, j]


@pytest.mark.parametrize(
    ("one", "found"),
    [
        (out_of_reach, "neither writes nor reads"),
        (of_the_step_before, "in 1 loops"),
        (each_other, "in 2 loops"),
        (problems.ssor2d, "not uniform"),
        (scaled, "no dependences"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_what_cannot_be_written_is_refused(one, found):
    with pytest.raises(OperatorError) as caught:
        nest_code(one, {"n": 9, "m": 8, "steps": 2})
    assert found in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize("one", [problems.ssor2d, floyd_warshall])
def test_dependences_that_are_not_uniform_are_refused(one):
    """Sweeps there and back; steps that each need others than the one before."""
    with pytest.raises(OperatorError, match="not uniform") as caught:
        nest_code(one, {"n": 9, "m": 8, "steps": 2})
    assert caught.value.hint == "sweeps in one direction"


def test_why_a_grid_or_a_nest_cannot_be_tiled():
    with pytest.raises(OperatorError, match="jacobi2d computes nothing on this grid"):
        nest_code(problems.jacobi2d, {"n": 2, "m": 9, "steps": 3})
    with pytest.raises(OperatorError, match="floyd_warshall has dependences that are not uniform"):
        assert operator_of(floyd_warshall)
