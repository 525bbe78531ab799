"""mpi: the executor that starts ranks with an MPI launcher, and the command of each of its ranks."""
