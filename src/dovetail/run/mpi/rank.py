"""rank: the command of each rank of an MPI job: `python -m dovetail.run.mpi.rank JOB_FOLDER SHIM LEVEL [TRACE_FOLDER]`.

LEVEL: the thread support to ask MPI for, one of `run.options.LEVELS`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from dovetail.run.ranks.heartbeat import Pulse


def use_own_cores() -> None:
    """Limit this rank's BLAS to its share of the host's cores, unless the user set a limit. Call before NumPy loads."""
    names = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "DOVETAIL_LOCAL_RANKS")
    on_host = next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()), 1)
    cores = max(1, len(os.sched_getaffinity(0)) // max(1, on_host))
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, str(cores))


if __name__ == "__main__":
    use_own_cores()
    with Pulse(Path(sys.argv[1])) as pulse:
        from dovetail.run.ranks.library import Shim
        from dovetail.run.ranks.worker import serve
        from dovetail.run.ranks.world import World

        folder, shim, level, *trace = sys.argv[1:]
        world = World(Shim(Path(shim)), level=level)  # type: ignore[arg-type]  # MpiExecutor passes a valid one
        code = serve(folder, world, pulse, *trace)
    sys.exit(code)
