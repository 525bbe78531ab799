"""matmul: the front door for matrix products with a collective: wish → Program."""

from dovetail.matmul.schedule import program
from dovetail.matmul.wish import DTYPES, MatmulAllReduce, shard_k

__all__ = ["DTYPES", "MatmulAllReduce", "program", "shard_k"]
