"""mpi: real ranks: the launcher, one rank of a job, communicators, and faults that all ranks hear of."""
