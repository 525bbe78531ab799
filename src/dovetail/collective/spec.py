"""spec: the buffers of a collective, in slots, and its post-conditions: what each output slot must hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.core import OperatorError, parse_count
from dovetail.ir import Buffer, Post, Region, Term
from dovetail.ir.collectives import collectives_that, traits_of
from dovetail.ir.standard import standard_posts

MOST_RANKS = 1 << 17
KINDS = collectives_that("moves")
Sizes = dict[str, tuple[NDArray[np.int64], ...]]  # buffer -> elements of each slot, by rank
Wanted = Callable[[int, int], Iterable[tuple[int, int]]]  # (rank, output slot) -> input slots whose sum it must hold


@dataclass(frozen=True)
class Spec:
    """One collective on `num_ranks` ranks. In place, the buffer `input` is also the output.

    A *unit* is the smallest part that the collective treats as a whole: the array of an all_reduce, one rank's part of
    an all_gather, one rank's data for another rank in an all_to_all. Each unit has `chunks` slots.
    """

    kind: str
    num_ranks: int
    chunks: int
    in_place: bool
    root: int
    buffers: tuple[Buffer, ...]
    posts: Sequence[Post] = field(repr=False)

    def place(self, rank: int, buffer: str, index: int) -> tuple[str, int]:
        """Return the buffer and slot of slot `index` of "input" or "output" on `rank`, which in place share a buffer.

        >>> spec_of("all_gather", 4, chunks=2, in_place=True).place(3, "input", 1)
        ('input', 7)
        """
        if not self.in_place or buffer not in ("input", "output"):
            return buffer, index
        traits = traits_of(self.kind)
        is_part = traits.input_is_part if buffer == "input" else traits.output_is_part
        return "input", index + rank * self.chunks * is_part

    def sizes(self, counts: int | Sequence[Any]) -> Sizes:
        """Return the number of elements of every slot, by buffer and rank, if a unit has `counts` elements.

        `counts` need not be divisible by `chunks`. For v-variants: `counts[rank]`; for all_to_all_v:
        `counts[source][destination]`.

        >>> spec_of("all_reduce", 2, chunks=4).sizes(10)["input"][0].tolist()
        [3, 3, 2, 2]
        >>> spec_of("all_to_all_v", 2).sizes([[1, 2], [3, 4]])["output"][0].tolist()
        [1, 3]
        """
        ranks = range(self.num_ranks)
        return {
            b.name: tuple(
                _split([self._unit(b.name, rank, unit, counts) for unit in range(b.slots[rank] // self.chunks)], self)
                for rank in ranks
            )
            for b in self.buffers
        }

    def _unit(self, buffer: str, rank: int, unit: int, counts: Any) -> int:
        traits = traits_of(self.kind)
        if not traits.even:
            return int(counts)
        if traits.exchanges:
            return int(counts[rank][unit] if buffer == "input" else counts[unit][rank])
        own = buffer == ("input" if traits.joined else "output") and not self.in_place
        return int(counts[rank if own else unit])


def spec_of(kind: str, num_ranks: int, *, chunks: int = 1, in_place: bool = False, root: int = 0) -> Spec:
    """Return the Spec of a collective.

    Parameters
    ----------
    kind : str
        A name of KINDS, in PyTorch's spelling. all_to_next (seed 002, section 7.4): rank i's array goes to rank i + 1.
    num_ranks, chunks : int
        Number of ranks, and slots per unit.
    in_place : bool
        Whether input and output are one buffer.
    root : int
        Root of a rooted collective; others ignore it.

    Raises
    ------
    OperatorError
        If the kind is unknown, a number is invalid, or the collective cannot be in place.

    >>> [(b.name, b.slots) for b in spec_of("all_gather", 2, chunks=3).buffers]
    [('input', (3, 3)), ('output', (6, 6))]
    """
    traits = traits_of(kind)
    if not traits.moves:
        raise OperatorError(f"no collective '{kind}'", hint=f"one of {', '.join(KINDS)}, or `custom`")
    _check_numbers(num_ranks, chunks, root)
    if in_place and not traits.may_be_in_place:
        raise OperatorError(f"{kind} cannot be in place", hint="use in_place=False")
    root = root if traits.rooted else 0
    inputs, outputs = traits.parts(num_ranks)
    if in_place:
        inputs = outputs = max(inputs, outputs)
    alone = traits.input_at_root, traits.to_root and traits.joined  # (input, output): only the root has a buffer
    sizes = [
        tuple(parts * chunks if rank == root or not at_root else 0 for rank in range(num_ranks))
        for parts, at_root in zip((inputs, outputs), alone, strict=True)
    ]
    buffers = (Buffer("input", "input", sizes[0]), *(() if in_place else (Buffer("output", "output", sizes[1]),)))
    posts = standard_posts(kind, num_ranks, chunks, in_place=in_place, root=root)
    return Spec(kind, num_ranks, chunks, in_place, root, buffers, posts)


def custom(
    num_ranks: int, inputs: int | Sequence[int], outputs: int | Sequence[int], want: Wanted, *, name: str = "custom"
) -> Spec:
    """Return the Spec of a user-defined collective.

    Parameters
    ----------
    num_ranks : int
        Number of ranks.
    inputs, outputs : int or sequence of int
        Slots of every rank's input and output, or one number per rank.
    want : callable
        `want(rank, slot)` returns the input slots, as (rank, slot), whose sum output slot `slot` of `rank` must hold.
        No slots: it may hold anything.
    name : str
        Name of the collective.

    Raises
    ------
    OperatorError
        If numbers are invalid, or `want` names an input slot that does not exist.

    >>> swap = custom(2, 1, 1, lambda rank, slot: [(1 - rank, slot)])
    >>> len(swap.posts)
    2
    """
    sides = [(n,) * num_ranks if isinstance(n, int) else tuple(n) for n in (inputs, outputs)]
    if num_ranks < 1 or any(len(side) != num_ranks or min(side) < 0 for side in sides):
        raise OperatorError(
            f"custom collective of {num_ranks} ranks", found=f"slots {sides}", hint="a size for each rank"
        )
    posts = []
    for rank in range(num_ranks):
        for slot in range(sides[1][rank]):
            sources = [_source(source, sides[0], f"want({rank}, {slot})") for source in want(rank, slot)]
            terms = tuple(Term(None, ((source, Region("input", at, 1)),)) for source, at in sources)
            if terms:
                posts.append(Post((rank,), Region("output", slot, 1), terms))
    buffers = (Buffer("input", "input", sides[0]), Buffer("output", "output", sides[1]))
    return Spec(name, num_ranks, 1, False, 0, buffers, tuple(posts))


def _check_numbers(num_ranks: int, chunks: int, root: int) -> None:
    """Raise OperatorError for numbers that are not whole or out of range."""
    ranks = parse_count(num_ranks, "num_ranks", least=1)
    parse_count(chunks, "chunks", least=1)
    if ranks > MOST_RANKS:
        raise OperatorError(f"{ranks} ranks", hint=f"at most {MOST_RANKS}")
    if parse_count(root, "root") >= ranks:
        raise OperatorError(f"root {root} does not exist", found=f"{ranks} ranks, 0 to {ranks - 1}")


def _source(named: Any, inputs: Sequence[int], place: str) -> tuple[int, int]:
    """Return an input slot that `want` returned, as (rank, slot). Raise OperatorError if it does not exist."""
    with suppress(TypeError, ValueError):
        rank, slot = map(index, named)
        if 0 <= rank < len(inputs) and 0 <= slot < inputs[rank]:
            return rank, slot
    raise OperatorError(
        f"{place} names no input slot", found=repr(named), hint="pairs of a rank and its slot, from 0 on"
    )


def _split(units: Sequence[int], spec: Spec) -> NDArray[np.int64]:
    """Return the sizes of near-equal slots of each unit, longer slots first. Raise OperatorError for negative units."""
    if min(units, default=0) < 0:
        raise OperatorError(f"{spec.kind} of {min(units)} elements")
    whole = np.asarray(units, np.int64)[:, None]
    return (whole // spec.chunks + (np.arange(spec.chunks) < whole % spec.chunks)).ravel()
