"""A nest by compiled C and by NumPy gives the bits that its own Python function gives."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loop_trees import evaluate, trees
from thorough import some

from dovetail import operator_of
from dovetail.core import compile_c
from dovetail.loops import array, loop, maximum, minimum, nest, where
from dovetail.loops import problems as shipped
from dovetail.loops.code.generate import c_text
from dovetail.loops.nest import Nest
from dovetail.run import execute, fresh_inputs

pytestmark = pytest.mark.needs("compiler")
SHAPES = {1: (13,), 2: (9, 8), 3: (7, 6, 8)}


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory):
    """Hundreds of libraries that nobody needs again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOVETAIL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def arguments(made, dtype, seed=0, size=0):
    """Random arrays for a nest, all sizes different unless they have one name."""
    rng = np.random.default_rng(seed)
    names = dict.fromkeys(s for a in made.arrays.values() for s in a.shape if isinstance(s, str))
    sizes = {name: SHAPES[3][k % 3] + size for k, name in enumerate(names)}
    given = []
    for name, asked in made.arrays.items():
        shape = tuple(sizes.get(s, s) for s in asked.shape)
        levels = made.levels[name].given if asked.time else 1
        given.append(random(rng, (levels, *shape) if levels > 1 else shape, asked.dtype or dtype))
    return given


def random(rng, shape, dtype):
    if np.dtype(dtype).kind == "f":
        return (rng.random(shape) + 0.5).astype(dtype)
    return rng.integers(0, 4, shape).astype(dtype)


def all_agree(made, arrays, **parameters):
    wanted = parts(made.reference(*arrays, **parameters))
    for way in (made, made.numpy):
        for want, have in zip(wanted, parts(way(*arrays, **parameters)), strict=True):
            assert have.dtype == want.dtype
            assert np.array_equal(have, want), (made.name, way)
    return wanted


def parts(found):
    return found if isinstance(found, tuple) else (found,)


NESTS = [getattr(shipped, name) for name in shipped.__all__ if name != "acoustic3d_of"]


@pytest.mark.slow
@pytest.mark.parametrize("made", NESTS, ids=lambda made: made.name)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_shipped(made, dtype, steps):
    before = arguments(made, dtype, steps)
    given = [each.copy() for each in before]
    all_agree(made, given, **({"steps": steps} if made.parameters else {}))
    assert all(np.array_equal(a, b) for a, b in zip(before, given, strict=True))  # arguments are left alone


@pytest.mark.slow
@pytest.mark.parametrize("order", [4, 6, 8])
def test_acoustic_of_higher_order(order):
    made = shipped.acoustic3d_of(order)
    all_agree(made, arguments(made, "float64", size=order), steps=3)
    widths = {abs(v) for vector in made.vectors() for v in vector[1:]}
    assert max(widths) == order // 2


def test_known_answers():
    a, b = (np.frombuffer(b" " + word, np.uint8) for word in (b"AGGTAB", b"GXTXAYB"))
    assert shipped.lcs(np.zeros((7, 8), np.int32), a, b)[-1, -1] == 4
    aligned = shipped.smith_waterman(np.zeros((7, 8), np.int32), a, b)
    assert aligned.max() == shipped.smith_waterman.reference(np.zeros((7, 8), np.int32), a, b).max() > 0
    grid = np.zeros((5, 6))
    grid[0], grid[:, 0] = range(6), range(5)
    n, m, steps = 5, 6, 3
    corner = shipped.sync_p2p(grid, steps=steps)[n - 1, m - 1]
    assert corner == steps * (n + m - 2)  # the benchmark's own check


BOUNDARIES = ["fixed", "periodic", "reflecting"]


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 6])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_boundaries_in_two_axes(boundary, steps, dtype):
    edge = 2 if boundary == "fixed" else 0

    @nest(u=array("n", "m", time=True, boundary=boundary))
    def skewed(u, steps):
        n, m = u.shape
        for t in loop(1, steps + 1):
            for i in loop(edge, n - edge):
                for j in loop(edge, m - edge):
                    u[t + 1, i, j] = u[t, i - 2, j + 1] + 3 * u[t, i + 1, j - 2] - u[t - 1, i, j]

    all_agree(skewed, arguments(skewed, dtype, steps), steps=steps)


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_second_field_of_the_same_step(boundary):
    edge = int(boundary == "fixed")

    @nest(u=array("n", time=True, boundary=boundary), v=array("n", time=True, boundary=boundary))
    def staggered(u, v, steps):
        (n,) = u.shape
        for t in loop(steps):
            for i in loop(edge, n - edge):
                u[t + 1, i] = u[t, i] + 0.5 * (v[t, i] - v[t, i - 1])
            for i in loop(edge, n - edge):
                v[t + 1, i] = v[t, i] + 0.5 * (u[t + 1, i + 1] - u[t + 1, i])

    all_agree(staggered, arguments(staggered, "float64"), steps=4)


