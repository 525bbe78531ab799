"""The command: programs run as they would have, chosen knobs reach the ranks, and what cannot be done is said."""

from __future__ import annotations

import subprocess

import needs
import pytest

from dovetail.accelerate.learn import WON, Learned, save_settings, settings_item

PLAIN = """
#include <stdio.h>
int MPI_Init(int* argc, char*** argv) { return argc && argv ? 0 : 1; }
int main(int argc, char** argv) { MPI_Init(&argc, &argv); puts("ran"); return 7; }
"""
KILLED = """
#include <mpi.h>
#include <signal.h>
int main(int argc, char** argv) {
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank) raise(SIGKILL);
    for (int i = 0; i < 1000; ++i) MPI_Allreduce(MPI_IN_PLACE, &rank, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
"""
OTHER = """
int MPI_Init(int* argc, char*** argv) { return argc && argv ? 0 : 1; }
int MPI_Allreduce(const void* in, void* out, int n, long type, long op, long comm) {
    return n + (int)(type + op + comm);
}
int MPI_Finalize(void) { return 0; }
int PMPI_Comm_rank(long comm, int* rank) { return (int)comm + (rank == 0); }
"""
USER = """
#include <stdio.h>
int MPI_Init(int*, char***), MPI_Finalize(void);
int MPI_Allreduce(const void*, void*, int, long, long, long);
int main(int argc, char** argv) {
    const int failed = MPI_Init(&argc, &argv), found = MPI_Allreduce(&argc, &argv, 2, 30, 400, 5000);
    printf("%d\\n", found + failed + MPI_Finalize());
    return 0;
}
"""
KNOBS = {"mpich": "MPIR_CVAR_ALLTOALL_INTRA_ALGORITHM", "openmpi": "OMPI_MCA_coll_han_priority"}
VALUES, OWN = {"mpich": "pairwise", "openmpi": "0"}, {"mpich": "scattered", "openmpi": "1"}


@pytest.mark.mpi
def test_a_first_run_is_reported_and_remembered(mpi, compiled, accelerate):
    """The program's own output and exit code stay. No knob serves barriers, so that nothing else is run."""
    words = ["--", *mpi.mpiexec(2), compiled(mpi, "accelerate_calls.c"), "NONE"]
    first = accelerate(mpi, *words)
    assert (first.returncode, first.stdout) == (0, "unset\n"), first.stderr
    lines = first.stderr.splitlines()
    assert len(lines) <= 10
    assert lines[0].startswith("dovetail accelerate: 2 ranks on 1 hosts, ")
    assert "MPI_Barrier on 2 ranks, no bytes: 128 calls of " in first.stderr
    assert "nothing to gain here" in lines[-1]
    again = accelerate(mpi, *words)
    assert again.stdout == first.stdout
    assert "the command ran as it is, without counters" in again.stderr
    assert again.stderr.splitlines()[-1] == lines[-1]
    failed = accelerate(mpi, *words, "5")
    assert (failed.returncode, failed.stdout) == (5, "unset\n")
    assert "nothing learned: exit code 5" in failed.stderr


@pytest.mark.mpi
def test_chosen_knobs_reach_the_ranks_but_not_over_the_users(mpi, compiled, accelerate, tmp_path, monkeypatch):
    name, value = KNOBS[mpi.name], VALUES[mpi.name]
    words = [*mpi.mpiexec(2), str(compiled(mpi, "accelerate_calls.c")), name]
    for variable, text in mpi.env.items():
        monkeypatch.setenv(variable, text)
    monkeypatch.delenv(name, raising=False)
    place = settings_item(words, reorder=False)
    first = accelerate(mpi, "--learn", "0", "--", *words)
    library = first.stderr.split(" hosts, ")[1].split(":")[0]
    assert first.stdout == "unset\n"
    save_settings(place, Learned(WON, {name: value}, library, ("a",), 2), words)
    run = accelerate(mpi, "--", *words)
    assert run.stdout == f"{value}\n"
    assert f"applied {name}={value} (the library reports {name}=" in run.stderr
    assert "the next run learns again" in run.stderr  # it was saved for another host
    save_settings(place, Learned(WON, {name: value}, library, ("a",), 2), words)
    exported = accelerate(mpi, "--print-env", "--", *words).stdout
    for own, seen in (("", value), (f"{name}=mine ", "mine")):
        line = f'{exported}echo "${name}"'
        done = subprocess.run(["env", *filter(None, [own.strip()]), "sh", "-c", line], capture_output=True, text=True)
        assert done.stdout == f"{seen}\n"
    assert accelerate(mpi, "--", *words, **{name: OWN[mpi.name]}).stdout == f"{OWN[mpi.name]}\n"
    checked = accelerate(mpi, "--check", "1", "--", *words)
    assert "unclear: no difference is shown: time with / without " in checked.stdout
    assert "1 pair of runs)" in checked.stdout


