"""families: which algorithms an operator uses instead of the MPI library's collectives."""

from __future__ import annotations

from functools import cache
from typing import Literal, get_args

from dovetail.collective.algorithms import ALGORITHMS, make_algorithm
from dovetail.core import OperatorError
from dovetail.ir import Program
from dovetail.ir.collectives import traits_of
from dovetail.passes import Make, fuse_reduces

Family = Literal["library", "exchange", "ring"]
FAMILIES: tuple[Family, ...] = get_args(Family)


def family(name: Family) -> Make:
    """Return the algorithms of a family, for `passes.inline_collectives`. Raise OperatorError for an unknown family.

    `library`: the MPI library's own call. `ring`: ring algorithms. `exchange`: every rank sends to all others at once.
    Its all_reduce on two ranks exchanges whole arrays; on more ranks, each rank receives one part from all ranks into
    scratch, adds them up, and sends the sum to all. For a collective that a family has no algorithm for, the result is
    None: the library's call.

    >>> family("ring")("all_gather", 3, False).name, family("ring")("broadcast", 3, True)
    ('ring_all_gather', None)
    """
    if name not in FAMILIES:
        raise OperatorError(f"no family of algorithms '{name}'", hint=f"one of {', '.join(FAMILIES)}")
    return {"library": _library, "exchange": _exchange, "ring": _ring}[name]


def _library(kind: str, size: int, in_place: bool) -> Program | None:
    return None


def _ring(kind: str, size: int, in_place: bool) -> Program | None:
    return _traced(f"ring_{kind}", size, in_place)


def _exchange(kind: str, size: int, in_place: bool) -> Program | None:
    if not traits_of(kind).sums_everywhere:
        return _traced(f"direct_{kind}", size, in_place)
    if size == 2:
        return _traced("recursive_doubling_all_reduce", size, in_place)
    return _aside(size, in_place)


@cache
def _aside(size: int, in_place: bool) -> Program:
    """Return the all_reduce among all pairs that receives into scratch before it adds."""
    return make_algorithm("all_pairs_all_reduce", size, in_place=in_place, aside=True).trace()[0]


@cache
def _traced(name: str, size: int, in_place: bool) -> Program | None:
    """Return the algorithm's unlowered Program with receives and reductions fused; None if there is no such name."""
    if name not in ALGORITHMS:
        return None
    program, hints = make_algorithm(name, size, in_place=in_place).trace()
    return fuse_reduces(program, hints)[0]
