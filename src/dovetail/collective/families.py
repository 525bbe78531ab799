"""families: which algorithms stand in for the library's collectives in an operator, by one word for all kinds."""

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
    """The algorithms of a family, for `passes.inline_collectives`. OperatorError where there is no such family.

    `ring` sends round a ring. `exchange` sends to all others at once: an all_reduce of two ranks swaps all they have,
    one of more gathers and adds up a part on each rank, then sends the sums to all; the parts come aside, so that none
    waits for the others' to be added. What a family has no algorithm for
    is the library's, as all is of the family `library`.

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
    """The all_reduce among all pairs, what comes kept aside until its turn to be added."""
    return make_algorithm("all_pairs_all_reduce", size, in_place=in_place, aside=True).trace()[0]


@cache
def _traced(name: str, size: int, in_place: bool) -> Program | None:
    """The algorithm as it was written, its messages added up as they come; None where there is none."""
    if name not in ALGORITHMS:
        return None
    program, hints = make_algorithm(name, size, in_place=in_place).trace()
    return fuse_reduces(program, hints)[0]