def test_loops_of_every_form():
    @nest(u=array("n", "n"), v=array("n"))
    def triangle(u, v):
        n, _ = u.shape
        for i in loop(n):
            v[i] = 2 * v[i]
            for j in loop(i, n):
                u[i, j] = u[j, i] + v[j]
            for j in loop(2):
                u[i, j] = -u[i, j]
        for i in loop(n - 2):
            v[n - 1 - i] = where(v[i] < 1, minimum(v[i + 1], 2.0), abs(v[i + 2] - 3))

    for n in (2, 3, 8):
        rng = np.random.default_rng(n)
        all_agree(triangle, [rng.random((n, n)), rng.random(n)])


def test_loops_that_go_back():
    @nest(u=array("n", "m"), v=array("n", "m", time=True, boundary="fixed"))
    def back(u, v, steps):
        n, m = u.shape
        for t in loop(steps):
            for i in loop(n - 2, -1, -1):
                for j in loop(m - 1, i, -1):
                    u[i, j] = 0.5 * u[i, j] + u[i + 1, j - 1] + u[i + 1, j]
            for i in loop(n - 1, 0, -1):
                for j in loop(m):
                    v[t + 1, i, j] = v[t, i - 1, j] + u[i, j]

    assert [line.strip() for line in str(back).splitlines()[1:4]] == [
        "for i in loop(0, n - 1):",
        "for j in loop(0, m - n + i + 1):",
        "u[n - i - 2, m - j - 1] = 0.5 * u[n - i - 2, m - j - 1] + u[n - i - 1, m - j - 2] + u[n - i - 1, m - j - 1]",
    ]
    for n, m in ((1, 1), (2, 5), (7, 6)):
        rng = np.random.default_rng(n)
        all_agree(back, [rng.random((n, m)), rng.random((n, m))], steps=3)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_rows_so_short_that_a_compiler_unrolls_them(dtype):
    """GCC 12 computes several at once of such as need one another, unless it is kept from it."""

    @nest(u=array("n", 8))
    def loops(u):
        for i in loop(2, u.shape[0]):
            for j in loop(2, 6):
                u[i, j] = u[i - 1, j - 1]

    @nest(u=array("n", 8))
    def statements(u):
        for i in loop(2, u.shape[0]):
            u[i, 2] = u[i - 1, 1]
            u[i, 3] = u[i - 1, 2]

    for made in (loops, statements):
        all_agree(made, [random(np.random.default_rng(1), (23, 8), dtype)])


def test_a_sum_whose_elements_come_from_several_iterations():
    @nest(c=array("k"), a=array("n"), b=array("m"))
    def convolved(c, a, b):
        for i in loop(a.shape[0]):
            for j in loop(b.shape[0]):
                c[i + j] = c[i + j] + a[i] * b[j]

    rng = np.random.default_rng(0)
    a, b = rng.random(40), rng.random(30)
    (found,) = all_agree(convolved, [np.zeros(69), a, b])
    assert np.allclose(found, np.convolve(a, b))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_integers_wrap_around(dtype):
    @nest(u=array("n"))
    def mixed(u, steps):
        for _ in loop(steps):
            for i in loop(1, u.shape[0]):
                u[i] = where(u[i] * u[i - 1] + 100 > u[i - 1] * 3, u[i] * u[i] - u[i - 1], maximum(u[i], u[i - 1]) + 7)

    info = np.iinfo(dtype)
    given = np.random.default_rng(1).integers(info.min, info.max, 40, dtype, endpoint=True)
    all_agree(mixed, [given], steps=5)


@pytest.mark.parametrize("dtype", ["float32", "int8", "uint8", "int64"])
def test_conditions_join(dtype):
    @nest(u=array("n", time=True, boundary="periodic"), v=array("n"))
    def life(u, v, steps):
        for t in loop(steps):
            for i in loop(u.shape[0]):
                beside = np.maximum(u[t, i - 1], u[t, i + 1]) + True
                grows = (u[t, i] == 0) | (beside > 3) & ~(u[t, i] < beside)
                either = (u[t, i] == 2) | (u[t, i] == 5)
                u[t + 1, i] = where(~(grows | (u[t, i] > 90)) & (either | (beside > 2)), +u[t, i], beside)
            for i in loop(u.shape[0]):
                v[i] = where(((v[i] == 3) | (v[i] > 5)) & (v[i] != 3), v[i] + 1, v[i] - 1)

    all_agree(life, [(np.arange(40) * by % 11).astype(dtype) for by in (7, 3)], steps=6)


