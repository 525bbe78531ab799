"""Symbolic execution: which contributions each slot holds after a run, and whether those are what was asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from dovetail.ir.greedy import Run
from dovetail.ir.op_lists import part_slots, rank_read, rank_written, slots, total_slots
from dovetail.ir.program import Program
from dovetail.ir.symbols import Operand, Symbols
from dovetail.ir.types import SENDS, Kernel, Kind, Op, Post, Region, Term


class Wrong(NamedTuple):
    """The first slot that does not hold what a post-condition asks: slot `place` of its region on `rank`."""

    post: int
    rank: int
    place: int


class Memory:
    """Every slot's value, and beside it the op that wrote it last (-1 for none); made when first touched."""

    def __init__(self, program: Program, symbols: Symbols) -> None:
        self.symbols = symbols
        self._inputs = {b.name for b in program.buffers if b.role == "input"}
        self._values: dict[tuple[int, str, int], int] = {}

    def read(self, rank: int, region: Region) -> list[int]:
        return [self._slot(rank, region.buffer, slot) for slot in slots(region)]

    def write(self, rank: int, region: Region, values: Sequence[int]) -> None:
        for slot, value in zip(slots(region), values, strict=True):
            self._values[rank, region.buffer, slot] = value

    def _slot(self, rank: int, buffer: str, slot: int) -> int:
        key = (rank, buffer, slot)
        if key not in self._values:
            self._values[key] = self.symbols.start(buffer in self._inputs, buffer, rank, slot)
        return self._values[key]


class Execution:
    """Executes ops one by one, in the order of a run, on symbols."""

    def __init__(self, program: Program, run: Run, symbols: Symbols) -> None:
        self.program, self.run, self.symbols = program, run, symbols
        self.memory = Memory(program, symbols)
        self._sent: dict[int, list[int]] = {}

    def execute(self, ops: Sequence[Op] | Mapping[int, Op], order: Iterable[int]) -> None:
        for row in order:
            op = ops[row]
            if op.kind == Kind.compute:
                self._compute(op)
            elif op.kind == Kind.collective:
                members = self.run.groups[row]
                if row == members[0]:
                    self._collective([ops[member] for member in members])
            else:
                self._move(op)

    def _move(self, op: Op) -> None:
        """Ops that move and add slot by slot."""
        source = rank_read(self.program, op)
        parts = [self.memory.read(source, region) for region in op.reads]
        if op.kind == Kind.reduce:
            parts.append(self.memory.read(op.rank, op.writes[0]))
        if op.index in self.run.matched and op.kind != Kind.wait:
            parts.append(self._sent.pop(self.run.matched[op.index]))
        if not parts:
            return
        out = parts[0] if len(parts) == 1 else [self.symbols.total(pair) for pair in zip(*parts, strict=True)]
        out = self.symbols.step(op.index, out)
        if op.writes:
            self.memory.write(rank_written(self.program, op), op.writes[0], out)
        if op.kind in SENDS:
            self._sent[op.index] = out

    def _compute(self, op: Op) -> None:
        kernel = self.program.kernels[op.call]
        results = kernel_values(self.symbols, kernel, [self.memory.read(op.rank, r) for r in op.reads], op.writes)
        if kernel.accumulate:
            for region, values in zip(op.writes, results, strict=True):
                held = self.memory.read(op.rank, region)
                values[:] = [self.symbols.total(pair) for pair in zip(held, values, strict=True)]
        for region, values in zip(op.writes, results, strict=True):
            self.memory.write(op.rank, region, self.symbols.step(op.index, values))

    def _collective(self, members: Sequence[Op]) -> None:
        kind = self.program.collectives[members[0].call].kind
        inputs = [[v for region in op.reads for v in self.memory.read(op.rank, region)] for op in members]
        sizes = [total_slots(op.writes) for op in members]
        parts = [part_slots(op.reads, len(members)) for op in members]
        for op, out in zip(members, collective_values(self.symbols, kind, inputs, sizes, parts), strict=True):
            values = self.symbols.step(op.index, out) if op.writes else []
            for region, piece in zip(op.writes, _cut(values, [r.num_slots for r in op.writes]), strict=True):
                self.memory.write(op.rank, region, piece)


