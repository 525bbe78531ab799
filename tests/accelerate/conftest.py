"""Programs that the tests of `accelerate` run, compiled once for each MPI."""

import subprocess

import needs
import pytest


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    """Return the path of a program of tests/ranks, or of the C text given, compiled for an MPI."""
    made = {}

    def build(mpi, source, text=""):
        if (mpi.name, source) not in made:
            place = tmp_path_factory.mktemp(mpi.name)
            file = needs.RANKS / source
            if text:
                file = place / source
                file.write_text(text)
            command = [mpi.mpicc, "-O1", file, "-o", place / "program"]
            done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=mpi.env, check=False)
            assert done.returncode == 0, done.stderr
            made[mpi.name, source] = place / "program"
        return made[mpi.name, source]

    return build


@pytest.fixture
def accelerate(own_cache, tmp_path):
    """Run `dovetail accelerate …` by an MPI's Python, with a cache of the test's own."""

    def run(mpi, *words, **variables):
        line = [mpi.python, "-m", "dovetail", "accelerate", *words]
        env = mpi.env | {"DOVETAIL_CACHE": str(own_cache)} | variables
        return subprocess.run(
            [*map(str, line)],
            env=env,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    return run
