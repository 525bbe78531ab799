"""fuse: fuse a receive with the next op of its lane, if that reduces or sends the message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

from dovetail.ir import Kind, Op, Program, Region
from dovetail.passes.draft import Draft, with_depths
from dovetail.passes.regions import apart


class _Match(NamedTuple):
    """Two consecutive ops of a lane, and the kind, reads and writes of the op that replaces them."""

    one: Op
    two: Op
    kind: Kind
    reads: tuple[Region, ...]
    writes: tuple[Region, ...]


def fuse(program: Program) -> Program:
    """Fuse recv + reduce to recv_reduce, and a receive + send of what it wrote to one op that forwards.

    Only if no other op waits for the first of the two, and the second waits for nothing else. Scratch that no other op
    reads is no longer written. A forwarding op holds its message until it has sent it, so its incoming channel becomes
    one message deeper: a program that completes still does.

    >>> from dovetail.ir import parse, to_text
    >>> before = parse('''
    ... program relay ranks 3
    ... buffer x input 4
    ... buffer t scratch 4
    ... buffer y output 4
    ... lane net net
    ... channel 0->1 0 depth 1
    ... channel 1->2 0 depth 1
    ... post 2 y[0:4] = x@0[0:4] + x@1[0:4]
    ... rank 0 lane net
    ...   send x[0:4] to 1
    ... rank 1 lane net
    ...   recv_reduce from 0 x[0:4] -> t[0:4]
    ...   send t[0:4] to 2
    ... rank 2 lane net
    ...   recv from 1 -> y[0:4]
    ... ''')
    >>> print(to_text(fuse(before)), end="")
    program relay ranks 3
    buffer x input 4
    buffer t scratch 4
    buffer y output 4
    lane net net
    channel 0->1 0 depth 2
    channel 1->2 0 depth 1
    post 2 y[0:4] = x@0[0:4] + x@1[0:4]
    rank 0 lane net
      send x[0:4] to 1
    rank 1 lane net
      recv_reduce_send from 0 x[0:4] to 2
    rank 2 lane net
      recv from 1 -> y[0:4]
    """
    while (fused := _rewrite(_rewrite(program, _adds), _forwards)) is not program:
        program = fused  # a write that is gone may allow another fusion
    return program


def _rewrite(program: Program, find: Callable[[_Neighbours], Iterator[_Match]]) -> Program:
    neighbours = _Neighbours(program)
    matches = {match.one.index: match for match in find(neighbours)}
    if not matches:
        return program
    seconds = {match.two.index for match in matches.values()}
    draft, deeper = Draft(program), [0] * len(program.channels)
    for op in neighbours.ops:
        if op.index in matches:
            _, two, kind, reads, writes = matches[op.index]
            row = draft.keep(op, kind=kind, reads=reads, writes=writes, chan_out=two.chan_out)
            draft.replaced(op.index, [row])
            draft.replaced(two.index, [row])
            deeper[op.chan_in] |= int(two.chan_out >= 0)
        elif op.index not in seconds:
            draft.replaced(op.index, [draft.keep(op)])
    return with_depths(
        draft.build(), program, [c.depth + more for c, more in zip(program.channels, deeper, strict=True)]
    )


def _adds(neighbours: _Neighbours) -> Iterator[_Match]:
    """`recv t; reduce t to d`: if only such reduces read t, add the message to d when it arrives."""
    found = [
        (one, two)
        for one, two in neighbours.pairs(Kind.recv, Kind.reduce)
        if two.reads == one.writes
        and one.writes[0].buffer in neighbours.private
        and apart(one.writes[0], two.writes[0])
    ]
    reduces = {two.index for _, two in found}
    for one, two in found:
        if neighbours.readers(one) <= reduces:
            yield _Match(one, two, Kind.recv_reduce, two.writes, two.writes)


def _forwards(neighbours: _Neighbours) -> Iterator[_Match]:
    """`recv` or `recv_reduce` into d, then `send d`: forward the message by one op."""
    for one, two in neighbours.pairs(Kind.recv, Kind.send):
        if two.reads == one.writes:
            yield _Match(one, two, Kind.recv_copy_send, (), one.writes)
    for one, two in neighbours.pairs(Kind.recv_reduce, Kind.send):
        if two.reads == one.writes:
            if one.writes[0].buffer in neighbours.private and neighbours.readers(one) <= {two.index}:
                yield _Match(one, two, Kind.recv_reduce_send, one.reads, ())
            else:
                yield _Match(one, two, Kind.recv_reduce_copy_send, one.reads, one.writes)


class _Neighbours:
    """The ops of a program, the pairs of consecutive ops, and the readers of each slot."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.ops = list(program.ops())
        posted = {post.region.buffer for post in program.posts}
        self.private = {b.name for b in program.buffers if b.role == "scratch" and b.name not in posted}
        self._awaited: dict[int, int] = {}  # row -> how many ops name it in `after`
        self._reads: dict[tuple[int, str], list[tuple[Region, int]]] = {}
        for op in self.ops:
            for row in op.after:
                self._awaited[row] = self._awaited.get(row, 0) + 1
            for region in (*op.reads, *(op.writes if self._keeps_old(op) else ())):
                self._reads.setdefault((op.rank, region.buffer), []).append((region, op.index))

    def pairs(self, first: Kind, second: Kind) -> Iterator[tuple[Op, Op]]:
        """Yield consecutive ops of these kinds with no other dependencies between or on them."""
        for rows in self.program.queues().values():
            for one, two in pairwise(self.ops[row] for row in rows):
                if (one.kind, two.kind) == (first, second) and self._alone(one, two):
                    yield one, two

    def readers(self, op: Op) -> set[int]:
        """Return rows of the ops that may read what `op` writes."""
        wrote = op.writes[0]
        return {row for region, row in self._reads.get((op.rank, wrote.buffer), ()) if not apart(region, wrote)}

    def _alone(self, one: Op, two: Op) -> bool:
        waits = one.index in two.after
        return self._awaited.get(one.index, 0) == waits and set(two.after) <= {one.index, *one.after}

    def _keeps_old(self, op: Op) -> bool:
        return op.kind == Kind.reduce or (op.kind == Kind.compute and self.program.kernels[op.call].accumulate)
