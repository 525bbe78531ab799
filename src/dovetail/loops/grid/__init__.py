"""grid: what stencils, pipelines and tilings share: blocks of a grid, steps repeated, the base of operators."""