@pytest.mark.slow
@settings(max_examples=some(25), deadline=None)
@given(
    data=st.data(),
    axes=st.integers(1, 2),
    boundary=st.sampled_from(BOUNDARIES),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_random_expressions(data, axes, boundary, dtype):
    tree, edge, shape = data.draw(trees(axes)), 2 if boundary == "fixed" else 0, ("n", "m")[:axes]

    @nest(u=array(*shape, time=True, boundary=boundary), c=array(*shape))
    def stencil(u, c, steps):
        for t in loop(steps):
            for i in loop(edge, u.shape[0] - edge):
                if axes == 1:
                    u[t + 1, i] = evaluate(tree, u, c, t, (i,))
                    continue
                for j in loop(edge, u.shape[1] - edge):
                    u[t + 1, i, j] = evaluate(tree, u, c, t, (i, j))

    with np.errstate(all="ignore"):
        all_agree(stencil, arguments(stencil, dtype, data.draw(st.integers(0, 99))), steps=data.draw(st.integers(0, 3)))


class TestCompiled:
    def test_readable(self):
        text = c_text(shipped.jacobi2d, "float32")
        assert "u_1[i][j] = 0.25f * (u_0[i - 1][j] + u_0[i + 1][j] + u_0[i][j - 1] + u_0[i][j + 1]);" in text
        assert text.count("#pragma GCC ivdep") == 2
        assert "ivdep" not in c_text(shipped.gauss_seidel2d, "float32")

    def test_a_wrong_c_is_seen(self, monkeypatch):
        from dovetail.loops.code import run

        given = arguments(shipped.jacobi2d, "float64")
        assert np.array_equal(shipped.jacobi2d(*given, steps=3), shipped.jacobi2d.reference(*given, steps=3))
        monkeypatch.setattr(run, "c_text", lambda made, dtype: c_text(made, dtype).replace("i + 1]", "i]"))
        assert not np.array_equal(shipped.jacobi2d(*given, steps=3), shipped.jacobi2d.reference(*given, steps=3))

    def test_found_again(self, tmp_path, monkeypatch):
        monkeypatch.setenv("DOVETAIL_CACHE", str(tmp_path))
        code = "import numpy as np; from dovetail.loops.problems import jacobi1d; jacobi1d(np.ones(5), steps=1)"
        kept = []
        for _ in range(2):
            subprocess.run([sys.executable, "-c", code], check=True)
            kept.append({path.name: path.stat().st_mtime_ns for path in (tmp_path / "libraries").iterdir()})
        assert kept[0] == kept[1]
        assert sorted(name.split(".")[1] for name in kept[0]) == ["c", "so"]

    def test_compiled_once_for_all_who_ask_at_once(self, tmp_path, monkeypatch):
        """The compiler, here a script, counts its calls; each of four finds what the first has made."""
        monkeypatch.setenv("DOVETAIL_CACHE", str(tmp_path))
        slow, source = tmp_path / "cc", tmp_path / "any.c"
        slow.write_text(f'#!/bin/sh\n[ $# = 1 ] || {{ echo >> {tmp_path}/calls; sleep 0.1; touch "$4"; }}\n')
        slow.chmod(0o755), source.touch()
        with ThreadPoolExecutor(4) as ranks:
            made = set(ranks.map(lambda _: compile_c(str(slow), [source], "any", "any"), range(4)))
        assert [path.exists() for path in made] == [True]
        assert (tmp_path / "calls").read_text() == "\n"

    def test_without_a_compiler(self, tmp_path):
        code = (
            "import numpy as np, warnings\nfrom dovetail.loops.problems import jacobi1d\n"
            "warnings.simplefilter('error')\n"
            "try: jacobi1d(np.ones(5), steps=1)\nexcept RuntimeWarning as warning: print(warning)\n"
            "warnings.simplefilter('ignore'); print(jacobi1d(np.arange(4.0), steps=1).tolist())"
        )
        environ = os.environ | {"PATH": str(tmp_path), "DOVETAIL_CACHE": str(tmp_path)}
        found = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
        reported, result = found.stdout.splitlines()
        assert reported == "jacobi1d runs by NumPy: no C compiler to compile the loops of jacobi1d"
        assert result == "[0.0, 1.0, 2.0, 3.0]"

    def test_a_compiler_that_fails(self, tmp_path, monkeypatch):
        broken = tmp_path / "cc"
        broken.write_text("#!/bin/sh\necho 'no such target' >&2\nexit 1\n")
        broken.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setenv("DOVETAIL_CACHE", str(tmp_path))
        from dovetail.loops.code.run import compiled, library

        compiled.cache_clear()
        library.cache_clear()
        with pytest.warns(
            RuntimeWarning, match=r"jacobi1d runs by NumPy: .*cc could not compile the loops of jacobi1d"
        ):
            shipped.jacobi1d(np.ones(5), steps=1)


@pytest.mark.parametrize("name", [name for name in shipped.__all__ if isinstance(getattr(shipped, name), Nest)])
def test_shipped_problems_are_finite_on_what_is_drawn_for_them(name):
    """Arrays drawn to try a schedule on have no negative elements where roots are taken."""
    found = getattr(shipped, name)
    operator = operator_of(found)("x".join(["40", "30", "20"][: len(next(iter(found.arrays.values())).shape)]))
    how = operator.serial(1)
    program = operator.program(how, 1)
    workload = operator.workload(program, how)
    drawn = fresh_inputs(program, workload, seed=1)
    signed = {slot.signed for own in workload.slots.values() for slot in own}
    assert signed == {not found.takes_roots}
    outputs = execute(program, drawn, workload=workload).outputs
    assert all(np.isfinite(array).all() for each in outputs.values() for array in each)