def kernel_values(
    symbols: Symbols, kernel: Kernel, operands: Sequence[list[int]], writes: Sequence[Region]
) -> list[list[int]]:
    """The values of each region that a kernel writes."""
    whole = [tuple(values) for values in operands]
    results = []
    for result, region in enumerate(writes):
        values = []
        for j in range(region.num_slots):
            pairs = zip(whole, kernel.modes, strict=True)
            arguments: list[Operand] = [v[j] if mode == "each" else v for v, mode in pairs]
            values.append(symbols.apply(kernel, result, j, arguments))
        results.append(values)
    return results


def collective_values(
    symbols: Symbols, kind: str, inputs: Sequence[list[int]], sizes: Sequence[int], parts: Sequence[Sequence[int]]
) -> list[list[int]]:
    """What a collective leaves at each member, from what each brings; `sizes` are the slots each one gets, `parts`
    those that an all_to_all moves from each member to each."""
    if kind == "broadcast":
        return [inputs[0]] * len(inputs)
    if kind == "all_gather":
        return [[value for part in inputs for value in part]] * len(inputs)
    if kind == "all_to_all":
        cut = [_cut(values, part) for values, part in zip(inputs, parts, strict=True)]
        return [[v for pieces in cut for v in pieces[j]] for j in range(len(inputs))]
    total = [symbols.total(values) for values in zip(*inputs, strict=True)]
    if kind == "all_reduce":
        return [total] * len(inputs)
    return _cut(total, sizes)


def _cut(values: list[int], sizes: Sequence[int]) -> list[list[int]]:
    """Values in pieces of these sizes."""
    rest = iter(values)
    return [list(islice(rest, size)) for size in sizes]


def asked_values(program: Program, symbols: Symbols, post: Post) -> list[int]:
    """The values that a post-condition asks for, slot by slot of its region."""
    start = Memory(program, symbols)
    terms = [_term_values(program, symbols, start, post, term) for term in post.terms]
    return [symbols.total(term[j] for term in terms) for j in range(post.region.num_slots)]


def _term_values(program: Program, symbols: Symbols, start: Memory, post: Post, term: Term) -> list[int]:
    operands = [start.read(rank, region) for rank, region in term.args]
    if term.kernel is None:
        return operands[0]
    kernel = next(k for k in program.kernels if k.name == term.kernel)
    return kernel_values(symbols, kernel, operands, [post.region])[0]


def asked_value(program: Program, symbols: Symbols, post: Post, place: int) -> int:
    """`asked_values`, of one slot; inputs are read at that slot only."""
    start = Memory(program, symbols)
    values = []
    for term in post.terms:
        if term.kernel is None:
            ((rank, region),) = term.args
            values += start.read(rank, one_slot(region, place))
        else:
            values.append(_term_values(program, symbols, start, post, term)[place])
    return symbols.total(values)


def first_wrong(execution: Execution, posts: Sequence[Post]) -> Wrong | None:
    """The first slot, by post-condition, rank and place, that does not hold what was asked."""
    for number, post in enumerate(posts):
        asked = asked_values(execution.program, execution.symbols, post)
        for rank in post.ranks:
            held = execution.memory.read(rank, post.region)
            for place, (have, want) in enumerate(zip(held, asked, strict=True)):
                if have != want:
                    return Wrong(number, rank, place)
    return None


def held(execution: Execution, wrong: Wrong) -> int:
    """The value that a wrong slot holds after the run."""
    region = execution.program.posts[wrong.post].region
    return execution.memory.read(wrong.rank, one_slot(region, wrong.place))[0]


def one_slot(region: Region, place: int) -> Region:
    """Slot `place` of a region, alone."""
    block, inside = divmod(place, region.count)
    return Region(region.buffer, region.offset + block * region.stride + inside, 1)
