"""pylops-mpi: a least-squares problem of blocks, one or more a rank, solved by 200 iterations of cgls."""

import sys

from mpi4py import MPI  # first: what pylops-mpi imports may leave MPI's initialization to others

# isort: split
import numpy as np
import pylops
import pylops_mpi

count = int(sys.argv[1])
rng = np.random.default_rng(MPI.COMM_WORLD.rank)
block = pylops.MatrixMult(rng.standard_normal((count, count)) + count * np.eye(count))
operator = pylops_mpi.MPIBlockDiag(ops=[block])
known = pylops_mpi.DistributedArray(global_shape=count * MPI.COMM_WORLD.size)
known[:] = rng.standard_normal(count)
first = pylops_mpi.DistributedArray(global_shape=count * MPI.COMM_WORLD.size)
first[:] = 0.0
found = pylops_mpi.cgls(operator, operator @ known, x0=first, niter=200, tol=0.0)[0]
error = (found - known).norm()
if MPI.COMM_WORLD.rank == 0:
    print(f"error {float(np.ravel(error)[0]):.1e} of {MPI.COMM_WORLD.size} blocks")
