"""run: execute Programs on real bytes and kernels. `reference` defines their meaning; native engines must equal it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dovetail.run.arrays import fresh_inputs, numpy_dtype
    from dovetail.run.check import check_outputs
    from dovetail.run.reference import Execution, execute
    from dovetail.run.timing import measure

__all__ = [
    "Execution",
    "check_outputs",
    "execute",
    "fresh_inputs",
    "measure",
    "numpy_dtype",
]

# Imported when first used: a rank limits BLAS's threads before NumPy loads (see run.mpi.rank).
_HOMES = {
    "arrays": ("fresh_inputs", "numpy_dtype"),
    "check": ("check_outputs",),
    "timing": ("measure",),
    "reference": ("Execution", "execute"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"dovetail.run.{home}"), name)
    raise AttributeError(f"module 'dovetail.run' has no attribute '{name}'")
