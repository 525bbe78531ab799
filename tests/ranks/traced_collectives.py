"""Run by every rank of an MPI: five collectives of dovetail, the later ones served by a Program of ours."""

import numpy as np
from mpi4py import MPI

import dovetail as dc
from dovetail.call import use
from dovetail.store.selection import Row, Selection

COMM = MPI.COMM_WORLD
use(COMM, Selection({}, (Row("all_reduce", COMM.size, 1, 0, 1 << 30, "ring_all_reduce"),)))
for _ in range(5):
    assert (dc.all_reduce(np.full(1000, COMM.rank, "float32"), COMM) == sum(range(COMM.size))).all()
