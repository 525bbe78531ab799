"""Ranks that a launcher of MPI has started join by init_process_group, as those of torchrun do."""

import json
import sys

import needs
import pytest

from dovetail.run.shared.environment import place_of

pytestmark = pytest.mark.needs("torch")
PROGRAM = needs.RANKS / "torch_joined.py"
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}


def test_mpiexec_on_one_host_needs_no_other_variables(mpi, monkeypatch):
    site = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    if mpi.name == "openmpi":
        monkeypatch.setenv("TORCH_SITE", str(needs.ROOT / ".venv" / site))
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    ran = mpi.run(2, PROGRAM, "all", timeout_s=100)
    found = [json.loads(line) for line in ran.stdout.replace("}{", "}\n{").splitlines() if line.startswith("{")]
    assert [each["passed"] for each in found] == [True, True], ran.stdout[-2000:] + ran.stderr[-2000:]
    assert {each["joined"] for each in found} == {"SharedRanks"}
    assert sorted((each["RANK"], each["LOCAL_RANK"]) for each in found) == [("0", "0"), ("1", "1")]
    assert ran.returncode == 0, ran.stderr[-2000:]


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        (MPICH, ["1", "2", "1", "2"]),
        (MPICH | {"RANK": "5", "WORLD_SIZE": "9"}, ["5", "9", None, None]),
        (MPICH | {"TORCHELASTIC_RUN_ID": "x"}, [None] * 4),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}, [None] * 4),  # a batch script
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1"}, ["3", "4", "1", None]),
        ({}, [None] * 4),
    ],
)
def test_only_a_launcher_of_mpi_fills_in(environ, wanted):
    from dovetail.torch.launchers import NAMES, fill_in

    found = dict(environ)
    fill_in(found)
    assert [found.get(name) for name in NAMES] == wanted


def test_variables_that_were_filled_in_hide_no_launcher(tmp_path, monkeypatch):
    monkeypatch.setenv("DOVETAIL_STORE", str(tmp_path / "store"))
    filled = MPICH | {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    assert place_of(filled).rank == 1
    other = MPICH | {"RANK": "3", "WORLD_SIZE": "4", "MASTER_PORT": "1"}  # torchrun in each rank of mpiexec
    assert place_of(other)[:2] == (3, 4)
    from dovetail.run.shared.environment import _by_precedence

    assert _by_precedence(filled)[1].name == "mpiexec of MPICH"
    assert _by_precedence(other)[1].name == "torchrun"
