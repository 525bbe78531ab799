"""balance: sizes whose compute and communication take about as long on this machine, found in a second or two."""

from __future__ import annotations

from typing import NamedTuple

from dovetail.core import WishError
from dovetail.matmul import MatmulAllReduce
from dovetail.probe import programs
from dovetail.probe.take import take
from dovetail.run.job import Executor
from dovetail.run.options import RunOptions

SIDE_S = 0.06  # of either side: long beside what starting it costs, short enough to be run a hundred times
PILOT = MatmulAllReduce(512, 1024, 512)  # a rank of two has 512 columns of A
PILOT_BYTES = 1 << 20
MOST_BYTES = 32 << 20  # of C
ROWS, BLOCK = 2048, 64  # of C: so many rows, and columns in whole blocks
LEAST_K, MOST_K = 8, 1 << 16  # columns of A on a rank


class Balanced(NamedTuple):
    """A wish for `ranks` ranks, and the seconds of its product and of its all_reduce, each whole and alone."""

    wish: MatmulAllReduce
    ranks: int
    compute_s: float
    comm_s: float


def balanced(executor: Executor, ranks: int, dtype: str = "float32") -> Balanced:
    """The operator to try first: neither side hides all of the other for free, nor can it hide nothing.

    Raises WishError for one rank, which has nothing to communicate.
    """
    if ranks < 2:
        raise WishError("one rank has no communication to balance with", hint="name --m, --k and --n, or more --ranks")
    pilot = MatmulAllReduce(PILOT.m, PILOT.k // 2 * ranks, PILOT.n, dtype)
    compute_s, comm_s = sides_s(executor, ranks, pilot, PILOT_BYTES)
    guess = sized(ranks, dtype, flops(pilot, ranks) / compute_s, PILOT_BYTES / comm_s)
    compute_s, comm_s = sides_s(executor, ranks, guess, bytes_of(guess))
    wish = sized(ranks, dtype, flops(guess, ranks) / compute_s, bytes_of(guess) / comm_s)
    return Balanced(wish, ranks, *sides_s(executor, ranks, wish, bytes_of(wish)))


def sides_s(executor: Executor, ranks: int, wish: MatmulAllReduce, num_bytes: int) -> tuple[float, float]:
    """Median seconds of a rank's product, and of the library's all_reduce of so many bytes."""
    product = programs.matmul_rows(wish, ranks, wish.m, 1, RunOptions())
    reduced = programs.all_reduce(ranks, num_bytes, 1 + 1)  # from the end of one to the end of the next
    found = take(executor, [product, reduced])
    return float(found[product.key].medians[0]), float(found[reduced.key].medians[0])


def sized(ranks: int, dtype: str, flop_per_s: float, bytes_per_s: float) -> MatmulAllReduce:
    """The wish of which either side takes SIDE_S at these speeds of a rank and of the all_reduce.

    >>> sized(2, "float32", 110e9, 118e6)
    MatmulAllReduce(m=2048, k=3728, n=896, dtype='float32')
    >>> sized(2, "float32", 110e9, 11.8e6)
    MatmulAllReduce(m=2752, k=37296, n=64, dtype='float32')
    """
    row_bytes = bytes_of(MatmulAllReduce(1, 1, 1, dtype))
    elements = min(SIDE_S * bytes_per_s, MOST_BYTES) / row_bytes
    n = whole(elements / ROWS, BLOCK)
    m = ROWS if n > BLOCK else whole(elements / n, BLOCK)
    comm_s = m * n * row_bytes / bytes_per_s
    k = min(whole(comm_s * flop_per_s / (2 * m * n), LEAST_K), MOST_K)
    return MatmulAllReduce(m, k * ranks, n, dtype)


def whole(count: float, block: int) -> int:
    """The nearest number of whole blocks, at least one."""
    return max(round(count / block), 1) * block


def flops(wish: MatmulAllReduce, ranks: int) -> float:
    """Of one rank's product."""
    return 2.0 * wish.m * wish.n * wish.k / ranks


def bytes_of(wish: MatmulAllReduce) -> int:
    """Of C."""
    return int(wish.workload(1).slot_bytes("C", 0)) * wish.m
