"""code: run a nest by compiled C, by NumPy or by the user's own function, and the memory that a call needs."""
