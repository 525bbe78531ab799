"""The library that counts: each call once, in its bucket; waits for a late rank apart; programs undisturbed."""

import os
import re
import subprocess

import needs
import pytest

from dovetail.accelerate.running import prepared

pytestmark = pytest.mark.mpi


@pytest.fixture
def run(mpi, compiled, monkeypatch, own_cache):
    """Run tests/ranks/accelerate_calls.c on two ranks, counted; return what `Command.run` does."""
    for name, value in mpi.env.items():
        monkeypatch.setenv(name, value)

    def _run(*words, source="accelerate_calls.c"):
        command = prepared([*mpi.mpiexec(2), str(compiled(mpi, source)), *words])
        assert not command.why_not
        return command.run()

    return _run


def test_each_call_once_in_its_bucket(run, capfd):
    ran = run("HOME", "3")
    assert (ran.code, capfd.readouterr().out) == (3, os.environ["HOME"] + "\n")
    (counts,) = ran.counts
    assert (counts.ranks, len(counts.hosts)) == (2, 1)
    found = {bucket[:3]: bucket.calls for bucket in counts.buckets}
    assert found == {
        ("Allreduce", 2, 6): 2 * 10,
        ("Bcast", 2, 12): 2 * 3,
        ("Allreduce", 1, 3): 2,
        ("Iallreduce", 2, 3): 2,
        ("Wait", 0, -1): 2,
        ("Test", 0, -1): 2 * 7,
        ("Barrier", 2, -1): 2 * 64,
    }
    assert 0 < counts.in_collectives_s < counts.in_mpi_s < counts.rank_s <= 2 * counts.elapsed_s


def test_every_look_counts_though_few_are_timed(run):
    """The program does little but look: the looks take most of its time, of which one in 16 alone would be 6 %."""
    ran = run("300000", source="accelerate_looks.c")
    assert ran.code == 0
    (counts,) = ran.counts
    (looks,) = (it for it in counts.buckets if it.call == "Test")
    assert looks.calls == 2 * 300000
    assert 0.2 * counts.rank_s < looks.seconds <= 1.001 * counts.rank_s


def test_a_datatype_of_large_counts_is_no_error(compiled, own_cache, monkeypatch):
    mpi = needs.mpi("mpich")
    monkeypatch.setenv("PATH", mpi.env["PATH"])
    ran = prepared([*mpi.mpiexec(1), str(compiled(mpi, "large_type.c"))]).run()
    assert (ran.code, len(ran.counts)) == (0, 1)
    assert ("Sendrecv", 0, 3) in {bucket[:3] for bucket in ran.counts[0].buckets}


def test_waiting_for_the_late_rank_is_told_apart(run):
    """Rank 1 sleeps for 1 ms before each barrier: rank 0 waits that long in one of the sampled ones, at least."""
    (counts,) = run().counts
    by_call = {bucket[:2]: bucket for bucket in counts.buckets}
    barrier = by_call["Barrier", 2]
    assert 0 < barrier.sampled < barrier.calls
    assert 1e-3 <= barrier.waited_s < barrier.sampled_s
    assert by_call["Bcast", 2].skew_s is None
    assert by_call["Allreduce", 1].skew_s is None


def test_calls_from_fortran_are_counted_once(mpi, compiled, run, tmp_path):
    """Open MPI's Fortran functions call PMPI, and none at all for an empty list."""
    entries = (needs.RANKS / "trace_fortran_entries.c").read_text()
    program = (needs.RANKS / "trace_small.c").read_text()
    library, target = tmp_path / "libentries.so", tmp_path / "small"
    (tmp_path / "entries.c").write_text(entries)
    (tmp_path / "small.c").write_text(program)
    for made, flags in {
        library: ["-shared", "-fPIC", tmp_path / "entries.c"],
        target: [tmp_path / "small.c", library, f"-Wl,-rpath,{tmp_path}"],
    }.items():
        subprocess.run([mpi.mpicc, *flags, "-o", made], check=True, env=mpi.env)
    (counts,) = prepared([*mpi.mpiexec(2), str(target), "3"]).run().counts
    found = {}
    for bucket in counts.buckets:
        found[bucket.call] = found.get(bucket.call, 0) + bucket.calls
    assert found == {"Allreduce": 2, "Waitall": 2 * 2 * 3}


ADDRESSES = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
static int calls;
static int next(const void* address, Dl_info* info) {
    return ((int (*)(const void*, Dl_info*))dlsym(RTLD_NEXT, "dladdr"))(address, info);
}
int dladdr(const void* address, Dl_info* info) {
    Dl_info from;
    if (next(__builtin_return_address(0), &from) && strstr(from.dli_fname, "accelerate_gate")) ++calls;
    return next(address, info);
}
__attribute__((destructor)) static void end(void) { fprintf(stderr, "searched symbols %d times\\n", calls); }
"""


def test_starting_does_not_search_symbols_for_each_call(run, monkeypatch, tmp_path, capfd):
    """dladdr takes tens of microseconds in an MPI library; once for each of its calls made every start 60 ms longer."""
    (tmp_path / "addresses.c").write_text(ADDRESSES)
    library = tmp_path / "libaddresses.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", tmp_path / "addresses.c", "-o", library, "-ldl"], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    assert run().counts
    found = re.findall(r"searched symbols (\d+) times", capfd.readouterr().err)
    assert len(found) >= 2
    assert 0 < max(map(int, found)) < 10
