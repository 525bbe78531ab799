"""matmul: the front door for matrix products with a collective: wish → Program."""

from dovetail.matmul.all_gather_matmul import AllGatherMatmul
from dovetail.matmul.all_to_all_matmul import AllToAllMatmul
from dovetail.matmul.kernels import MATMUL
from dovetail.matmul.matmul_all_reduce import MatmulAllReduce
from dovetail.matmul.matmul_all_to_all import MatmulAllToAll
from dovetail.matmul.matmul_reduce_scatter import MatmulReduceScatter
from dovetail.matmul.optimum import optimal
from dovetail.matmul.product import DTYPES, Product, shard
from dovetail.matmul.tiles import Tiling, mc2, pipeline_s, serial, uniform

__all__ = [
    "DTYPES",
    "MATMUL",
    "AllGatherMatmul",
    "AllToAllMatmul",
    "MatmulAllReduce",
    "MatmulAllToAll",
    "MatmulReduceScatter",
    "Product",
    "Tiling",
    "mc2",
    "optimal",
    "pipeline_s",
    "serial",
    "shard",
    "uniform",
]
