"""launchers: a process's rank by MPI's launchers, in the variables in which torch looks for it."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from typing import NamedTuple

TORCHRUN = "TORCHELASTIC_RUN_ID"


class Launcher(NamedTuple):
    """The variables in which a launcher sets a process's rank, the number of ranks, and both on its host."""

    rank: str
    ranks: str
    local_rank: str
    on_host: str


LAUNCHERS = (
    Launcher(
        *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
    ),
    Launcher("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    Launcher("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),  # a step of srun, not a batch script
)
NAMES = Launcher("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def launcher_of(environ: MutableMapping[str, str] = os.environ) -> Launcher | None:
    """Return the launcher of MPI that has started this process; None under torchrun, or if there was none."""
    if TORCHRUN in environ:
        return None
    return next((each for each in LAUNCHERS if each.rank in environ and each.ranks in environ), None)


def is_mpi_launched() -> bool:
    """Return whether MPI begins by a launcher of its own."""
    return launcher_of() is not None


def fill_in(environ: MutableMapping[str, str] = os.environ) -> None:
    """Set RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE where a launcher of MPI has started this process.

    >>> environ = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
    >>> fill_in(environ)
    >>> [environ[name] for name in NAMES]
    ['3', '4', '1', '2']
    """
    launcher = launcher_of(environ)
    if launcher is None or "RANK" in environ or "WORLD_SIZE" in environ:
        return
    for name, its in zip(NAMES, launcher, strict=True):
        if its in environ:
            environ.setdefault(name, environ[its])
