"""collective: the front door for collective algorithms; a user's program of chunks becomes a certified Program."""

from dovetail.collective.algorithm import Algorithm
from dovetail.collective.algorithms import ALGORITHMS, algorithms_for, build, make_algorithm
from dovetail.collective.compile import PROTOCOLS, compile_traced
from dovetail.collective.ref import Ref
from dovetail.collective.spec import KINDS, Sizes, Spec, custom, spec_of

__all__ = [
    "ALGORITHMS",
    "KINDS",
    "PROTOCOLS",
    "Algorithm",
    "Ref",
    "Sizes",
    "Spec",
    "algorithms_for",
    "build",
    "compile_traced",
    "custom",
    "make_algorithm",
    "spec_of",
]
