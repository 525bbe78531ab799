"""run: real bytes and kernels. `reference` defines what a Program means; the native engines must equal it."""

from dovetail.run.arrays import fresh_inputs, numpy_dtype
from dovetail.run.check import Agreement, Reference, max_rel_error
from dovetail.run.kernels import KernelCall, builtin_kernels
from dovetail.run.reference import Execution, execute

__all__ = [
    "Agreement",
    "Execution",
    "KernelCall",
    "Reference",
    "builtin_kernels",
    "execute",
    "fresh_inputs",
    "max_rel_error",
    "numpy_dtype",
]
