"""`--from TRACE`: what cannot gain is said at once, and nothing is tried; predictions stand beside measured savings."""

from __future__ import annotations

import json
import subprocess

import needs
import pytest


@pytest.fixture
def trace(own_cache, tmp_path):
    """Return the path of a trace of a command."""

    def run(mpi, *words):
        line = [mpi.python, "-m", "dovetail", "trace", "run", "-o", tmp_path / "t", "--", *words]
        env = mpi.env | {"DOVETAIL_CACHE": str(own_cache)}
        done = subprocess.run([*map(str, line)], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return tmp_path / "t"

    return run


SENDS = """
#include <mpi.h>
#include <stdio.h>
int main(int argc, char** argv) {
    int rank, seen = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int i = 0; i < 5000; ++i)
        MPI_Sendrecv(&i, 1, MPI_INT, 1 - rank, 0, &seen, 1, MPI_INT, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (!rank) printf("%d\\n", seen);
    MPI_Finalize();
    return 0;
}
"""
GATHERS = """
#include <mpi.h>
#include <stdio.h>
int main(int argc, char** argv) {
    int rank, all[2];
    long sum = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int i = 0; i < 5000; ++i) MPI_Allgather(&i, 1, MPI_INT, all, 1, MPI_INT, MPI_COMM_WORLD), sum += all[1];
    if (!rank) printf("%ld\\n", sum);
    MPI_Finalize();
    return 0;
}
"""


@pytest.mark.mpi
def test_a_program_of_messages_runs_as_it_is(mpi, compiled, accelerate, trace, tmp_path):
    words = [*mpi.mpiexec(2), compiled(mpi, "sends.c", SENDS)]
    done = accelerate(mpi, "--replace", "--from", trace(mpi, *words), "--report", tmp_path / "r.html", "--", *words)
    assert (done.returncode, done.stdout) == (0, "4999\n"), done.stderr
    assert "MPI_Sendrecv, 4 B and more: 10000 calls of " in done.stderr
    assert "nothing to gain here: what levers serve takes 0.0 % of the ranks' time" in done.stderr
    assert "applied" not in done.stderr  # nothing was counted
    page = (tmp_path / "r.html").read_text()
    assert "nothing to gain here" in page
    assert 'id="timeline"' in page or "canvas" in page


@pytest.mark.mpi
def test_a_prediction_beside_the_measured_saving(compiled, accelerate, trace, tmp_path):
    """On MPICH alone: Open MPI has more settings, whose launches take longer."""
    needs.need("compiler", "mpich")
    mpi = needs.MPIS["mpich"]
    words = [*mpi.mpiexec(2), compiled(mpi, "gathers.c", GATHERS)]
    recorded = trace(mpi, *words)
    options = ["--replace", "--from", recorded, "--learn", "120", "--report", tmp_path / "r.json", "--check", "1"]
    done = accelerate(mpi, *options, "--", *words)
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "r.json").read_text())
    levers = {lever["lever"]: lever for lever in document["predicted"]["levers"]}
    (times,) = levers["shared memory"]["times"]
    assert (times["call"], times["calls"]) == ("Allgather", 10000)
    assert 0 < times["now_s"] < 1
    if "nothing to gain here" not in done.stderr:  # on a loaded machine shared memory may be no faster
        assert "saving of a run: predicted " in done.stdout
        assert document["checked"]["without_s"] > 0
    assert any("MPI_Allgather" in line for line in document["lines"])
