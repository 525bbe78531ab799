"""stencil: loop nests that update a grid step by step, as programs whose ranks exchange ghost rows."""
