"""Stencils on MPI ranks: arrays in, arrays out on any communicator, by plans and by the command line."""

import json

import needs
import pytest


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.usefixtures("own_cache")
def test_on_communicators(mpi, ranks, monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    done = mpi.run(ranks, needs.RANKS / "stencil_ranks.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["all right"]


@pytest.mark.mpi
@pytest.mark.needs("compiler")
def test_example(mpi, monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    done = mpi.run(2, needs.ROOT / "examples/heat.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("the middle has 14.7 degrees\n")


HEAT = """
from dovetail.loops import array, loop, nest

@nest(u=array("n", "m", time=True, boundary="fixed"))
def heat(u, steps):
    for t in loop(steps):
        for i in loop(1, u.shape[0] - 1):
            for j in loop(1, u.shape[1] - 1):
                u[t + 1, i, j] = u[t, i, j] + 0.1 * (u[t, i - 1, j] - 2 * u[t, i, j] + u[t, i + 1, j])
"""


@pytest.mark.mpi
@pytest.mark.thorough
@pytest.mark.needs("mpich", "compiler")
def test_tuned_by_the_command_line(tmp_path, dovetail_with_links):
    """A user's stencil: probed, planned, proved, measured and checked."""
    (tmp_path / "mine.py").write_text(HEAT)
    asked = ("mine.py:heat", "--grid", "64x48", "--steps", "6", "--ranks", "2")
    done = dovetail_with_links("tune", *asked, "--rounds", "3", "--budget", "4", "--json")
    assert done.returncode == 0, done.stderr
    reported = json.loads(done.stdout)
    assert reported["operator"]["grid"] == "64x48"
    assert reported["max_rel_error"] == 0.0
    assert reported["tolerance"] > 0.0  # a result was compared
    planned = dovetail_with_links("plan", *asked, "--schedule", "deep", "--depth", "3", "--extrapolate", "--json")
    assert planned.returncode == 0, planned.stderr
    assert json.loads(planned.stdout)["choices"]["parameters"]["depth"] == 3


@pytest.mark.slow
def test_no_such_stencil(tmp_path, call, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(HEAT)
    (tmp_path / "broken.py").write_text(HEAT + "\ndef open(:\n")
    (tmp_path / "failing.py").write_text(HEAT + "\nprint(nothing)\n")
    for name, words in (
        ("mine.py", "try         mine.py:NAME"),
        ("broken.py:heat", "broken.py is not Python"),
        ("failing.py:heat", "NameError: name 'nothing' is not defined"),
        ("mine.py:cold", "mine.py has no nest 'cold'"),
        ("theirs.py:heat", "cannot read theirs.py"),
        ("jacobi4d", "did you mean 'jacobi"),
    ):
        code, out, err = call("plan", name, "--grid", "8x8", "--ranks", "2")
        assert code == 2, out
        assert words in err
