"""stencil: nests that update a grid step by step, as programs that exchange ghost rows."""
