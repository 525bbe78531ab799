"""matmul: the front door for matrix products with a collective: wish → Program."""

from dovetail.matmul.all_reduce import MatmulAllReduce
from dovetail.matmul.optimum import optimal
from dovetail.matmul.product import DTYPES, Product, shard
from dovetail.matmul.tiles import Tiling, mc2, pipeline_s, serial, uniform

__all__ = [
    "DTYPES",
    "MatmulAllReduce",
    "Product",
    "Tiling",
    "mc2",
    "optimal",
    "pipeline_s",
    "serial",
    "shard",
    "uniform",
]
