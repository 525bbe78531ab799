"""ranks: ranks in separate processes: a job's rank, communicators, and errors that are raised on all ranks."""
