"""loops: the language of nests: Python functions of loops over arrays, their dependences, and their C."""

from dovetail.loops.analysis.dependences import Dependence
from dovetail.loops.expressions import cos, exp, maximum, minimum, sin, sqrt, where
from dovetail.loops.nest import Nest, array, nest
from dovetail.loops.record import loop
from dovetail.loops.recording import Array

__all__ = [
    "Array",
    "Dependence",
    "Nest",
    "array",
    "cos",
    "exp",
    "loop",
    "maximum",
    "minimum",
    "nest",
    "sin",
    "sqrt",
    "where",
]
