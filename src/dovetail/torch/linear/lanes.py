"""lanes: a proved Program as steps of one rank: products by torch, collectives begun on the process group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import torch

from dovetail.ir import Kind, Op, Program, Region
from dovetail.torch.linear.kinds import GATHER, REDUCE, SCATTER
from dovetail.torch.linear.scratch import Scratch
from dovetail.torch.linear.serial import Made
from dovetail.torch.linear.wire import Wire, advance

PRODUCT, COPY, BEGIN, WAIT, LATER = range(5)
IN_PLACE = {"P": "C"}  # an all-reduce's products are made where its result is reduced


class Part(NamedTuple):
    """Rows of a buffer. `rows` 0: all of them."""

    buffer: str
    start: int
    rows: int

    def of(self, buffers: dict[str, Any]) -> Any:
        """Return the rows."""
        whole = buffers[self.buffer]
        return whole[self.start : self.start + self.rows] if self.rows else whole


class Joined(NamedTuple):
    """Rows of a buffer in several places, in the order of their results: one product of many rows is faster than
    several of few, for it reads the weight once."""

    parts: tuple[Part, ...]

    def of(self, buffers: dict[str, Any]) -> Any:
        """Return a copy of the rows."""
        rows = [each.of(buffers) for each in self.parts]
        into = buffers.get("joined")
        return torch.cat(rows, out=None if into is None else into[: sum(map(len, rows))])


class Step(NamedTuple):
    """A step: of `reads` to `writes`. `number`: the weight of a product, or the collective that is begun or awaited."""

    what: int
    number: int = 0
    reads: Any = None
    writes: Any = None
    rows: int = 0


class Lanes:
    """The ops of one rank of a Program with a compute lane and a net lane, in the order in which the rank makes them.

    A collective is begun as soon as what it reads has been computed. The rank waits for it before the first product
    that reads its result, or at the end. What needs no result of a collective is computed before that: once all are
    begun and, of a gather, the own rows are multiplied. `scale`: rows of a collective for each of a step's `rows`.
    """

    across, scale = False, 1.0

    def __init__(self, program: Program, rank: int, kind: str) -> None:
        self.kind = kind
        self.rows = {buffer.name: buffer.slots[rank] for buffer in program.buffers}
        self.same = self._shared(program, rank)
        self.results = [name for name in self.rows if name.startswith("C")]
        steps = self._steps(program, rank)
        self.steps = tuple(_merged(steps) if kind == SCATTER else steps)
        self.makes = tuple(
            (buffer.name, buffer.slots[rank])
            for buffer in program.buffers
            if buffer.role != "input" and buffer.name not in self.same
        )
        kept = {*self.results, "gathered", *(self.same[name] for name in self.same)}
        self.uses = tuple(each for each in self.makes if each[0] not in kept)
        longest = max((step.rows for step in self.steps if isinstance(step.reads, Joined)), default=0)
        self.uses += (("joined", longest),) if longest else ()

    def run(
        self,
        group: Any,
        wire: Wire,
        inputs: Sequence[Any],
        weights: Sequence[Any],
        first: Sequence[Any],
        later: Callable[[], Any] | None = None,
    ) -> Made:
        """Return the gathered input if it is wanted, a result for each weight, and what `later` returns.

        Parameters
        ----------
        group, wire : ProcessGroup, Wire
            Make the collectives.
        inputs : sequence of Tensor
            Matrices (rows, k). A reduction adds up the products of several, each by its own weights.
        weights : sequence of Tensor
            Matrices (k, n).
        first : sequence of Tensor or None
            What is added to the products by each weight: a row (n,).
        later : callable, optional
            Computation that needs no result of the collectives, made once all are begun.
        """
        buffers: dict[str, Any] = {"A": inputs[0]}

        def width_of(name: str) -> int:
            width: int = inputs[0].shape[1] if name[0] in "Ggj" else weights[int(name[1:] or 0)].shape[1]
            return width

        scratch = Scratch(inputs[0].dtype, [(rows, width_of(name)) for name, rows in self.uses])
        buffers.update(zip((name for name, _ in self.uses), scratch.matrices, strict=True))
        for name, rows in self.makes:
            if name not in buffers:
                buffers[name] = inputs[0].new_empty((rows, width_of(name)))
        for name, other in self.same.items():
            buffers[name] = buffers[other]
        works: list[Any] = []
        found = None
        more = tuple(zip(inputs[1:], weights[1:], strict=True)) if self.kind != GATHER else ()
        for what, number, reads, writes, _ in self.steps:
            if what == PRODUCT:
                a, c, row = reads.of(buffers), writes.of(buffers), first[number]
                if row is None:
                    torch.mm(a, weights[number], out=c)
                else:
                    torch.addmm(row, a, weights[number], out=c)
                for other, by in more:
                    torch.addmm(c, reads.of({"A": other}), by, out=c)
            elif what == BEGIN:
                if works:
                    advance(works[-1])
                works.append(wire.begin(group, self.kind, writes.of(buffers), reads.of(buffers)))
            elif what == WAIT:
                works[number].wait()
            elif what == COPY:
                writes.of(buffers).copy_(reads.of(buffers))
            elif later is not None:
                found = later()
        scratch.give_back()
        return buffers.get("gathered"), [buffers[name] for name in self.results], found

    def _shared(self, program: Program, rank: int) -> dict[str, str]:
        """Return buffers that are another one: equal rows at equal places, so that copies fall away."""
        if self.kind == REDUCE:
            return IN_PLACE
        copies = [op for op in _ops(program, rank) if op.kind == Kind.copy and op.writes[0].buffer == "gathered"]
        return {"gathered": "G"} if copies and all(o.reads[0].offset == o.writes[0].offset for o in copies) else {}

    def _part(self, region: Region) -> Part:
        is_whole = region.offset == 0 and region.count == self.rows[region.buffer]
        return Part(region.buffer, region.offset, 0 if is_whole else region.count)

    def _steps(self, program: Program, rank: int) -> Iterator[Step]:
        ops = list(_ops(program, rank))
        queue = [op for op in ops if op.kind == Kind.collective]
        numbers = {op.index: number for number, op in enumerate(queue)}
        is_made, begun, waited, has_own, has_later = set[int](), 0, 0, False, False
        for op in [op for op in ops if op.kind != Kind.collective]:
            while begun < len(queue) and is_made.issuperset(set(queue[begun].after) - numbers.keys()):
                yield self._begin(queue[begun], begun)
                begun += 1
            needed = 1 + max((numbers[each] for each in op.after if each in numbers), default=-1)
            if waited < needed and has_own and not has_later and self.kind == GATHER:
                yield Step(LATER)
                has_later = True
            while waited < needed:
                yield Step(WAIT, waited)
                waited += 1
            if op.kind == Kind.compute:
                yield self._product(op)
                has_own = True
            elif op.writes[0].buffer not in self.same:
                yield self._copy(op)
            is_made.add(op.index)
        for number in range(begun, len(queue)):
            yield self._begin(queue[number], number)
        if not has_later:
            yield Step(LATER)
        for number in range(waited, len(queue)):
            yield Step(WAIT, number)

    def _product(self, op: Op) -> Step:
        about = self._part(op.reads[0]), self._part(op.writes[0]), op.reads[0].count
        return Step(PRODUCT, int(op.reads[1].buffer[1:] or 0), *about)

    def _copy(self, op: Op) -> Step:
        return Step(COPY, 0, self._part(op.reads[0]), self._part(op.writes[0]), op.reads[0].count)

    def _begin(self, op: Op, number: int) -> Step:
        reads, writes = self._part(op.reads[0]), self._part(op.writes[0])
        return Step(BEGIN, number, reads, writes, op.reads[0].count)


def _ops(program: Program, rank: int) -> Iterator[Op]:
    return (op for op in program.ops() if op.rank == rank)


def _merged(steps: Iterator[Step]) -> Iterator[Step]:
    """Yield steps with products one after another, by one weight, whose results lie side by side, as one.

    Before: rows 32 to 48 of A to rows 16 to 32 of P; rows 0 to 16 of A to rows 0 to 16 of P.
    After: both places of A, the second first, to rows 0 to 32 of P.
    """
    for _, run in groupby(steps, lambda step: (step.what, step.number)):
        found = list(run)
        yield from [_one(found)] if found[0].what == PRODUCT and _are_side_by_side(found) else found


def _are_side_by_side(products: list[Step]) -> bool:
    ordered = sorted(each.writes for each in products)
    return all(a.buffer == b.buffer and a.start + a.rows == b.start for a, b in pairwise(ordered))


def _one(products: list[Step]) -> Step:
    """Return a product that makes the results of several."""
    if len(products) == 1:
        return products[0]
    ordered = sorted(products, key=lambda each: each.writes.start)
    writes, rows = ordered[0].writes, sum(each.rows for each in products)
    joined = Joined(tuple(each.reads for each in ordered))
    return Step(PRODUCT, products[0].number, joined, writes._replace(rows=rows), rows)
