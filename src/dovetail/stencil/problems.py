"""problems: the shipped stencils as operators."""

from dovetail.loops import problems
from dovetail.stencil.operator import stencil_operator

Acoustic3d = stencil_operator(problems.acoustic3d)
Acoustic3d4 = stencil_operator(problems.acoustic3d_of(4))
Acoustic3d6 = stencil_operator(problems.acoustic3d_of(6))
Acoustic3d8 = stencil_operator(problems.acoustic3d_of(8))
Fdtd2d = stencil_operator(problems.fdtd2d)
Heat3d = stencil_operator(problems.heat3d)
Jacobi1d = stencil_operator(problems.jacobi1d)
Jacobi2d = stencil_operator(problems.jacobi2d)
Jacobi3d = stencil_operator(problems.jacobi3d)
Laplace2d = stencil_operator(problems.laplace2d)
RedBlack2d = stencil_operator(problems.red_black2d)
