"""shared: ranks that are processes of one host and exchange messages through shared memory, without MPI."""
