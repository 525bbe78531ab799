"""matmul: the front door for matrix products with a collective: wish → Program.

The calls on arrays (`all_gather_matmul(a, b, comm)` and its kin) live in `dovetail.comm`, and are offered here too.
"""

from typing import Any

from dovetail.matmul.all_gather import AllGatherMatmul
from dovetail.matmul.all_gather_columns import AllGatherColumnsMatmul
from dovetail.matmul.all_reduce import MatmulAllReduce
from dovetail.matmul.all_to_all_first import AllToAllMatmul
from dovetail.matmul.all_to_all_last import MatmulAllToAll
from dovetail.matmul.alone import ProductAlone
from dovetail.matmul.kernels import MATMUL
from dovetail.matmul.optimum import optimal
from dovetail.matmul.product import DTYPES, Product, RankArguments, shard
from dovetail.matmul.reduce_scatter import MatmulReduceScatter
from dovetail.matmul.tiles import Tiling, mc2, pipeline_s, serial, uniform
from dovetail.supply import CALLS

__all__ = [
    "DTYPES",
    "MATMUL",
    "AllGatherColumnsMatmul",
    "AllGatherMatmul",
    "AllToAllMatmul",
    "MatmulAllReduce",
    "MatmulAllToAll",
    "MatmulReduceScatter",
    "Product",
    "ProductAlone",
    "RankArguments",
    "Tiling",
    "mc2",
    "optimal",
    "pipeline_s",
    "serial",
    "shard",
    "uniform",
]

_CALLS = {kind.name for kind in globals().values() if isinstance(kind, type) and issubclass(kind, Product)}
__all__ += sorted(_CALLS)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in _CALLS:
        raise AttributeError(f"module 'dovetail.matmul' has no attribute '{name}'")
    found = globals()[name] = CALLS[name]
    return found
