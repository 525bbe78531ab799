"""Programs that are traced: compiled, started on ranks, and their traces."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import needs

from dovetail.trace import Trace, open_trace

SOURCE = needs.RANKS / "trace_program.c"
ONCE = (
    *("Init", "Finalize", "Sendrecv", "Startall", "Comm_split", "Bcast", "Gather", "Allgather", "Alltoallv", "Barrier"),
    *("Reduce_scatter_block", "Allreduce", "Iallreduce", "Cancel", "Cart_create", "Neighbor_allgather", "Win_create"),
    "Ineighbor_alltoall",
    *("Put", "Get", "Win_free", "Send_init", "Recv_init"),
)


def traced(
    mpi: needs.Mpi, folder: Path, ranks: int, *command: object, options: Sequence[str] = ()
) -> tuple[int, Trace]:
    """Trace a command on ranks, as a user does; its exit code and the trace."""
    words = ["trace", "run", "-o", str(folder), *options, "--", *mpi.mpiexec(ranks), *map(str, command)]
    python = [str(needs.MPIS["mpich"].python), "-m", "dovetail", *words]
    done = subprocess.run(python, env=mpi.env, capture_output=True, text=True, timeout=240, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    assert (folder / "trace.dovetail").exists(), done.stderr
    return done.returncode, open_trace(folder / "trace.dovetail").read()


def compiled(mpi, source: Path, target: Path) -> Path:
    built = subprocess.run(
        [mpi.mpicc, "-g", source, "-o", target], capture_output=True, text=True, env=mpi.env, check=False
    )
    assert built.returncode == 0, built.stderr
    return target
