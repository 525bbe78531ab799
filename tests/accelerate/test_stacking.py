"""Other tools that define MPI calls, and the tracer, see every call, and so do the counters and the replacement."""

from __future__ import annotations

import subprocess

import pytest

from dovetail.accelerate.running import prepared
from dovetail.trace import open_trace
from dovetail.trace.analysis.stats import stats

pytestmark = pytest.mark.mpi
BY_PMPI, BY_NEXT = "PMPI_Allreduce", "next_allreduce()"
TOOL = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
static int calls;
static int (*next_allreduce(void))(const void*, void*, int, MPI_Datatype, MPI_Op, MPI_Comm) {
    return (int (*)(const void*, void*, int, MPI_Datatype, MPI_Op, MPI_Comm))dlsym(RTLD_NEXT, "MPI_Allreduce");
}
int MPI_Allreduce(const void* in, void* out, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    ++calls;
    return CALL(in, out, count, type, op, comm);
}
int MPI_Finalize(void) {
    if (0) next_allreduce();
    PMPI_Barrier(MPI_COMM_WORLD); /* a call of the tool's own */
    fprintf(stderr, "tool saw %d Allreduce\\n", calls);
    return PMPI_Finalize();
}
"""
CALLS = 300
PROGRAM = """
#include <mpi.h>
int main(int argc, char** argv) {
    int rank, wrong = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int i = 0; i < 300; ++i) {
        int value = rank + i, sum = 0;
        MPI_Allreduce(&value, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        wrong += sum != 2 * i + 1;
    }
    MPI_Finalize();
    return wrong != 0;
}
"""


@pytest.fixture
def run(mpi, tmp_path, monkeypatch, own_cache, capfd):
    """Run a program with all collectives replaced; return its counts and standard error."""
    for name, value in mpi.env.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "program.c").write_text(PROGRAM)
    (tmp_path / "tool.c").write_text(TOOL)

    def compiled(out, source, *flags):
        command = [mpi.mpicc, "-O1", tmp_path / source, "-o", tmp_path / out, *flags]
        subprocess.run([*map(str, command)], check=True, env=mpi.env)
        return tmp_path / out

    def run(call, is_linked):
        tool = compiled("libtool.so", "tool.c", "-shared", "-fPIC", f"-DCALL={call}", "-ldl")
        linked = ["-Wl,--no-as-needed", tool, f"-Wl,-rpath,{tmp_path}"] if is_linked else []
        program = compiled("program", "program.c", *linked)
        if not is_linked:
            monkeypatch.setenv("LD_PRELOAD", str(tool))
        command = prepared([*mpi.mpiexec(2), str(program)], None, "always")
        assert not command.why_not
        ran = command.run()
        err = capfd.readouterr().err
        assert ran.code == 0, err
        return ran.counts, err

    return run


@pytest.mark.parametrize(
    ("call", "is_linked"),
    [
        (BY_PMPI, False),
        pytest.param(BY_NEXT, False, marks=pytest.mark.thorough),
        pytest.param(BY_PMPI, True, marks=pytest.mark.thorough),
    ],
)
def test_a_tool_and_the_counters_see_every_call(run, call, is_linked):
    counts, err = run(call, is_linked)
    assert err.count(f"tool saw {CALLS} Allreduce\n") == 2, err
    assert "not counted" not in err
    calls = {bucket.call: bucket.calls for bucket in counts[0].buckets}
    assert (calls["Allreduce"], calls["Barrier"]) == (2 * CALLS, 2)
    moved = {row.call: row.moved for row in counts[0].replacing.rows}
    assert moved["Allreduce"] == 2 * (CALLS - 1)


@pytest.mark.thorough
def test_the_tracer_and_the_counters_see_every_call(mpi, tmp_path, own_cache):
    (tmp_path / "program.c").write_text(PROGRAM)
    subprocess.run([mpi.mpicc, tmp_path / "program.c", "-o", tmp_path / "program"], check=True, env=mpi.env)
    words = [mpi.python, "-m", "dovetail", "trace", "run", "-o", tmp_path / "traced", "--"]
    words += [mpi.python, "-m", "dovetail", "accelerate", "--replace", "--learn", "0", "--"]
    words += [*mpi.mpiexec(2), tmp_path / "program"]
    env = mpi.env | {"DOVETAIL_CACHE": str(own_cache)}
    done = subprocess.run([*map(str, words)], env=env, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    assert f"MPI_Allreduce on 2 ranks, 4 B and more: {2 * CALLS} calls" in done.stderr
    found = stats(open_trace(tmp_path / "traced" / "trace.dovetail").read())
    assert {call.name: call.count for call in found.calls}["MPI_Allreduce"] == 2 * CALLS
