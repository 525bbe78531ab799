"""matmul: the front door for matrix products with a collective: wish → Program."""

from dovetail.matmul.kernels import MATMUL
from dovetail.matmul.schedule import AllReduce, program
from dovetail.matmul.wish import DTYPES, MatmulAllReduce, shard_k

__all__ = ["DTYPES", "MATMUL", "AllReduce", "MatmulAllReduce", "program", "shard_k"]
