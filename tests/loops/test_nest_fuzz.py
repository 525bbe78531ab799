"""Random loop nests: every way to run them gives the bits of an evaluation that is none of Dovetail's, or refuses."""

import subprocess
import sys
from dataclasses import replace

import needs
import nest_cases as cases
import nest_fuzz
import numpy as np
import pytest
from nest_cases import Case, Loop, Spec, Write
from nest_drawn import drawn, number, plus
from nest_programs import on_ranks

from dovetail.core import OperatorError

SEED = 24


@pytest.mark.needs("compiler")
@pytest.mark.usefixtures("own_cache")
def test_fifty_random_nests():
    tally = nest_fuzz.fuzz(SEED, range(25), nest_fuzz.serial)  # each with two inputs
    assert not tally.faults, nest_fuzz.shown(*tally.faults[0])
    assert tally.agreed >= 15, tally.report()


@pytest.mark.needs("compiler")
@pytest.mark.usefixtures("own_cache")
def test_random_programs():
    tally = nest_fuzz.fuzz(SEED, range(16), on_ranks)
    assert not tally.faults, nest_fuzz.shown(*tally.faults[0])
    assert tally.agreed >= 4, tally.report()


@pytest.mark.mpi
@pytest.mark.needs("compiler")
@pytest.mark.usefixtures("own_cache")
def test_random_nests_on_ranks(mpi, monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    done = mpi.run(3, needs.RANKS / "nest_ranks.py", "--seed", SEED, "--cases", 12)
    assert done.returncode == 0, done.stdout + done.stderr


# ---- what is wrong is seen


LEFT, RIGHT = ("read", "u", (plus("t"), plus("i", -1))), ("read", "v", (plus("i", 1),))
SHIFT = Case(
    "stencil",
    (Spec("u", ("n",), None, 1, "fixed"), Spec("v", ("n",))),
    (Loop("t", number(0), plus("steps"), (
        Loop("i", number(1), plus("n", -1), (
            Write("u", (plus("t", 1), plus("i")), ("-", LEFT, RIGHT)),
        )),
    )),),
    (("n", 9),),
    2,
    "float64",
    5,
    True,
)  # fmt: skip


class Changed:
    """A nest whose C result is changed by a function."""

    def __init__(self, nest, change):
        self.nest, self.change, self.numpy, self.reference = nest, change, nest.numpy, nest.reference

    def __call__(self, *arrays, **parameters):
        return self.change(self.nest(*arrays, **parameters).copy())


def one_unit(array):
    array[4] = np.nextafter(array[4], np.inf)
    return array


@pytest.mark.needs("compiler")
@pytest.mark.usefixtures("own_cache")
def test_a_wrong_bit_is_seen(tmp_path):
    nest = cases.made(SHIFT, tmp_path)
    assert nest_fuzz.compared(SHIFT, nest) is None
    assert nest_fuzz.compared(SHIFT, Changed(nest, one_unit)).startswith("C: 1 of 9 differ, first at (4,)")


@pytest.mark.needs("compiler")
@pytest.mark.usefixtures("own_cache")
def test_a_wrong_offset_is_seen_and_shrunk(tmp_path):
    """The nest that runs reads `v[i]`, the description says `v[i + 1]`."""

    def run(case):
        text = cases.function_text(case, "wrong").replace("v[i + 1]", "v[i]")
        path = tmp_path / f"wrong_{next(cases.COUNT)}.py"
        path.write_text(cases.HEAD + text)
        return nest_fuzz.compared(case, cases.loaded(path, "wrong"))

    assert run(SHIFT).startswith("C: ")
    small = nest_fuzz.shrunk(SHIFT, run, most=40)
    assert (small.steps, dict(small.sizes)) == (1, {"n": 3})
    assert run(small).startswith("C: 1 of 3 differ")


def test_signs_of_zero_and_nans_are_seen():
    zeros = np.array([0.0, np.nan, 1.0])
    assert cases.wrong(zeros, np.array([0.0, -np.nan, 1.0])) is None
    assert "first at (0,)" in cases.wrong(zeros, np.array([-0.0, np.nan, 1.0]))
    assert "first at (1,)" in cases.wrong(zeros, np.array([0.0, 1.0, 1.0]))
    assert "float32" in cases.wrong(zeros, zeros.astype("float32"))


def test_refusals_without_cause_are_seen():
    """An index that is in bounds is called one that is not; a value that is ready, one that is not."""
    assert nest_fuzz.refused(OperatorError("index out of bounds: u[t, i - 1]"), SHIFT).startswith(
        "refused without cause"
    )
    assert nest_fuzz.refused(OperatorError("cyclic statements: u[t, i - 1]"), SHIFT).startswith("refused without cause")
    beyond = replace(SHIFT, body=(replace(SHIFT.body[0], body=(replace(SHIFT.body[0].body[0], high=plus("n")),)),))
    assert nest_fuzz.refused(OperatorError("index out of bounds: v[i + 1]"), beyond).startswith("refused: ")
    assert nest_fuzz.wanted(beyond, cases.arguments(beyond)).startswith("out of bounds")


def test_cases_are_the_same_everywhere():
    for kind in (None, "levels"):
        assert [drawn(SEED, k, kind) for k in range(20)] == [drawn(SEED, k, kind) for k in range(20)]


def test_refusals_may_hold_for_small_arrays_only():
    """A level is read at its last element, then its first is written: the same one of an array of one element."""
    head = (Write("u", (plus("t", 1), number(0)), ("read", "u", (plus("t"), number(0)))),)
    tail = (Write("v", (number(0),), ("read", "u", (plus("t", 1), plus("n", -1)))),)
    only_small = replace(SHIFT, body=(replace(SHIFT.body[0], body=(*SHIFT.body[0].body, *tail, *head)),))
    assert nest_fuzz.outcome(only_small) == ""
    assert nest_fuzz.refused(OperatorError("cyclic statements: u[t + 1, n - 1]"), only_small).startswith("refused: ")


def test_interrupted_runs_report_what_they_have():
    def run(case, folder):
        if case == drawn(SEED, 2):
            raise KeyboardInterrupt

    assert nest_fuzz.fuzz(SEED, range(9), run).cases == 2


@pytest.mark.slow
@pytest.mark.needs("compiler")
@pytest.mark.usefixtures("own_cache")
def test_command_line():
    command = [sys.executable, needs.SUPPORT / "nest_fuzz.py", "--cases", "3", "--seed", str(SEED)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("3 cases: "), done.stderr