@pytest.mark.mpi
def test_a_killed_rank_ends_the_run_as_it_would_have(mpi, compiled, accelerate):
    done = accelerate(mpi, "--replace", "--", *mpi.mpiexec(2), compiled(mpi, "killed.c", KILLED))
    assert done.returncode not in (0, None)
    assert "nothing is counted or changed: the command ended with exit code " in done.stderr


def test_programs_without_a_library_to_count(tmp_path, accelerate):
    """MPI linked statically; no MPI; no such command; no command."""
    needs.need("compiler", "mpich")
    mpi = needs.MPIS["mpich"]
    (tmp_path / "plain.c").write_text(PLAIN)
    subprocess.run(["cc", tmp_path / "plain.c", "-o", tmp_path / "plain"], check=True)
    done = accelerate(mpi, "--", tmp_path / "plain")
    assert (done.returncode, done.stdout) == (7, "ran\n")
    assert f"{tmp_path}/plain is linked statically with MPI" in done.stderr
    done = accelerate(mpi, "--", "sh", "-c", "echo yes; exit 3")
    assert (done.returncode, done.stdout) == (3, "yes\n")
    assert "exit code 3 before a rank of it called MPI_Finalize" in done.stderr
    assert "cannot run no-such-command" in accelerate(mpi, "--", "no-such-command").stderr
    assert "no command to accelerate" in accelerate(mpi).stderr


def test_programs_of_an_unknown_mpi_run_as_they_would_have(tmp_path, accelerate):
    """Their calls reach their own library, with all arguments; messages name it, and say that nothing is counted."""
    needs.need("compiler", "mpich")
    for name, text in (("other", OTHER), ("user", USER)):
        (tmp_path / f"{name}.c").write_text(text)
    library, program = tmp_path / "libmpi.so.99", tmp_path / "user"
    shared = ["-shared", "-fPIC", f"-Wl,-soname,{library.name}"]
    subprocess.run(["cc", *shared, tmp_path / "other.c", "-o", library], check=True)
    subprocess.run(["cc", tmp_path / "user.c", library, f"-Wl,-rpath,{tmp_path}", "-o", program], check=True)
    done = accelerate(needs.MPIS["mpich"], "--replace", "--", program)
    assert (done.returncode, done.stdout) == (0, "5432\n")
    assert f"not counted: its MPI library {library} is neither MPICH, Open MPI nor" in done.stderr
    assert f"nothing is counted or changed: {program} uses {library}, which is no known MPI library" in done.stderr


def test_a_cache_that_cannot_be_written(tmp_path, accelerate):
    """The program runs, and the warning names the cache."""
    needs.need("compiler", "mpich")
    (tmp_path / "file").write_text("")
    done = accelerate(needs.MPIS["mpich"], "--", "sh", "-c", "echo yes", DOVETAIL_CACHE=str(tmp_path / "file"))
    assert (done.returncode, done.stdout) == (0, "yes\n")
    assert "cannot write to the cache" in done.stderr


def test_without_a_compiler_the_command_runs_as_it_is(tmp_path, accelerate):
    needs.need("mpich")
    bare = tmp_path / "bin"
    bare.mkdir()
    (bare / "sh").symlink_to("/bin/sh")
    done = accelerate(needs.MPIS["mpich"], "--", "sh", "-c", "echo yes; exit 4", PATH=str(bare))
    assert (done.returncode, done.stdout) == (4, "yes\n")
    assert "nothing is counted or changed: no C compiler" in done.stderr
