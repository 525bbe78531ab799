"""balance: sizes whose compute and communication take about as long on this machine, found in a second or two."""

from __future__ import annotations

from typing import Any, NamedTuple

from dovetail.core import WishError
from dovetail.ir import Wish
from dovetail.probe import programs
from dovetail.probe.take import take
from dovetail.run.job import Executor

CALLS = 4  # of the library, from the end of one to the end of the next; some libraries take far longer now and then


class Balanced(NamedTuple):
    """A wish for `ranks` ranks, the seconds of its computation and of its collective, each whole and alone; FLOP and
    bytes of either."""

    wish: Wish
    ranks: int
    compute_s: float
    comm_s: float
    flops: float
    num_bytes: int


def balanced(executor: Executor, kind: Any, ranks: int, dtype: str = "float32") -> Balanced:
    """The wish of a class to try first: neither side hides all of the other for free, nor can it hide nothing.

    `kind`: a class of wishes with `pilot` and `sized` (see `matmul.Product`). Raises WishError for one rank, which has
    nothing to communicate.
    """
    if ranks < 2:
        raise WishError("one rank has no communication to balance with", hint="name the sizes, or more --ranks")
    found = looked_at(executor, kind.pilot(ranks, dtype), ranks)
    for _ in range(2):
        wish = kind.sized(ranks, dtype, found.flops / found.compute_s, found.num_bytes / found.comm_s)
        found = looked_at(executor, wish, ranks)
    return found


def looked_at(executor: Executor, wish: Any, ranks: int) -> Balanced:
    """The least seconds of a rank's computation, and of the library's collective: all that disturbs only adds."""
    (kind, num_bytes), sample = wish.collected(ranks)[0], wish.samples(ranks)[0]
    computed = programs.computations(wish, sample, ranks, sample.most, 1)
    called = programs.library(kind, ranks, num_bytes, 1 + CALLS)
    found = take(executor, [computed, called])
    compute_s, comm_s = (float(found[each.key].seconds.min()) for each in (computed, called))
    return Balanced(wish, ranks, compute_s, comm_s, wish.flops / ranks, num_bytes)
