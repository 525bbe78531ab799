"""recorder: record events from Python and MPI calls of unmodified programs, and launch traced programs."""
