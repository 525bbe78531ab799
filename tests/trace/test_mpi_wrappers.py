"""The wrappers of MPI calls, linked with a program and the recorder, run without reports under the sanitizers."""

from __future__ import annotations

import subprocess

import needs
import pytest
from sanitizers import ADDRESS, THREAD
from traced_programs import ONCE, SOURCE

from dovetail.trace import merge
from dovetail.trace.analysis.stats import stats
from dovetail.trace.recorder.mpi_wrappers import wrappers

FRAME = needs.ROOT / "native" / "trace" / "mpi"
NATIVE = needs.ROOT / "native" / "trace"
QUIET = {"ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "halt_on_error=1", "UBSAN_OPTIONS": "halt_on_error=1"}
QUIET |= {"UCX_MEM_EVENTS": "n"}  # UCX's hooks run in new threads before ThreadSanitizer knows these
QUIET |= {"PMIX_MCA_gds": "hash"}  # Open MPI's default maps memory at addresses that ThreadSanitizer uses
REPORTS = ("AddressSanitizer", "ThreadSanitizer", "runtime error")


def built(mpi, tmp_path, flags, change=lambda source: source):
    """Build the program that makes every call, with the wrappers and the recorder linked in."""
    needs.need("compiler")
    ask = [mpi.mpicc, "-E", "-x", "c", "-"]
    header = subprocess.run(ask, input="#include <mpi.h>\n", text=True, capture_output=True, check=True).stdout
    (tmp_path / "wrappers.c").write_text(change(wrappers(header)))
    sources = [tmp_path / "wrappers.c", *sorted(NATIVE.glob("*.c")), SOURCE]
    flags = [*flags, "-O0"]  # compiles faster, and no memory access is optimised away
    command = [mpi.mpicc, "-std=gnu11", "-g", *flags, f"-I{FRAME}", f"-I{NATIVE}", *sources, "-ldl", "-pthread"]
    done = subprocess.run(
        [*map(str, command), "-o", str(tmp_path / "program")], capture_output=True, text=True, env=mpi.env, check=False
    )
    if "cannot find -l" in done.stderr:
        pytest.skip("needs compiler: no sanitizer's library")
    assert done.returncode == 0, done.stderr[-3000:]
    return tmp_path / "program"


def ran(mpi, folder, *command):
    folder.mkdir()
    env = mpi.env | QUIET | {"DOVETAIL_TRACE_DIR": str(folder)}
    done = subprocess.run([*map(str, command)], env=env, capture_output=True, text=True, timeout=240, check=False)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("needs compiler: the kernel's address layout is not one that the sanitizer knows")
    return done


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.parametrize("flags", [ADDRESS, THREAD], ids=["address", "thread"])
def test_sanitizers_report_nothing(mpi, tmp_path, flags):
    program = built(mpi, tmp_path, flags)
    done = ran(mpi, tmp_path / "out", *mpi.mpiexec(2), program)
    assert not any(word in done.stderr for word in REPORTS), done.stderr[-4000:]
    assert done.returncode == 0, done.stderr[-4000:]
    found = {call.name: call.count for call in stats(merge(tmp_path / "out").read()).calls}
    assert all(found[f"MPI_{name}"] == 2 for name in ONCE if name != "Startall")


@pytest.mark.slow
@pytest.mark.mpi
def test_a_planted_fault_is_found(mpi, tmp_path):
    """The table of names is too short for MPI_Init; one process shows it, without a launcher that might hang."""
    short = ("enum { NUM_CALLS =", "enum { NUM_CALLS = 9, NUM_OTHERS =")
    program = built(mpi, tmp_path, ADDRESS, lambda source: source.replace(*short))
    done = ran(mpi, tmp_path / "out", program)
    assert "AddressSanitizer" in done.stderr or "runtime error" in done.stderr
