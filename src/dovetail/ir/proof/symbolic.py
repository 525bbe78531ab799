"""symbolic: execute a Program on symbols, and compare what each slot holds with the post-conditions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from dovetail.ir.collectives import COLLECTIVES
from dovetail.ir.op_lists import part_slots, rank_read, rank_written, slots, total_slots
from dovetail.ir.program import Program
from dovetail.ir.proof.greedy import Run
from dovetail.ir.proof.symbols import Symbols
from dovetail.ir.proof.terms import Modes, modes_of, num_terms, own_slots, slots_needed
from dovetail.ir.types import SENDS, Arg, Kernel, Kind, Mode, Op, Post, Region, Term


class Wrong(NamedTuple):
    """A slot on `rank` (as a region of one slot) with a wrong value.

    `post`: number of the post-condition that the slot violates; `place`: its place in the post-condition's region. If
    it differs from the reference program instead, `post` is -1 and `place` 0.
    """

    post: int
    rank: int
    place: int
    slot: Region


class Memory:
    """The symbolic values of slots, created when first read. Unwritten slots of the reference equal no other value."""

    def __init__(self, program: Program, symbols: Symbols, *, is_reference: bool = False) -> None:
        self.symbols, self._whose = symbols, "the reference's " * is_reference
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
            defined = buffer in self._inputs
            name = buffer if defined else f"{self._whose}{buffer}"
            self._values[key] = self.symbols.start(defined, name, rank, slot)
        return self._values[key]


class Execution:
    """Execute ops on symbols, one by one, in the order of a run."""

    def __init__(self, program: Program, run: Run, symbols: Symbols, *, is_reference: bool = False) -> None:
        self.program, self.run, self.symbols = program, run, symbols
        self.memory = Memory(program, symbols, is_reference=is_reference)
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
        """Execute an op that moves and adds slot by slot."""
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
        operands = [self.memory.read(op.rank, region) for region in op.reads]
        slots = op.writes[0].num_slots if op.writes else 0
        terms = num_terms(kernel.modes, [len(values) for values in operands], slots)
        results = [
            kernel_values(self.symbols, kernel, number, operands, terms, range(slots))
            for number in range(len(op.writes))
        ]
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
    symbols: Symbols, kernel: Kernel, result: int, operands: Sequence[list[int]], terms: int, places: Sequence[int]
) -> list[int]:
    """Return the values that a kernel writes to `places` of its `result`-th region, each the sum of `terms` terms.

    `operands`: the values of each operand's slots; for modes `each` and `each_sum` only those that `places` need.
    """
    whole = [tuple(values) if mode == "all" else () for values, mode in zip(operands, kernel.modes, strict=True)]
    found = []
    for j, place in enumerate(places):
        parts = []
        for s in range(terms):
            index: dict[Mode, int] = {"each": j, "sum": s, "each_sum": j * terms + s}
            pairs = zip(operands, whole, kernel.modes, strict=True)
            taken = [all_slots if mode == "all" else values[index[mode]] for values, all_slots, mode in pairs]
            parts.append(symbols.apply(kernel, result, place, taken))
        found.append(parts[0] if terms == 1 else symbols.total(parts))
    return found


def collective_values(
    symbols: Symbols, kind: str, inputs: Sequence[list[int]], sizes: Sequence[int], parts: Sequence[Sequence[int]]
) -> list[list[int]]:
    """Return the values that each member of a collective gets.

    `inputs`: the values that each member gives. `sizes`: the slots that each member gets. `parts[i][j]`: the slots that
    member i of an all_to_all sends to member j.
    """
    traits = COLLECTIVES[kind]
    if traits.exchanges:
        cut = [_cut(values, part) for values, part in zip(inputs, parts, strict=True)]
        return [[v for pieces in cut for v in pieces[j]] for j in range(len(inputs))]
    whole = inputs[0]
    if traits.reduces:
        whole = [symbols.total(values) for values in zip(*inputs, strict=True)]
    elif traits.joined:
        whole = [value for part in inputs for value in part]
    return _cut(whole, sizes) if traits.cut else [whole] * len(inputs)


def _cut(values: list[int], sizes: Sequence[int]) -> list[list[int]]:
    """Return values cut into pieces of these sizes."""
    rest = iter(values)
    return [list(islice(rest, size)) for size in sizes]


class Asked:
    """The values that post-conditions require, slot by slot of their regions."""

    def __init__(self, program: Program, symbols: Symbols) -> None:
        self._symbols, self._start = symbols, Memory(program, symbols)
        self._kernels = {kernel.name: kernel for kernel in reversed(program.kernels)}
        self._modes: Modes = {name: kernel.modes for name, kernel in self._kernels.items()}

    def values(self, post: Post, places: Sequence[int] | None = None) -> list[int]:
        """Return the values that a post-condition requires at `places` of its region; default: all."""
        slots = post.region.num_slots
        at = range(slots) if places is None else places
        terms = [self._term(term, slots, at) for term in post.terms]
        return [self._symbols.total(term[j] for term in terms) for j in range(len(at))]

    def _term(self, term: Term, slots: int, places: Sequence[int]) -> list[int]:
        """Return the values of a term with `slots` slots, at some places."""
        modes, sizes = modes_of(term, self._modes), [own_slots(arg, self._modes) for arg in term.args]
        terms = num_terms(modes, sizes, slots)
        at: dict[Mode, Sequence[int]] = {"each": places, "sum": range(terms)}
        if "each_sum" in modes:
            at["each_sum"] = [place * terms + s for place in places for s in range(terms)]
        operands = [
            self._operand(arg, slots_needed(mode, size, slots, terms), at.get(mode, range(size)))
            for arg, mode, size in zip(term.args, modes, sizes, strict=True)
        ]
        if term.kernel is not None:
            return kernel_values(self._symbols, self._kernels[term.kernel], 0, operands, terms, places)
        return operands[0] if len(operands) == 1 else [self._symbols.total(o) for o in zip(*operands, strict=True)]

    def _operand(self, arg: Arg, slots: int, places: Sequence[int]) -> list[int]:
        if isinstance(arg, Term):
            return self._term(arg, slots, places)
        rank, region = arg
        if len(places) == region.num_slots:
            return self._start.read(rank, region)
        return [value for place in places for value in self._start.read(rank, one_slot(region, place))]


def first_wrong(execution: Execution, posts: Sequence[Post]) -> Wrong | None:
    """Return the first slot, by post-condition, rank and place, that does not hold what the post-condition requires."""
    asked = Asked(execution.program, execution.symbols)
    for number, post in enumerate(posts):
        wanted = asked.values(post)
        for rank in post.ranks:
            held = execution.memory.read(rank, post.region)
            for place, (have, want) in enumerate(zip(held, wanted, strict=True)):
                if have != want:
                    return Wrong(number, rank, place, one_slot(post.region, place))
    return None


def first_difference(execution: Execution, reference: Execution) -> Wrong | None:
    """Return the first slot, by buffer, rank and place, that does not hold what the reference wrote to it."""
    written: dict[tuple[str, int], set[int]] = {}
    for op in reference.program.ops():
        for region in op.writes:
            written.setdefault((region.buffer, rank_written(reference.program, op)), set()).update(slots(region))
    for name in result_buffers(execution.program):
        for rank in range(execution.program.num_ranks):
            for slot in sorted(written.get((name, rank), ())):
                region = Region(name, slot, 1)
                if execution.memory.read(rank, region) != reference.memory.read(rank, region):
                    return Wrong(-1, rank, 0, region)
    return None


def result_buffers(program: Program) -> list[str]:
    """Return the names of the buffers that hold a program's results: its outputs; its inputs if it has no output."""
    outputs = [buffer.name for buffer in program.buffers if buffer.role == "output"]
    return outputs or [buffer.name for buffer in program.buffers if buffer.role == "input"]


def held(execution: Execution, wrong: Wrong) -> int:
    """Return the value that a wrong slot holds after the run."""
    return execution.memory.read(wrong.rank, wrong.slot)[0]


def one_slot(region: Region, place: int) -> Region:
    """Return slot `place` of a region, as a region."""
    block, inside = divmod(place, region.count)
    return Region(region.buffer, region.offset + block * region.stride + inside, 1)
