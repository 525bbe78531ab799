"""recorder: what stamps the clock: events from Python, MPI calls of unmodified programs, and their launch."""
