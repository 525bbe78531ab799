"""Problems: nests and stencils that come with Dovetail, a file each, written as a user would."""

from dovetail.loops.problems.acoustic3d import acoustic3d, acoustic3d_of
from dovetail.loops.problems.fdtd2d import fdtd2d
from dovetail.loops.problems.gauss_seidel2d import gauss_seidel2d
from dovetail.loops.problems.heat3d import heat3d
from dovetail.loops.problems.jacobi1d import jacobi1d
from dovetail.loops.problems.jacobi2d import jacobi2d
from dovetail.loops.problems.jacobi3d import jacobi3d
from dovetail.loops.problems.laplace2d import laplace2d
from dovetail.loops.problems.lcs import lcs
from dovetail.loops.problems.red_black2d import red_black2d
from dovetail.loops.problems.seidel1d import seidel1d
from dovetail.loops.problems.seidel2d import seidel2d
from dovetail.loops.problems.smith_waterman import smith_waterman
from dovetail.loops.problems.sor2d import sor2d
from dovetail.loops.problems.ssor2d import ssor2d
from dovetail.loops.problems.sync_p2p import sync_p2p
from dovetail.loops.problems.triple_nest import triple_nest

__all__ = [
    "acoustic3d",
    "acoustic3d_of",
    "fdtd2d",
    "gauss_seidel2d",
    "heat3d",
    "jacobi1d",
    "jacobi2d",
    "jacobi3d",
    "laplace2d",
    "lcs",
    "red_black2d",
    "seidel1d",
    "seidel2d",
    "smith_waterman",
    "sor2d",
    "ssor2d",
    "sync_p2p",
    "triple_nest",
]
