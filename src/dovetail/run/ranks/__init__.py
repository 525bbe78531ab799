"""ranks: ranks in processes of their own: a rank of a job, communicators, and faults that all ranks hear of."""
