"""grid: what stencils, pipelines and tilings share: blocks of a grid, repeated steps, the base class of operators."""
