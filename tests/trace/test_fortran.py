"""Fortran programs record their own intervals; each MPI call is traced once, with its place in the program."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import needs
import numpy as np
import pytest

from dovetail.trace import merge, open_trace
from dovetail.trace.analysis.matching import messages
from dovetail.trace.analysis.sites import call_sites
from dovetail.trace.analysis.stats import stats
from dovetail.trace.recorder.launch import trace_folder

SOURCE = needs.RANKS / "trace_program.f90"
OWN = """
program own
  use dovetail_trace
  use, intrinsic :: iso_c_binding, only: c_int64_t
  integer :: step, i
  character(4096) :: folder
  call get_command_argument(1, folder)
  if (trace_init(folder) /= 0) stop 1
  step = trace_name("step")
  do i = 1, 3
    call trace_begin(step, int(i, c_int64_t))
    call trace_point(trace_name("row"), -7_c_int64_t)
    call trace_end(step, 0_c_int64_t)
  end do
  call trace_off()
  call trace_point(step, 1_c_int64_t)
  call trace_finalize()
end program
"""
COUNTS = {"Init": 2, "Finalize": 2, "Isend": 10, "Irecv": 10, "Waitall": 10, "Send": 1, "Recv": 1, "Bcast": 2}
COUNTS |= {"Allreduce": 2, "Barrier": 2}


def ran(*command: object, **settings: str) -> None:
    done = subprocess.run(
        [*map(str, command)], env=os.environ | settings, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_intervals_and_points(tmp_path):
    needs.need("gfortran")
    (tmp_path / "own.f90").write_text(OWN)
    folder = trace_folder()
    flags = ["-J", tmp_path, f"-L{folder}", "-ldovetail_trace", f"-Wl,-rpath,{folder}"]
    ran("gfortran", folder / "dovetail_trace.f90", tmp_path / "own.f90", *flags, "-o", tmp_path / "own")
    ran(tmp_path / "own", tmp_path / "out")
    trace = merge(tmp_path / "out").read()
    col, steps = trace.columns, trace.of_kind("interval")
    assert trace.names == ("step", "row")
    assert col["arg"][steps].tolist() == [1, 2, 3]
    assert col["arg"][trace.of_kind("point")].tolist() == [-7] * 3


@pytest.fixture(params=["mpich", "openmpi"])
def fortran(request, tmp_path, monkeypatch):
    """The system's Fortran compiler for an MPI library, its launcher, and the launcher's further options."""
    needs.need("gfortran")
    monkeypatch.delenv("OMPI_MCA_btl", raising=False)  # names components of Open MPI 5; the system's may be 4
    for name in (f"mpifort.{request.param}", "mpifort"):
        path = shutil.which(name)
        mark = "MPICH" if request.param == "mpich" else "-lmpi"
        if path and (
            name != "mpifort" or mark in subprocess.run([path, "-show"], capture_output=True, text=True).stdout
        ):
            launcher = shutil.which(name.replace("mpifort", "mpiexec"))
            if launcher and has_modules(path, tmp_path):
                return path, launcher, ["--oversubscribe"] if request.param == "openmpi" else []
    pytest.skip(f"needs mpifort: the system has none for {request.param}")


def has_modules(compiler, place):
    """Whether MPI's Fortran modules are installed: Debian may install the compiler without them."""
    source = place / "modules.f90"
    source.write_text("use mpi\nuse mpi_f08\nend\n")
    return not subprocess.run([compiler, "-fsyntax-only", source], capture_output=True, cwd=place).returncode


@pytest.mark.mpi
@pytest.mark.parametrize("module", ["mpi", "mpi_f08"])
def test_every_call_is_traced_once_with_its_place(fortran, module, tmp_path):
    compiler, launcher, more = fortran
    program, folder = tmp_path / "program", tmp_path / "out"
    defined = ["-DUSE_F08"] if module == "mpi_f08" else []
    ran(compiler, "-cpp", "-g", *defined, SOURCE, "-o", program)
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = [launcher, *more, "-n", 2, program]
    ran(sys.executable, "-m", "dovetail", "trace", "run", "-o", folder, "--", *command, **root)
    trace = open_trace(folder / "trace.dovetail").read()
    assert {call.name: call.count for call in stats(trace).calls} == {f"MPI_{k}": n for k, n in COUNTS.items()}
    found = messages(trace)
    assert sorted(found.num_bytes.tolist()) == sorted([8, 16, 24, 32, 40] * 2 + [24])
    assert (found.received_row >= 0).all()
    rows = np.flatnonzero(trace.columns["part"] == 0)
    assert {site.split(":")[0] for site in call_sites(trace, rows) if site} == {"trace_program.f90"}
