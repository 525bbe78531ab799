"""environment: which rank this process is, and where it meets the others, from variables that its launcher has set."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dovetail.core import EnvironmentFault
from dovetail.core.cache import cache_dir
from dovetail.run.shared.stores import FileStore, SocketStore, Store

HINT = "start ranks by `dovetail launch`, torchrun, mpiexec or srun, or set DOVETAIL_RANK, _RANKS and _STORE"


class Launcher(NamedTuple):
    """The variables in which a launcher sets a process's rank, the number of ranks, and how many are on this host."""

    name: str
    rank: str
    ranks: str
    on_host: tuple[str, ...] = ()


TORCHRUN = Launcher("torchrun", "RANK", "WORLD_SIZE", ("LOCAL_WORLD_SIZE",))
LAUNCHERS = (
    Launcher("dovetail launch", "DOVETAIL_RANK", "DOVETAIL_RANKS"),
    TORCHRUN,
    Launcher("mpiexec of Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ("OMPI_COMM_WORLD_LOCAL_SIZE",)),
    Launcher("mpiexec of MPICH", "PMI_RANK", "PMI_SIZE", ("MPI_LOCALNRANKS",)),
    Launcher("srun", "SLURM_PROCID", "SLURM_NTASKS"),
)


class Place(NamedTuple):
    """This process's rank, the number of ranks, and where they meet."""

    rank: int
    size: int
    store: Store


def place_of(environ: Mapping[str, str] = os.environ) -> Place:
    """Return the place of this process among the ranks of its launcher.

    Raises
    ------
    EnvironmentFault
        If no launcher has started it, if the launcher's variables name no valid rank, or if ranks are on several hosts.
    """
    for launcher in _by_precedence(environ):
        if launcher.rank in environ and launcher.ranks in environ:
            rank, size = _number(environ, launcher.rank), _number(environ, launcher.ranks)
            if not rank < size:
                what = f"{launcher.rank}={rank} of {size} ranks does not exist: ranks count from 0"
                raise EnvironmentFault(what, hint=HINT)
            _check_host(environ, launcher, size)
            return Place(rank, size, _store(environ, launcher, rank))
    raise EnvironmentFault("this process is no rank: no launcher has set its rank", hint=HINT)


def _by_precedence(environ: Mapping[str, str]) -> list[Launcher]:
    """Return the launchers. One of MPI comes before torchrun if torchrun's variables only repeat its own.

    `dovetail.torch` sets torchrun's variables from those of MPI's launcher, in each process by itself.
    """

    def repeated(launcher: Launcher) -> bool:
        pairs = (launcher.rank, TORCHRUN.rank), (launcher.ranks, TORCHRUN.ranks)
        return launcher is not TORCHRUN and all(environ.get(its, "") == environ.get(name) for its, name in pairs)

    first = [launcher for launcher in LAUNCHERS if launcher.name == "dovetail launch" or repeated(launcher)]
    return [*first, *(launcher for launcher in LAUNCHERS if launcher not in first)]


def is_rank(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether this process was started as a rank without MPI, by `dovetail launch` or with its variables set."""
    return LAUNCHERS[0].rank in environ


def _number(environ: Mapping[str, str], name: str) -> int:
    if not environ[name].isdecimal():
        raise EnvironmentFault(f"{name}={environ[name]} is not a number", hint=HINT)
    return int(environ[name])


def _check_host(environ: Mapping[str, str], launcher: Launcher, size: int) -> None:
    """Raise EnvironmentFault where only some of the ranks are on this host."""
    counts = [int(environ[name]) for name in launcher.on_host if environ.get(name, "").isdecimal()]
    nodes = environ.get("SLURM_STEP_NUM_NODES", environ.get("SLURM_NNODES", "1"))
    if any(count != size for count in counts) or (launcher.name == "srun" and nodes != "1"):
        found = f"{counts[0]} of {size} ranks are on this one" if counts else f"{nodes} hosts"
        what = "ranks without MPI are processes of one host"
        raise EnvironmentFault(what, found=found, hint="ranks of several hosts meet by MPI: mpi4py.MPI.COMM_WORLD")


def _store(environ: Mapping[str, str], launcher: Launcher, rank: int) -> Store:
    if given := environ.get("DOVETAIL_STORE"):
        return FileStore(Path(given))
    if launcher.name == "torchrun" and "TORCHELASTIC_RUN_ID" not in environ and "MASTER_PORT" in environ:
        address = environ.get("MASTER_ADDR", "127.0.0.1"), _number(environ, "MASTER_PORT")
        return SocketStore(address, rank == 0, FileStore(_own_folder() / f"port-{address[1]}"))
    turn = environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # the same launcher starts ranks anew after a failure
    return FileStore(_own_folder() / f"{_started_by(launcher.rank)}-{turn}")


def _own_folder() -> Path:
    """Return a folder that all ranks of this user find, and that no other user can write or remove.

    If another user already has that name in /tmp, the ranks meet below the home directory.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    folder = Path(tempfile.gettempdir()) / f"dovetail-{os.geteuid()}"
    if runtime and os.access(runtime, os.W_OK):
        folder = Path(runtime) / "dovetail"
    elif folder.is_symlink() or (folder.exists() and folder.stat().st_uid != os.geteuid()):
        folder = cache_dir("ranks")
    with suppress(OSError):  # the store reports what is wrong with it
        folder.mkdir(0o700, parents=True)
        folder.chmod(0o700)  # whatever the umask
    return folder


def _started_by(variable: str) -> str:
    """Return the launcher's process id and start time, which only the ranks of this launcher have in common.

    The launcher is the nearest ancestor without the rank's variable: shells between it and the rank have the variable.
    """
    pid = os.getppid()
    while pid > 1 and _has(pid, variable):
        pid = _parent(pid)
    return f"{pid}-{_stat(pid)[19]}"


def _has(pid: int, variable: str) -> bool:
    """Return whether a process began with this variable; False for another user's process, which cannot be read."""
    try:
        found = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(each.startswith(variable.encode() + b"=") for each in found)


def _parent(pid: int) -> int:
    return int(_stat(pid)[1])


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third, the state, on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
