"""The programs of docs/causes.md: each runs, its repair too, and the trace has the cause that the page names."""

from __future__ import annotations

import subprocess

import needs
import pytest
from traced_programs import traced

from dovetail.advise.causes import causes

PROGRAMS = {"late": "work", "moving": "work", "writes": "io", "pauses": "poll", "messages": "call", "turns": "work"}
PROGRAMS |= {"lockstep": "work"}
FOLDER = needs.ROOT / "examples" / "causes"
pytestmark = pytest.mark.mpi


@pytest.fixture
def mpich():
    return needs.mpi("mpich")


def built(mpi, tmp_path, name, *flags):
    """Build a program with few steps: where others use the cores, each message may take milliseconds."""
    target = tmp_path / name
    few = ("-DSTEPS=8", "-DPARTICLES=200")
    command = [mpi.mpicc, "-g", *few, *flags, FOLDER / f"{name}.c", "-o", target]
    subprocess.run([*map(str, command)], check=True, env=mpi.env)
    return target


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_cause_is_in_the_trace(mpich, tmp_path, name):
    """Ranks that lose their cores to other programs wait for that, too: then the program's cause need not be found."""
    code, trace = traced(mpich, tmp_path / "out", 2, built(mpich, tmp_path, name))
    assert code == 0
    names = [trace.names[i] for i in trace.columns["name"][trace.columns["part"] == 0]]
    assert names.count("MPI_Init") == 2
    if name == "messages":
        assert names.count("MPI_Sendrecv") == 2 * 8 * 200
    elif is_quiet(trace):
        assert PROGRAMS[name] in [cause.activity.kind for cause in causes(trace).causes]


def is_quiet(trace):
    """Whether ranks hardly waited for a core: the run may be too short for advice to tell by the machine's counters."""
    waited_s = [about["load"]["waited_s"] for about in trace.meta["ranks"]]
    return all(None not in column and column[-1] - column[0] < 2e-3 for column in waited_s)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_repaired_program_runs(mpich, tmp_path, name):
    target = built(mpich, tmp_path, name, "-DREPAIRED")
    done = subprocess.run(
        [*map(str, mpich.mpiexec(2)), str(target)], env=mpich.env, capture_output=True, text=True, check=True
    )
    assert float(done.stdout) > 0


def test_every_program_is_on_the_page():
    page = (needs.ROOT / "docs" / "causes.md").read_text()
    assert {path.stem for path in FOLDER.glob("*.c")} == set(PROGRAMS)
    for name in PROGRAMS:
        assert f"../examples/causes/{name}.c" in page
        assert f"causes/{name}.svg" in page
        assert (needs.ROOT / "docs" / "causes" / f"{name}.svg").exists()
