"""stencils: the shipped stencils as wishes."""

from dovetail.loops import problems
from dovetail.loops.wish import stencil_wish

Acoustic3d = stencil_wish(problems.acoustic3d)
Acoustic3d4 = stencil_wish(problems.acoustic3d_of(4))
Acoustic3d6 = stencil_wish(problems.acoustic3d_of(6))
Acoustic3d8 = stencil_wish(problems.acoustic3d_of(8))
Fdtd2d = stencil_wish(problems.fdtd2d)
Heat3d = stencil_wish(problems.heat3d)
Jacobi1d = stencil_wish(problems.jacobi1d)
Jacobi2d = stencil_wish(problems.jacobi2d)
Jacobi3d = stencil_wish(problems.jacobi3d)
Laplace2d = stencil_wish(problems.laplace2d)
RedBlack2d = stencil_wish(problems.red_black2d)
