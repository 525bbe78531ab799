"""balance: find sizes whose computation and communication take equally long on this machine, in a second or two."""

from __future__ import annotations

from typing import NamedTuple

from dovetail.core import OperatorError
from dovetail.ir import Operator, op_works
from dovetail.ir.abilities import BalancedSizes
from dovetail.prober import programs
from dovetail.prober.take import take
from dovetail.run.executor import Executor

CALLS = 4  # timed library calls, of which the fastest counts: some libraries are now and then far slower


class Balanced(NamedTuple):
    """An operator, and what its whole computation and its whole collective cost in isolation.

    `compute_s`, `comm_s`: measured seconds. `flops`: FLOP of one rank's computation. `num_bytes`: bytes of the
    collective.
    """

    operator: Operator
    ranks: int
    compute_s: float
    comm_s: float
    flops: float
    num_bytes: int


def balanced(executor: Executor, kind: type[BalancedSizes], ranks: int, dtype: str = "float32") -> Balanced:
    """Return an operator of class `kind` whose computation and communication take about equally long here.

    Raises OperatorError if `ranks` is 1: one rank does not communicate.
    """
    if ranks < 2:
        raise OperatorError("one rank has no communication to balance with", hint="give the sizes, or more --ranks")
    found = looked_at(executor, kind.pilot(ranks, dtype), ranks)
    for _ in range(2):
        operator = kind.sized(ranks, dtype, found.flops / found.compute_s, found.num_bytes / found.comm_s)
        found = looked_at(executor, operator, ranks)
    return found


def looked_at(executor: Executor, operator: Operator, ranks: int) -> Balanced:
    """Measure an operator's whole computation and its collective. The fastest run counts, for noise only adds time."""
    (kind, num_bytes), sample = operator.library_calls(ranks)[0], operator.samples(ranks)[0]
    computed = programs.computations(operator, sample, ranks, sample.most, 1)
    called = programs.library(kind, ranks, num_bytes, 1 + CALLS)
    found = take(executor, [computed, called])
    compute_s, comm_s = (float(found[each.key].seconds.min()) for each in (computed, called))
    works = op_works(computed.variant.program, computed.variant.workload).values()
    return Balanced(operator, ranks, compute_s, comm_s, max(work.flops for work in works), num_bytes)
