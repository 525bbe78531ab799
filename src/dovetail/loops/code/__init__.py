"""code: a nest run: C, NumPy, the user's own function, and the memory of a call."""
