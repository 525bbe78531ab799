"""loops: the front door for loop nests and stencils, and the theory by which they are tiled."""
