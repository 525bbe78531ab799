"""matmul: operators that combine a matrix product with a collective, and their Programs."""

from dovetail.matmul.all_gather import AllGatherMatmul
from dovetail.matmul.all_gather_columns import AllGatherColumnsMatmul
from dovetail.matmul.all_reduce import MatmulAllReduce
from dovetail.matmul.all_to_all_first import AllToAllMatmul
from dovetail.matmul.all_to_all_last import MatmulAllToAll
from dovetail.matmul.alone import ProductAlone
from dovetail.matmul.kernels import MATMUL
from dovetail.matmul.optimum import optimal
from dovetail.matmul.product import DTYPES, Product, shard
from dovetail.matmul.reduce_scatter import MatmulReduceScatter
from dovetail.matmul.tiles import Tiling, mc2, pipeline_s, serial, uniform

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
    "Tiling",
    "mc2",
    "optimal",
    "pipeline_s",
    "serial",
    "shard",
    "uniform",
]
