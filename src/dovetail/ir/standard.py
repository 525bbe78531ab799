"""Standard collectives as post-conditions: to tell which one a Program computes, whatever it is called."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dovetail.ir.parts import Buffer, Kind, Post, Region, Term
from dovetail.ir.program import Program

_MOST_RANKS = 128  # above, the questions whose terms are quadratic in the ranks are not put


def questions(program: Program) -> Iterator[tuple[str, tuple[Post, ...]]]:
    """Each collective that the program could compute by the sizes of its buffers, with what it would have to leave.

    Only for programs with one input and at most one output, of one size on all ranks, that call no kernels. Without
    an output the collective is in place. With one rank all collectives are one: none is asked for.
    """
    inputs = [b for b in program.buffers if b.role == "input"]
    outputs = [b for b in program.buffers if b.role == "output"] or inputs
    uniform = all(len(set(b.slots)) == 1 for b in inputs + outputs)
    if len(inputs) != 1 or len(outputs) != 1 or not uniform or program.num_ranks == 1 or not outputs[0].slots[0]:
        return
    if bool((program.columns["kind"] == Kind.compute).any()):
        return
    yield from _whole(program, inputs[0], outputs[0])
    yield from _parts(program, inputs[0], outputs[0])
    if inputs[0].slots == outputs[0].slots:
        yield from _rooted(program, inputs[0], outputs[0])


def _whole(program: Program, source: Buffer, target: Buffer) -> Iterator[tuple[str, tuple[Post, ...]]]:
    """all_reduce and all_gather."""
    ranks, n, m = range(program.num_ranks), source.slots[0], target.slots[0]
    if n == m:
        yield "all_reduce", (_summed(ranks, target, 0, source, 0, n),)
    if m == n * len(ranks) and source is not target:
        yield "all_gather", tuple(_moved(ranks, target, r * n, source, r, 0, n) for r in ranks)
    if source is target and m % len(ranks) == 0:
        part = m // len(ranks)
        yield "all_gather", tuple(_moved(ranks, target, r * part, source, r, r * part, part) for r in ranks)


def _parts(program: Program, source: Buffer, target: Buffer) -> Iterator[tuple[str, tuple[Post, ...]]]:
    """reduce_scatter and all_to_all."""
    ranks, n, m = range(program.num_ranks), source.slots[0], target.slots[0]
    if len(ranks) > _MOST_RANKS:
        return
    part = m // len(ranks)
    if n == m * len(ranks):
        yield "reduce_scatter", tuple(_summed((r,), target, 0, source, r * m, m) for r in ranks)
    if source is target and m % len(ranks) == 0:
        yield "reduce_scatter", tuple(_summed((r,), target, r * part, source, r * part, part) for r in ranks)
    if n == m and m % len(ranks) == 0:
        moves = ((r, s) for r in ranks for s in ranks)
        yield "all_to_all", tuple(_moved((r,), target, s * part, source, s, r * part, part) for r, s in moves)


def _rooted(program: Program, source: Buffer, target: Buffer) -> Iterator[tuple[str, tuple[Post, ...]]]:
    """broadcast and reduce, from and to any root, and all_to_next."""
    ranks, n = range(program.num_ranks), source.slots[0]
    for root in ranks:
        yield "broadcast", (_moved(ranks, target, 0, source, root, 0, n),)
    if len(ranks) > _MOST_RANKS:
        return
    yield "all_to_next", tuple(_moved((r,), target, 0, source, r - 1, 0, n) for r in ranks[1:])
    for root in ranks:
        yield "reduce", (_summed((root,), target, 0, source, 0, n),)


def _summed(to: Sequence[int], target: Buffer, at: int, source: Buffer, start: int, count: int) -> Post:
    part = Region(source.name, start, count)
    terms = tuple(Term(None, ((rank, part),)) for rank in range(len(source.slots)))
    return Post(tuple(to), Region(target.name, at, count), terms)


def _moved(to: Sequence[int], target: Buffer, at: int, source: Buffer, rank: int, start: int, count: int) -> Post:
    return Post(tuple(to), Region(target.name, at, count), (Term(None, ((rank, Region(source.name, start, count)),)),))
