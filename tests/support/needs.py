"""What a test may need of the machine; a test without it skips, naming the cause, and CI fails where it promised it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GOLDEN, RANKS, SUPPORT = (ROOT / "tests" / name for name in ("golden", "ranks", "support"))
SHARED = ROOT.parent / "shared"
PROMISED = frozenset(filter(None, os.environ.get("DOVETAIL_REQUIRE", "").split(",")))


@dataclass(frozen=True)
class Mpi:
    """An MPI environment: `python` has dovetail and mpi4py, `mpiexec` starts its ranks, `mpicc` compiles for it."""

    name: str
    bin: Path

    @property
    def python(self) -> Path:
        return self.bin / "python"

    @property
    def mpicc(self) -> Path:
        return self.bin / "mpicc"

    def mpiexec(self, num_ranks: int) -> list[str]:
        """The launching prefix; more ranks than cores are allowed."""
        return [
            str(self.bin / "mpiexec"),
            *(["--oversubscribe"] if self.name == "openmpi" else []),
            "-n",
            str(num_ranks),
        ]

    @property
    def env(self) -> dict[str, str]:
        """The environment variables to launch in: its tools and tests/support first on their paths, root allowed."""
        paths = [str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])]
        ours = {"PATH": f"{self.bin}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(paths)}
        if self.name == "openmpi":
            ours |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return os.environ | ours

    def run(self, num_ranks: int, *args: object, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
        """Run `python args…` on ranks, with its output captured; the caller judges the exit code."""
        command = [*self.mpiexec(num_ranks), str(self.python), *map(str, args)]
        return subprocess.run(command, env=self.env, text=True, capture_output=True, timeout=timeout_s, check=False)


MPIS = {"mpich": Mpi("mpich", Path(sys.prefix) / "bin"), "openmpi": Mpi("openmpi", ROOT / ".venv-openmpi" / "bin")}


def mpi(name: str) -> Mpi:
    """The MPI environment `name`, or a skip."""
    need(name)
    return MPIS[name]


def need(*causes: str) -> None:
    """Skip the running test, naming the cause, unless the machine has all of `causes`."""
    for cause in causes:
        if (why := missing(cause)) is not None:
            pytest.skip(f"needs {cause}: {why}")


@cache
def missing(cause: str) -> str | None:
    """Why the machine lacks `cause`, or None where it has it."""
    return CAUSES[cause]()


def _mpi_missing(name: str) -> str | None:
    at = MPIS[name]
    absent = [tool for tool in ("mpiexec", "mpicc", "python") if not (at.bin / tool).exists()]
    return f"no {absent[0]} in {at.bin}" if absent else None


def _tc_missing() -> str | None:
    """Shape a link in a network namespace of its own, as the testbed does."""
    if absent := [tool for tool in ("ip", "tc", "unshare") if shutil.which(tool) is None]:
        return f"no {absent[0]} command"
    shape = "ip link add name a type veth peer name b && tc qdisc add dev a root tbf rate 1mbit burst 16kb latency 50ms"
    tried = subprocess.run(["unshare", "--net", "sh", "-c", shape], capture_output=True, text=True, check=False)
    return tried.stderr.strip() if tried.returncode else None


def _module_missing(name: str) -> str | None:
    return None if importlib.util.find_spec(name) else f"no module {name}"


def _cuda_missing() -> str | None:
    """Whether Dovetail was built for CUDA, whatever devices there are."""
    return None if importlib.util.find_spec("dovetail._native._cuda") else "no nvcc when Dovetail was built"


CAUSES: dict[str, Callable[[], str | None]] = {
    "root": lambda: None if os.geteuid() == 0 else "not the root user",
    "tc": _tc_missing,
    "proc": lambda: None if Path("/proc/stat").exists() else "no /proc/stat",
    "compiler": lambda: None if shutil.which("cc") or shutil.which("gcc") else "no C compiler",
    "gfortran": lambda: None if shutil.which("gfortran") else "no gfortran command",
    "mpifort": lambda: None if shutil.which("mpifort") else "no mpifort command",
    "mpich": lambda: _mpi_missing("mpich"),
    "openmpi": lambda: _mpi_missing("openmpi"),
    "shared": lambda: None if SHARED.is_dir() else "no ../shared folder",
    **{name: partial(_module_missing, name) for name in ("torch", "expecttest", "cupy", "jax")},
    "chromium": lambda: None if shutil.which("chromium") else "no chromium command",
    "cuda": _cuda_missing,
    "no_gpu": lambda: "there is one" if shutil.which("nvidia-smi") else None,
    "gpu": lambda: None if shutil.which("nvidia-smi") else "no CUDA device",
}
