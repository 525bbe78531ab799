"""Chains of calls that lead to MPI calls: recorded with `--callers`, and resolved to lines."""

from __future__ import annotations

from collections import Counter

import needs
import numpy as np
import pytest
from trace_calls import call, collective, trace_of
from trace_files import write_process
from traced_programs import compiled, traced

from dovetail.core import DovetailError
from dovetail.trace.analysis.sites import call_sites
from dovetail.trace.trace import check_meta

PROGRAM = r"""
#include <mpi.h>
#define KEEP __asm__ volatile("" ::: "memory")
static void add(double* x) { MPI_Allreduce(MPI_IN_PLACE, x, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD); KEEP; }  // ADD
__attribute__((noinline)) static void alike(double* x, int which) {
    if (which) add(x);                                                                                       // ONE
    else add(x);                                                                                             // TWO
    KEEP;
}
__attribute__((noinline)) static void deep(double* x, int n) {
    char some[64 * 3] = {(char)n};
    if (n) deep(x, n - 1); else add(x);                                                                      // DEEP
    __asm__ volatile("" :: "r"(some) : "memory");
}
int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    double x = 0;
    for (int i = 0; i < 30; ++i) {
        alike(&x, i % 2);                                                                                    // LOOP
        alike(&x, 1);                                                                                        // AGAIN
    }
    deep(&x, 1), deep(&x, 40);                                                                               // ONCE
    MPI_Finalize();
    return 0;
}
"""
LINE = {mark: f"chain.c:{number}" for number, line in enumerate(PROGRAM.splitlines(), 1)
        if (mark := line.rpartition("// ")[2].strip()).isupper()}  # fmt: skip

SCRIPT = """
from mpi4py import MPI
import numpy as np
x = np.zeros(1)

def add():
    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, x)

def one():
    add()

def two():
    add()

for _ in range(3):
    one()
    two()
"""


def sites_of(trace, name):
    """How often a call was made from each chain."""
    rows = np.flatnonzero(trace.columns["part"] == 0)
    texts = zip(rows.tolist(), call_sites(trace, rows), strict=True)
    return Counter(text for row, text in texts if trace.names[trace.columns["name"][row]].removesuffix("_c") == name)


@pytest.mark.mpi
@pytest.mark.parametrize("mpi", ["mpich", pytest.param("openmpi", marks=pytest.mark.thorough)], indirect=True)
def test_calls_of_one_line_are_told_apart_by_who_called(mpi, tmp_path):
    source = tmp_path / "chain.c"
    source.write_text(PROGRAM)
    program = compiled(mpi, source, tmp_path / "chain")
    code, trace = traced(mpi, tmp_path / "out", 2, program, options=["--callers"])
    assert code == 0
    add, one, two, loop, again = (LINE[mark] for mark in ("ADD", "ONE", "TWO", "LOOP", "AGAIN"))
    deep = LINE["DEEP"]
    assert sites_of(trace, "MPI_Allreduce") == {
        f"{add} from {one} from {loop}": 2 * 15,
        f"{add} from {two} from {loop}": 2 * 15,
        f"{add} from {one} from {again}": 2 * 30,
        f"{add} from {deep} from {deep} from {LINE['ONCE']}": 2,
        " from ".join([add, *[deep] * 6, "…"]): 2,
    }


@pytest.mark.mpi
def test_lines_of_python_and_their_callers(tmp_path):
    mpi = needs.mpi("mpich")
    script = tmp_path / "program.py"
    script.write_text(SCRIPT)
    code, trace = traced(mpi, tmp_path / "out", 2, mpi.python, script, options=["--python", "--callers"])
    assert code == 0
    chains = (
        "program.py:7 from program.py:10 from program.py:16",
        "program.py:7 from program.py:13 from program.py:17",
    )
    assert sites_of(trace, "MPI_Allreduce") == dict.fromkeys(chains, 6)
    assert sites_of(trace, "MPI_Init_thread") == {"program.py:2": 2}  # not the import system's


def chained(tmp_path, paths):
    """One rank's sum, made from path 9000, and the trace's meta with these paths."""
    (word, about), *rest = call(11, 0, 1, *collective())
    write_process(tmp_path, 0, {1: [(word, (about + (-9000 << 16)) % (1 << 64)), *rest]})
    trace = trace_of(tmp_path)
    (about,) = trace.meta["ranks"]
    about |= {"lines": {"1": "/x/add.py:3", "2": "/x/main.py:8"}, "paths": paths}
    return trace


def test_a_path_is_read_from_the_call_outwards(tmp_path):
    trace = chained(tmp_path, {"8193": [-2, 0], "9000": [-1, 8193]})
    assert call_sites(trace, np.array([0])) == ["add.py:3 from main.py:8"]


@pytest.mark.parametrize("paths", [{"9000": [-1, 9000]}, {"9000": [-1]}, {"9000": [-1, "x"]}, {"x": [-1, 0]}])
def test_paths_that_lead_to_themselves_or_are_no_pairs_are_refused(tmp_path, paths):
    trace = chained(tmp_path, paths)
    with pytest.raises((DovetailError, ValueError), match="malformed"):
        check_meta(trace.meta, 1)
