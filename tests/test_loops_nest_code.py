"""A user's nest as a standalone MPI program, by mpicc alone: the numbers that the nest itself gives."""

import re
import subprocess

import numpy as np
import pytest
from test_loops_mpi_code import built

from dovetail.cli import main
from dovetail.core import WishError
from dovetail.loops import array, loop, nest, problems
from dovetail.loops.mpi_code import program
from dovetail.loops.nest_code import nest_code, sizes_of
from dovetail.loops.tile_search import best_tile

FACTORS = (7919, 104729, 1299709)
CASES = {  # grid, steps, first and last points that are computed: from each end
    "gauss_seidel2d": ("19x23", 4),
    "seidel2d": ("17x12", 3),
    "jacobi2d": ("15x13", 5),
    "jacobi1d": ("41", 9),
    "triple_nest": ("9x8x21", 1),
    "lcs": ("25x31", 1),
}


def started(shape):
    """What the program starts from."""
    places = np.indices(shape)
    return sum(place * factor for place, factor in zip(places, FACTORS, strict=False)) % 1000 / 1000


def written(wish, found, statement, sizes):
    """The elements that the statement writes."""
    space = statement.target.at[wish.nest.arrays[statement.target.array].time :]
    bounds = {loop.index: slice(loop.low.at(sizes), loop.high.at(sizes)) for loop in statement.loops}
    return found[tuple(bounds[each.names[0]] for each in space)]


def wanted(wish):
    """The sum of all that is computed, in every step."""
    (statement,), sizes = wish.nest.statements, sizes_of(wish)
    arrays = {n: a.dtype for n, a in wish.nest.arrays.items()}
    shapes = [tuple(sizes.get(s, s) for s in wish.nest.arrays[name].shape) for name in arrays]
    held, total = [started(shape) for shape in shapes], 0.0
    plain = replaced_dtypes(wish.nest)
    for _ in range(wish.steps):
        held[0] = plain.numpy(*held, **({"steps": 1} if wish.nest.parameters else {}))
        total += written(wish, held[0], statement, sizes).sum()
    return total


def replaced_dtypes(one):
    """The nest, of double precision throughout, as the program computes."""
    arrays = {n: array(*a.shape, time=a.time, boundary=a.boundary) for n, a in one.arrays.items()}
    return nest(**arrays)(one.function)


@pytest.mark.mpi
@pytest.mark.parametrize("name", CASES)
def test_gives_the_numbers_of_the_nest(mpi, name, tmp_path):
    grid, steps = CASES[name]
    wish = getattr(problems, name).wish(grid, steps)
    code = nest_code(wish.nest, sizes_of(wish))
    tiling = best_tile(code.deps, 40).tiling
    words = "-ffp-contract=off", "-Wl,--no-as-needed", "-lm"
    path = built(mpi, program(tiling, code.space, None, code.statement), tmp_path, *words)
    for ranks in (1, 2, 3):
        done = subprocess.run([*mpi.mpiexec(ranks), path, "check"], env=mpi.env, text=True, capture_output=True)
        assert "\n0 of" in done.stdout, done.stdout + done.stderr
        assert float(re.search(r"their sum is (\S+)", done.stdout)[1]) == pytest.approx(wanted(wish), rel=1e-12)


def test_by_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["tile", "gauss_seidel2d", "--grid", "30x20", "--steps", "4", "--emit-c", "mine.c"]) == 0
    text = (tmp_path / "mine.c").read_text()
    head = text[: text.index("*/")]
    assert all(word in head for word in ("D ", "P ", "H ", "Pi ", "to ranks"))
    assert "/* u[i, j] =" in text
    for words in (["tile"], ["tile", "lcs"], ["tile", "lcs", "--grid", "9x9", "--space", "9x9"]):
        assert main(words) == 2
    capsys.readouterr()


def test_what_cannot_be_written_is_refused():
    for name, grid, why in (("fdtd2d", "9x9", "statements"), ("heat3d", "9x9x9", "periodic")):
        wish = getattr(problems, name).wish(grid, 2)
        with pytest.raises(WishError, match="cannot be written") as caught:
            nest_code(wish.nest, sizes_of(wish))
        assert why in str(caught.value)

    @nest(u=array("n", "m"), c=array("n", "m"))
    def scaled(u, c):
        for i in loop(u.shape[0]):
            for j in loop(u.shape[1]):
                u[i, j] = 2 * c[i, j]

    with pytest.raises(WishError, match="no dependences"):
        nest_code(scaled, {"n": 4, "m": 4})
