"""The ranks of a test program: those that were started without MPI, else those of MPI."""

import time

from dovetail.run.shared.environment import is_rank

if is_rank():
    import dovetail as dt

    WORLD, UNDEFINED = dt.world(), None
else:
    from mpi4py import MPI

    WORLD, UNDEFINED = MPI.COMM_WORLD, MPI.UNDEFINED


def overlaps():
    """Whether several threads may call at once."""
    return is_rank() or MPI.Query_thread() == MPI.THREAD_MULTIPLE


def meet():
    """A barrier of all ranks that leaves the cores to those who still work."""
    if is_rank():
        WORLD.barrier()
        return
    waiting = WORLD.Ibarrier()
    while not waiting.Test():
        time.sleep(1e-3)
