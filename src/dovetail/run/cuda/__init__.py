"""cuda: a CUDA device: its memory, Programs on streams or in one kernel, and jobs on it."""
