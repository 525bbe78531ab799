"""Least squares by conjugate gradients, its rows spread over the ranks: `least_squares.py TIMES`."""

import sys

import numpy as np
import pylops
import pylops_mpi
from mpi4py import MPI

comm = MPI.COMM_WORLD
rng = np.random.default_rng(comm.rank)
n, m = 400, 300
A = rng.normal(size=(n, m))
op = pylops_mpi.MPIVStack([pylops.MatrixMult(A)])
x = pylops_mpi.DistributedArray(global_shape=m, partition=pylops_mpi.Partition.BROADCAST)
x[:] = np.random.default_rng(9).normal(size=m)
y = op @ x
x0 = pylops_mpi.DistributedArray(global_shape=m, partition=pylops_mpi.Partition.BROADCAST)
x0[:] = 0
for _ in range(int(sys.argv[1])):
    found = pylops_mpi.cgls(op, y, x0=x0, niter=60, tol=0)[0]
if comm.rank == 0:
    print("residual", repr(float(np.abs(found.local_array - x.local_array).max())))
