"""Replaced collectives: random calls give the library's bytes; sums keep their order; the report says what was done."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import needs
import pytest

from dovetail.accelerate.counts import Bucket, Counts, Replaced, Replacing
from dovetail.accelerate.running import prepared
from dovetail.report.acceleration import replacing_text

STEADY = """
#include <mpi.h>
#include <unistd.h>
int main(int argc, char** argv) {
    int rank, wrong = 0;
    double sum, value;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    usleep(500000);
    for (int i = 0; i < 40000; ++i) {
        value = rank ? 0.1 * i : 1e-3;
        MPI_Allreduce(&value, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        wrong += sum != 1e-3 + 0.1 * i;
    }
    MPI_Finalize();
    return wrong != 0;
}
"""


@pytest.fixture
def fuzz(mpi, tmp_path, monkeypatch, own_cache):
    """Run tests/ranks/accelerate_fuzz.c with replacement `mode`; return its standard output and counts."""
    for name, value in mpi.env.items():
        monkeypatch.setenv(name, value)
    program = tmp_path / "fuzz"
    command = [mpi.mpicc, "-O1", "-pthread", needs.RANKS / "accelerate_fuzz.c", "-o", program]
    subprocess.run(command, check=True, env=mpi.env)

    def run(mode, ranks, calls, seed, threads, capfd):
        words = [*mpi.mpiexec(ranks), str(program), *map(str, (calls, seed, threads))]
        ran = prepared(words, None, mode).run()
        out, err = capfd.readouterr()
        assert ran.code == 0, out + err
        return out, ran.counts[0].replacing

    return run


@pytest.mark.mpi
def test_random_calls_of_two_threads_give_the_bytes_of_the_library(fuzz, capfd):
    """Types, operations, buffers in place, communicators that come and go, datatypes that differ between ranks."""
    out, replacing = fuzz("always", 2, 500, 11, 2, capfd)
    assert out.endswith(" calls, 0 wrong\n")
    moved = dict.fromkeys(("Allreduce", "Allgather", "Alltoall", "Barrier"), 0)
    for row in replacing.rows:
        moved[row.call] += row.moved
    assert min(moved.values()) > 20, moved
    assert replacing.left["operation"] > 0
    assert replacing.left["order"] == 0


@pytest.mark.mpi
def test_sums_of_three_ranks_are_left_to_the_library(fuzz, capfd):
    out, replacing = fuzz("always", 3, 60, 12, 2, capfd)
    assert out.endswith(" calls, 0 wrong\n")
    assert replacing.left["order"] > 0
    assert any(row.moved and row.comm_size == 3 for row in replacing.rows)


@pytest.mark.mpi
def test_the_guard_decides_by_blocks_of_calls(mpi, compiled, own_cache, monkeypatch):
    """Whatever it decides: all sums are right, few calls are tried, and the times of both ways are known if it did."""
    for name, value in mpi.env.items():
        monkeypatch.setenv(name, value)
    ran = prepared([*mpi.mpiexec(2), str(compiled(mpi, "steady.c", STEADY))], None, "exact").run()
    assert ran.code == 0
    replacing = ran.counts[0].replacing
    (row,) = replacing.rows
    assert (row.call, row.comm_size, row.dtype, row.op, row.calls) == ("Allreduce", 2, "float64", "SUM", 80000)
    if row.state in ("replaced", "slower later"):
        assert 0 < row.moved < row.calls
        assert min(row.was_s, row.now_s) > 0
        assert 0 < row.low <= row.high
    assert replacing.spent_s > 0
    text = replacing_text(ran.counts[0])
    assert "learning cost " in text


@pytest.mark.mpi
def test_what_an_earlier_run_has_shown_is_replaced_from_the_start(mpi, compiled, own_cache, monkeypatch):
    """0x800a0104: Allreduce of float64 SUM, 8 bytes. A script between launcher and program changes nothing."""
    for name, value in mpi.env.items():
        monkeypatch.setenv(name, value)
    script = f"{compiled(mpi, 'steady.c', STEADY)}; exit $?"
    command = prepared([*mpi.mpiexec(2), "sh", "-c", script], mpi.name, "exact")
    ran = replace(command, start=("800a0104@3:24", "800a0104@2:24")).run()
    assert ran.code == 0
    (row,) = ran.counts[0].replacing.rows
    assert row.key == 0x800A0104
    assert row.moved > 10000


def test_the_report_names_what_was_replaced_and_what_was_left():
    rows = (
        Replaced("Allreduce", 2, 3, "float64", "SUM", "replaced", 1000, 900, 1e-6, 2.5e-7, 0.2, 0.3),
        Replaced("Alltoall", 2, 10, "", "", "watched", 40, 0),
        Replaced("Barrier", 2, -1, "", "", "other bytes", 7, 0),
    )
    left = {"operation": 3, "order": 0, "long": 0, "communicator": 0}
    buckets, replacing = (Bucket("Allreduce", 2, 3, 1000, 0.01),), Replacing(rows, left, 2e-5)
    counts = Counts("X 1", ("a",), 2, 0.01, 0.02, buckets, 0, replacing)
    assert replacing_text(counts).splitlines() == [
        "  MPI_Allreduce of float64 SUM on 2 ranks, 8 B and more: "
        "1 µs → 0.25 µs from call to call (ratio 0.20 to 0.30), 900 of 1000 calls",
        "replaced 900 collectives: saved about 3.3 % of the ranks' time, by blocks of calls; learning cost 0.1 %",
        "left to the library: 40 too few to learn from, 7 with other bytes than the library's, 3 by operation or type",
    ]
