"""Standard collectives as post-conditions: what each asks, and which one a Program computes, whatever it is called."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from dovetail.ir.posts import Posts
from dovetail.ir.program import Program
from dovetail.ir.types import Buffer, Kind

Ints = NDArray[np.int64]
_MOST_RANKS = 1024  # above, no question is put whose terms are quadratic in the ranks
_Form = tuple[Ints, Ints | int, Ints, Ints | int]  # of each post: ranks, slot there, ranks summed, slot there


def standard_posts(
    kind: str,
    num_ranks: int,
    count: int,
    *,
    in_place: bool = False,
    root: int = 0,
    source: str = "input",
    target: str = "output",
) -> Posts:
    """What collective `kind` asks, its units (see Spec) of `count` slots; in place all of it in the buffer `source`.

    >>> [post.ranks for post in standard_posts("all_to_next", 3, 1)]
    [(1,), (2,)]
    """
    to, at, of, start = _FORMS[kind](np.arange(num_ranks), count, in_place, root)
    return Posts.regular(to, (source if in_place else target, at), of, (source, start), count)


def questions(program: Program) -> Iterator[tuple[str, Posts]]:
    """Each collective that the program could compute by the sizes of its buffers, with what it would have to leave.

    Only for programs with one input and at most one output that call no kernels. Without an output the collective is in
    place. With one rank all collectives are one: none is asked for.
    """
    inputs = [b for b in program.buffers if b.role == "input"]
    outputs = [b for b in program.buffers if b.role == "output"] or inputs
    if len(inputs) != 1 or len(outputs) != 1 or program.num_ranks == 1:
        return
    too_few = program.num_ops < program.num_ranks - 1  # for any collective
    if too_few or bool((program.columns["kind"] == Kind.compute).any()):
        return
    for kind, count, root in _candidates(inputs[0], outputs[0]):
        names = {"source": inputs[0].name, "target": outputs[0].name}
        yield kind, standard_posts(kind, program.num_ranks, count, in_place=inputs == outputs, root=root, **names)


def _candidates(source: Buffer, target: Buffer) -> Iterator[tuple[str, int, int]]:
    """Collectives that have buffers of these sizes: kind, slots of a unit, root."""
    sizes, n = (set(source.slots), set(target.slots)), len(source.slots)
    if len(sizes[0]) == len(sizes[1]) == 1 and min(target.slots):
        yield from _even(source.slots[0], target.slots[0], n, in_place=source == target)
    elif n <= _MOST_RANKS:
        for kind, part, whole in (("gather", source.slots, target.slots), ("scatter", target.slots, source.slots)):
            roots = [rank for rank, slots in enumerate(whole) if slots]
            if len(set(part)) == len(roots) == 1 and whole[roots[0]] == part[0] * n > 0:
                yield kind, part[0], roots[0]


def _even(inputs: int, outputs: int, n: int, *, in_place: bool) -> Iterator[tuple[str, int, int]]:
    """Those of collectives for which all ranks have the same sizes; in place the whole may be parts."""
    same, ranks = inputs == outputs, range(n if n <= _MOST_RANKS else 0)
    part, fits = outputs // n, outputs % n == 0
    if same:
        yield "all_reduce", inputs, 0
    if not ranks:
        return
    if (in_place and fits) or outputs == inputs * n:
        yield "all_gather", part, 0
    if (in_place and fits) or inputs == outputs * n:
        yield "reduce_scatter", inputs // n, 0
    if same and fits:
        yield "all_to_all", part, 0
    if same:
        yield from (("broadcast", inputs, root) for root in ranks)
        yield "all_to_next", inputs, 0
        yield from (("reduce", inputs, root) for root in ranks)


def _all_to_all(ranks: Ints, c: int, in_place: bool, root: int) -> _Form:
    to, of = np.repeat(ranks, len(ranks)), np.tile(ranks, len(ranks))
    return to[:, None], of * c, of[:, None], to * c


def _each(ranks: Ints) -> Ints:
    """A post for each of the ranks alone."""
    return ranks[:, None]


def _all(ranks: Ints, posts: int = 1) -> Ints:
    """Posts for all ranks together."""
    return np.broadcast_to(ranks, (posts, len(ranks)))


def _one(root: int, posts: int = 1) -> Ints:
    return np.full((posts, 1), root)


_FORMS: dict[str, Callable[[Ints, int, bool, int], _Form]] = {
    "all_reduce": lambda r, c, in_place, root: (_all(r), 0, _all(r), 0),
    "reduce": lambda r, c, in_place, root: (_one(root), 0, _all(r), 0),
    "broadcast": lambda r, c, in_place, root: (_all(r), 0, _one(root), 0),
    "all_gather": lambda r, c, in_place, root: (_all(r, len(r)), r * c, _each(r), r * c if in_place else 0),
    "reduce_scatter": lambda r, c, in_place, root: (_each(r), r * c if in_place else 0, _all(r, len(r)), r * c),
    "all_to_all": _all_to_all,
    "all_to_next": lambda r, c, in_place, root: (_each(r[1:]), 0, _each(r[:-1]), 0),
    "gather": lambda r, c, in_place, root: (_one(root, len(r)), r * c, _each(r), 0),
    "scatter": lambda r, c, in_place, root: (_each(r), 0, _one(root, len(r)), r * c),
}
