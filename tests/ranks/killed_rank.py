"""Run by ranks without MPI: one is killed, and the others, which wait for each other too, name it."""

import os
import signal
import sys

import numpy as np

import dovetail as dt
from dovetail.core import RunError

comm = dt.world()
held = np.ones(100_000)
dt.all_reduce(held, comm)
assert held.tolist() == [comm.size] * len(held)
if comm.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    comm.allgather(comm.rank)
except RunError as error:
    print(f"{type(error).__name__}: {error}", flush=True)
try:
    dt.all_reduce(held, comm)
except RunError as error:
    sys.exit("rank 1 has died" not in str(error))
sys.exit("no error")
