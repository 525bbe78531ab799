"""stencils: the shipped stencils as wishes."""

from dovetail.loops import problems
from dovetail.loops.wish import stencil_wish

acoustic3d = stencil_wish(problems.acoustic3d)
fdtd2d = stencil_wish(problems.fdtd2d)
heat3d = stencil_wish(problems.heat3d)
jacobi1d = stencil_wish(problems.jacobi1d)
jacobi2d = stencil_wish(problems.jacobi2d)
jacobi3d = stencil_wish(problems.jacobi3d)
laplace2d = stencil_wish(problems.laplace2d)
red_black2d = stencil_wish(problems.red_black2d)
