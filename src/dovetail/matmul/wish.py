"""What the user wants of a matrix product with a collective, before any schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dovetail.core import WishError, check_schema, parse_count
from dovetail.ir import Gemm, Slot, Work, Workload
from dovetail.matmul.kernels import MATMUL, work_of
from dovetail.passes.regions import split

DTYPES = ("float16", "bfloat16", "float32", "float64")
SCHEMA = "dovetail.wish.matmul_all_reduce/1"


def shard_k(k: int, ranks: int) -> tuple[int, ...]:
    """Columns of A (and rows of B) that each rank holds; sizes differ by at most 1 and may be 0.

    >>> shard_k(10, 4), shard_k(1, 2)
    ((3, 3, 2, 2), (1, 0))
    """
    return split(parse_count(k, "k"), parse_count(ranks, "ranks", least=1))


@dataclass(frozen=True)
class MatmulAllReduce:
    """C = A·B with A (m, k) and B (k, n) cut along k over the ranks; every rank wants all of C (m, n).

    Half types accumulate in float32; C and the messages have the input dtype. Any size may be 0. Raises WishError
    for negative or fractional sizes and other dtypes. Source: seed 000 (MatmulAllReduce of MC²).

    >>> MatmulAllReduce(4096, 3072, 8192, "float16").flops
    206158430208
    """

    m: int
    k: int
    n: int
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name in ("m", "k", "n"):
            object.__setattr__(self, name, parse_count(getattr(self, name), name))
        if self.dtype not in DTYPES:
            raise WishError(f"no matrix product of dtype {self.dtype!r}", hint=f"one of {', '.join(DTYPES)}")

    @property
    def flops(self) -> int:
        """Floating-point operations of the whole product, over all ranks."""
        return 2 * self.m * self.k * self.n

    def workload(self, ranks: int) -> Workload:
        """Sizes for `program(self, ranks, …)`: a slot of A is a row (k_r,), of P and C a row (n,), B is one slot."""
        shards = shard_k(self.k, ranks)
        row = (Slot((self.n,), self.dtype),) * len(shards)
        slots = {
            "A": tuple(Slot((k,), self.dtype) for k in shards),
            "B": tuple(Slot((k, self.n), self.dtype) for k in shards),
            "P": row,
            "C": row,
        }
        return Workload(slots, (MATMUL,))

    def works(self, ranks: int, rows: int = 1) -> tuple[Work, ...]:
        """What so many rows of the product cost each rank."""
        return tuple(work_of(Gemm(rows, k, self.n), self.dtype) for k in shard_k(self.k, ranks))

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "m": self.m, "k": self.k, "n": self.n, "dtype": self.dtype}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> MatmulAllReduce:
        check_schema(document, SCHEMA)
        try:
            return cls(document["m"], document["k"], document["n"], document["dtype"])
        except KeyError as error:
            raise WishError(f"malformed wish document: {error} is missing") from None
