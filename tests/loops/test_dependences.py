"""Dependence vectors of loops equal those that were derived of public kernels; what is not uniform is refused."""

import re

import needs
import pytest

from dovetail.core import OperatorError
from dovetail.loops import array, loop, minimum, nest
from dovetail.loops import problems as shipped


@nest(u=array("n", "m"))
def five_points_and_own(u, steps):
    n, m = u.shape
    for _ in loop(steps):
        for i in loop(1, n - 1):
            for j in loop(1, m - 1):
                u[i, j] = 0.2 * (u[i, j] + u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1])


@nest(u=array("n", "m", time=True, boundary="fixed"))
def five_points(u, steps):
    n, m = u.shape
    for t in loop(steps):
        for i in loop(1, n - 1):
            for j in loop(1, m - 1):
                u[t + 1, i, j] = u[t, i, j] + u[t, i - 1, j] + u[t, i + 1, j] + u[t, i, j - 1] + u[t, i, j + 1]


@nest(u=array("n", time=True, boundary="fixed"))
def wave(u, steps):
    for t in loop(1, steps):
        for i in loop(2, u.shape[0] - 2):
            around = u[t, i - 2] + u[t, i - 1] + u[t, i] + u[t, i + 1] + u[t, i + 2]
            u[t + 1, i] = around - u[t - 1, i]


@nest(a=array("n"), b=array("n"))
def two_statements(a, b, steps):
    for _ in loop(steps):
        for i in loop(1, a.shape[0] - 1):
            b[i] = a[i - 1] + a[i] + a[i + 1]
        for i in loop(1, a.shape[0] - 1):
            a[i] = b[i - 1] + b[i] + b[i + 1]


@nest(p=array("n", "m"), q=array("n", "m"), u=array("n", "m"))
def column_sweep(p, q, u, steps):
    n, m = u.shape
    for _ in loop(steps):
        for i in loop(1, n - 1):
            for j in loop(1, m - 1):
                p[i, j] = 1 / (p[i, j - 1] + 2)
                q[i, j] = u[j, i] + q[i, j - 1] * p[i, j]


@nest(path=array("n", "n"))
def floyd_warshall(path):
    n, _ = path.shape
    for k in loop(n):
        for i in loop(n):
            for j in loop(n):
                path[i, j] = minimum(path[i, j], path[i, k] + path[k, j])


KERNELS = {  # by how the corpus calls them; of several statements, what it calls them
    "recursion 3-D": (shipped.triple_nest, ""),
    "LCS": (shipped.lcs, ""),
    "Gauss-Seidel / SOR 5-point 2-D": (five_points_and_own, ""),
    "seidel-2d": (shipped.seidel2d, ""),
    "jacobi-1d one statement": (shipped.jacobi1d, ""),
    "jacobi-2d one statement": (five_points, ""),
    "heat-3d one statement": (shipped.heat3d, ""),
    "acoustic wave": (wave, ""),
    "jacobi-1d (PolyBench": (two_statements, "SR"),
    "fdtd-2d": (shipped.fdtd2d, "YXH"),
}


def corpus(kernel):
    """Flow and memory-based vectors of a kernel in the corpus: of two statements with their names first."""
    needs.need("shared")
    text = (needs.SHARED / "corpus/loops/dependences.txt").read_text(encoding="utf-8")
    block = text[text.index(f"\n{kernel}") :].split("isl schedule")[0]
    lines = [block[block.index(word) :].splitlines()[0] for word in ("   flow", "   memory")]
    return [{_vector(each) for each in re.findall(r"\(([^)]*)\)", line.split(":")[1])} for line in lines]


def _vector(text):
    return tuple(word.strip("' ") if "->" in word else int(word) for word in text.split(","))


def found(made, names, kinds):
    return {
        (() if each.source is each.sink else (f"{names[int(each.source.name[1:])]}->{names[int(each.sink.name[1:])]}",))
        + each.distance
        for each in made.dependences()
        if each.kind in kinds
    }


@pytest.mark.parametrize("kernel", KERNELS)
def test_equal_to_the_corpus(kernel):
    made, names = KERNELS[kernel]
    flow, memory = corpus(kernel)
    assert found(made, names, {"flow"}) == flow
    assert found(made, names, {"flow", "anti", "output"}) == memory


def test_a_recurrence_and_what_overwrites_it():
    assert (0, 0, 1) in column_sweep.vectors()
    own = {d.distance for d in column_sweep.dependences() if d.source is d.sink}
    assert own == {(0, 0, 1), (1, 0, -1), (1, 0, 0)}  # as in the corpus, which has both statements in one


def test_corpus_has_no_kernel_that_is_left_out():
    needs.need("shared")
    text = (needs.SHARED / "corpus/loops/dependences.txt").read_text(encoding="utf-8")
    titles = [line for line in text.splitlines()[1:] if line and not line.startswith(" ")]
    left = [title for title in titles if not any(title.startswith(known) for known in KERNELS)]
    assert len(left) == 2  # the column sweep, by two statements here, and Floyd and Warshall's
    assert left[0].startswith("adi")
    assert left[1].startswith("floyd")


def test_not_uniform_is_refused_with_its_accesses():
    with pytest.raises(OperatorError, match="not uniform") as error:
        floyd_warshall.dependences()
    assert "S0 writes path[i, j], S0 reads path[" in str(error.value)
    assert "test_dependences.py:" in str(error.value)


def test_a_dependence_that_grows_with_a_size_is_refused():
    @nest(u=array("n"))
    def turned(u, steps):
        for _ in loop(steps):
            for i in loop(u.shape[0]):
                u[i] = u[u.shape[0] - 1 - i]

    with pytest.raises(OperatorError, match="not uniform"):
        turned.dependences()


def test_accesses_are_reported():
    first = shipped.jacobi1d.dependences()[0]
    assert (first.kind, str(first.source_access)) == ("flow", "u[t + 1, i]")
    assert {str(each.sink_access) for each in shipped.jacobi1d.dependences()} == {
        "u[t, i - 1]",
        "u[t, i]",
        "u[t, i + 1]",
    }
