"""standard: collectives as post-conditions: what each requires, and which one a Program computes, whatever its name."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dovetail.ir.collectives import COLLECTIVES, Traits
from dovetail.ir.posts import Posts
from dovetail.ir.program import Program
from dovetail.ir.types import Buffer, Kind

Ints = NDArray[np.int64]
_MOST_RANKS = 1024  # with more ranks, collectives whose post-conditions are quadratic in the ranks are not tried
# For each post: ranks, slot there, ranks whose inputs are summed, slot there.
_Form = tuple[Ints, Ints | int, Ints, Ints | int]


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
    """Return the post-conditions of a collective whose parts have `count` slots. In place it uses `source` only.

    >>> [post.ranks for post in standard_posts("all_to_next", 3, 1)]
    [(1,), (2,)]
    """
    to, at, of, start = _form(COLLECTIVES[kind], np.arange(num_ranks), count, in_place, root)
    return Posts.regular(to, (source if in_place else target, at), of, (source, start), count)


def questions(program: Program) -> Iterator[tuple[str, Posts]]:
    """Yield each collective that the program could compute, by the sizes of its buffers, with its post-conditions.

    Yields some only for programs with one input and at most one output that call no kernels. A program without output
    is in place. With one rank all collectives are the same: yields none.
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
    """Yield (kind, slots of a part, root) of the collectives with buffers of these sizes; those to one root last."""
    n, even = len(source.slots), len(set(source.slots)) == len(set(target.slots)) == 1 and min(target.slots)
    for kind, traits in sorted(COLLECTIVES.items(), key=lambda row: row[1].to_root):
        at_root = traits.rooted and traits.in_parts
        if not traits.moves or traits.even or at_root == bool(even) or (n > _MOST_RANKS and not traits.sums_everywhere):
            continue
        if at_root:
            part, whole = (source.slots, target.slots) if traits.joined else (target.slots, source.slots)
            roots = [rank for rank, slots in enumerate(whole) if slots]
            if len(set(part)) == len(roots) == 1 and whole[roots[0]] == part[0] * n > 0:
                yield kind, part[0], roots[0]
        else:
            sizes = source.slots[0], target.slots[0]
            unit = _unit(traits, sizes, n, in_place=source == target)
            yield from ((kind, unit, root) for root in range(n if traits.rooted else 1) if unit)


def _unit(traits: Traits, sizes: tuple[int, int], n: int, *, in_place: bool) -> int:
    """Return the slots of a part if every rank has an input and an output of these sizes; 0 if they do not fit."""
    parts = traits.parts(n)
    if in_place:
        parts = (max(parts), max(parts))
    unit = sizes[1] // parts[1]
    return unit if sizes == (unit * parts[0], unit * parts[1]) else 0


def _form(traits: Traits, ranks: Ints, c: int, in_place: bool, root: int) -> _Form:
    """Return, for each post, the ranks that receive and the slot there, the ranks that send and the slot there."""
    n, each = len(ranks), np.expand_dims(ranks, 1)
    if traits.to_next:
        return each[1:], 0, each[:-1], 0
    if traits.exchanges:
        to, of = np.repeat(ranks, n), np.tile(ranks, n)
        return to[:, None], of * c, of[:, None], to * c
    posts = n if traits.in_parts else 1
    everyone: Ints = np.broadcast_to(ranks, (posts, n))
    one: Ints = np.full((posts, 1), root)
    place = ranks * c  # first slot of a rank's part in the whole
    part_at = place if in_place else 0
    to = one if traits.to_root else each if traits.cut else everyone
    of = one if traits.from_root else each if traits.joined else everyone
    at = place if traits.joined else part_at if traits.cut else 0
    start = place if traits.cut else part_at if traits.joined else 0
    return to, at, of, start
