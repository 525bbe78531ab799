"""Each process finds out its own MPI library: launchers in scripts, several libraries in one command, none at all."""

from __future__ import annotations

import subprocess

import needs
import pytest

from dovetail.cli import main
from dovetail.trace import open_trace
from dovetail.trace.analysis.stats import stats

PYTHON = """
from mpi4py import MPI
MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, bytearray(8))  # mpi4py calls MPI_Allreduce_c if the library has it
MPI.Request.Waitall([])
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The small program for each MPI library, beside its substitute for the library's Fortran interface."""
    found = {}
    for name in ("mpich", "openmpi"):
        mpi, place = needs.mpi(name), tmp_path_factory.mktemp(name)
        entries, target = place / "libentries.so", place / "small"
        flags = {entries: ["-shared", "-fPIC", needs.RANKS / "trace_fortran_entries.c"]}
        flags[target] = [needs.RANKS / "trace_small.c", entries, f"-Wl,-rpath,{place}"]
        for made, command in flags.items():
            built = subprocess.run([mpi.mpicc, *command, "-o", made], capture_output=True, text=True, env=mpi.env)
            assert built.returncode == 0, built.stderr
        found[name] = target
    return found


def traced(mpi, folder, *command, options=()):
    """Run `trace run` in an environment with `mpi`; return its output and the counts of calls."""
    words = [needs.MPIS["mpich"].python, "-m", "dovetail", "trace", "run", "-o", folder, *options, "--", *command]
    env = needs.MPIS["openmpi"].env | {"PATH": mpi.env["PATH"]}
    done = subprocess.run(
        [*map(str, words)], env=env, cwd=folder.parent, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    found = open_trace(folder / "trace.dovetail")
    return done, found.num_ranks, {c.name.removesuffix("_c"): c.count for c in stats(found).calls}


@pytest.mark.mpi
@pytest.mark.parametrize("here", ["mpich", "openmpi"])
def test_a_script_that_launches_each_mpi(programs, tmp_path, here):
    """The command names neither launcher, and one is of another MPI than the environment's. Nothing else is printed."""
    mpich, openmpi = needs.MPIS["mpich"], needs.MPIS["openmpi"]
    (tmp_path / "program.py").write_text(PYTHON)
    lines = [
        [*mpich.mpiexec(2), programs["mpich"], 3],
        [*openmpi.mpiexec(2), programs["openmpi"], 3],
        [openmpi.python, tmp_path / "program.py"],
        ["test", '"$$(echo a b | wc -w)"', "=", "2"],
    ]
    (tmp_path / "Makefile").write_text("all:\n" + "".join(f"\t@{' '.join(map(str, line))}\n" for line in lines))
    command = ["make", "-s"] if here == "mpich" else ["sh", "-c", f"make -s -f {tmp_path}/Makefile"]
    done, ranks, found = traced(needs.MPIS[here], tmp_path / "out", *command)
    assert done.stdout == "2\n2\n"
    assert ranks == 5
    assert found["MPI_Allreduce"] == 5
    assert found["MPI_Waitall"] == 4 * 2 * 3 + 1  # called from Fortran, with no request and with a null request
    assert found["MPI_Finalize"] == 5


@pytest.mark.mpi
def test_one_mpi_is_chosen_by_an_option(programs, tmp_path):
    """Programs of the other MPI run untraced, without a warning."""
    both = f"{programs['mpich']} && {programs['openmpi']}"
    for options in (["--mpi", "mpich"], ["--mpi", str(needs.MPIS["mpich"].mpicc)]):
        folder = tmp_path / str(len(options[1]))
        done, ranks, found = traced(needs.MPIS["openmpi"], folder, "sh", "-c", both, options=options)
        assert (done.stdout, ranks, found["MPI_Allreduce"]) == ("1\n1\n", 1, 1)
        assert "not traced" not in done.stderr


def test_a_program_without_a_trace_is_reported(tmp_path, capfd):
    needs.need("compiler")
    out = tmp_path / "out"
    assert main(["trace", "run", "-o", str(out), "--", "/bin/true"]) == 2
    assert "no process left a trace" in capfd.readouterr().err
    assert main(["trace", "run", "-o", str(out), "--", "sh", "-c", "echo yes; exit 3"]) == 3
    reported = capfd.readouterr()
    assert (reported.out, "exit code 3 before any process" in reported.err) == ("yes\n", True)
    assert main(["trace", "run", "-o", str(out), "--mpi", "lam", "--", "/bin/true"]) == 2
    assert "--mpi lam names no MPI" in capfd.readouterr().err
    assert main(["trace", "run", "-o", str(out), "--"]) == 2
    assert "no command to trace" in capfd.readouterr().err
    assert list(out.iterdir()) == []


OTHER = """
int MPI_Init(int* argc, char*** argv) { return (long)argc == 1 && (long)argv == 2 ? 40 : 0; }
int PMPI_Comm_rank(int comm, int* rank) { return comm + (rank != 0); }
"""
LIBRARY = """
extern int MPI_Startall_c(long, void*) __attribute__((weak));
int library_has(void) { return MPI_Startall_c != 0; }
"""
USER = """
extern int MPI_Init(int*, char***);
extern int MPI_Startall_c(long, void*) __attribute__((weak));
extern int library_has(void);
int main(void) { return MPI_Init((int*)1, (char***)2) + (MPI_Startall_c ? 1 : 2) + 4 * library_has(); }
"""


def test_programs_of_an_unknown_mpi_run_untraced(tmp_path, capfd):
    """A message says that they are not traced. A call that their MPI lacks stays undefined with the gate loaded.

    It is the last undefined symbol of the library, and one among others of the program.
    """
    needs.need("compiler")
    for name, text in (("other", OTHER), ("uses", LIBRARY), ("user", USER)):
        (tmp_path / f"{name}.c").write_text(text)
    library, uses, program = tmp_path / "libmpi.so.99", tmp_path / "libuses.so", tmp_path / "user"
    shared = ["cc", "-shared", "-fPIC"]
    subprocess.run([*shared, f"-Wl,-soname,{library.name}", tmp_path / "other.c", "-o", library], check=True)
    subprocess.run([*shared, "-nostdlib", "-Wl,--hash-style=gnu", tmp_path / "uses.c", "-o", uses], check=True)
    subprocess.run(["cc", tmp_path / "user.c", library, uses, f"-Wl,-rpath,{tmp_path}", "-o", program], check=True)
    assert main(["trace", "run", "-o", str(tmp_path / "out"), "--", str(program)]) == 42
    reported = capfd.readouterr()
    assert f"not traced: its MPI library {library} is neither" in reported.err
    assert reported.out == ""
