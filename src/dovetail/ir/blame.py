"""blame: why a slot is wrong, in words: what it should hold, what it holds, and the ops through which that came."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from dovetail.ir.certificate import Fault
from dovetail.ir.greedy import Run
from dovetail.ir.program import Program
from dovetail.ir.symbolic import Execution, Wrong, asked_value, held, one_slot
from dovetail.ir.symbols import Atom, Operand, Symbols
from dovetail.ir.types import Kernel, Kind, Op, Region
from dovetail.ir.workload import owners

_TERMS = 4  # of a sum that are shown
_LONGEST = 240  # characters of what a slot should hold, or holds
_MOST_ATOMS = 1 << 20  # that are compared to find the ops at which a value goes wrong


class Lineage(Symbols):
    """Values that remember the ops they came through; `exact` has what each holds."""

    def __init__(self, exact: Symbols) -> None:
        super().__init__()
        self.exact = exact
        self._nodes: list[tuple[int, tuple[int, ...], int]] = []  # op (-1: none), values it came from, exact value

    def start(self, defined: bool, buffer: str, rank: int, slot: int) -> int:
        return self._node(-1, (), self.exact.start(defined, buffer, rank, slot))

    def total(self, values: Iterable[int]) -> int:
        parts = tuple(values)
        return self._node(-1, parts, self.exact.total(self._nodes[part][2] for part in parts))

    def apply(self, kernel: Kernel, result: int, place: int, operands: Sequence[Operand]) -> int:
        flat = tuple(v for o in operands for v in ((o,) if isinstance(o, int) else o))
        exact: list[Operand] = [
            self._nodes[o][2] if isinstance(o, int) else tuple(self._nodes[v][2] for v in o) for o in operands
        ]
        return self._node(-1, flat, self.exact.apply(kernel, result, place, exact))

    def step(self, row: int, values: list[int]) -> list[int]:
        return [self._node(row, (value,), self._nodes[value][2]) for value in values]

    def members(self, value: int) -> Counter[Atom]:
        return self.exact.members(self._nodes[value][2])

    def steps(self, value: int) -> dict[int, tuple[int, tuple[int, ...]]]:
        """The ops that a value came through: of each node of theirs its op, and the nodes of ops before it."""
        found: dict[int, tuple[int, tuple[int, ...]]] = {}
        todo = list(self._before((value,)))
        while todo:
            node = todo.pop()
            if node not in found:
                before = self._before(self._nodes[node][1])
                found[node] = self._nodes[node][0], before
                todo += before
        return found

    def _before(self, values: tuple[int, ...]) -> tuple[int, ...]:
        """The nearest nodes of ops among values and what these came from."""
        found, seen, todo = dict[int, None](), set[int](), list(values)
        while todo:
            node = todo.pop()
            if self._nodes[node][0] >= 0:
                found[node] = None
            elif node not in seen:
                seen.add(node)
                todo += self._nodes[node][1]
        return tuple(found)

    def _node(self, row: int, parents: tuple[int, ...], exact: int) -> int:
        self._nodes.append((row, parents, exact))
        return len(self._nodes) - 1


def wrong_fault(
    program: Program,
    run: Run,
    ops: Sequence[Op] | Mapping[int, Op],
    order: Sequence[int],
    wrong: Wrong,
    exact: Symbols,
) -> Fault:
    """The wrong slot in words: what it should hold, what it lacks and has too much, and the ops that made it so."""
    lineage = Lineage(exact)
    execution = Execution(program, run, lineage)
    execution.execute(ops, order)
    value = held(execution, wrong)
    has = lineage.members(value)
    asked = exact.members(asked_value(program, exact, program.posts[wrong.post], wrong.place))
    steps = lineage.steps(value)
    rows = {row for row, _ in steps.values()}
    trail = tuple(row for row in order if row in rows)
    if not trail:
        return _untouched(program, wrong, exact, asked, has)
    parts = (("missing", asked - has), ("surplus", has - asked))
    found = "; ".join(f"{word} {exact.sum_text(part, _TERMS)}" for word, part in parts if part)
    place = {row: number for number, row in enumerate(trail)}
    guilty = sorted(_guilty(program, lineage, steps, asked, has, place), key=place.__getitem__)
    what = f"{_head(program, wrong, exact.sum_text(asked, _TERMS))}, but holds {_short(exact.sum_text(has, _TERMS))}"
    hint = f"look at op {guilty[0]} first: there it goes wrong" if guilty else None
    return Fault(what, trail, found, hint, blamed=tuple(dict.fromkeys([*guilty, trail[-1]])))


def too_much(program: Program, wrong: Wrong, ops: tuple[int, ...], found: str) -> Fault:
    """The fault of a wrong slot that takes too long to look into: where it is, and the last ops that made it."""
    what = f"{_slot_text(program, wrong)} does not hold {_asked_region(program, wrong)}"
    return Fault(what, ops, found, blamed=ops[-1:])


def _guilty(
    program: Program,
    lineage: Lineage,
    steps: Mapping[int, tuple[int, tuple[int, ...]]],
    asked: Counter[Atom],
    has: Counter[Atom],
    place: Mapping[int, int],
) -> set[int]:
    """Ops with which a value goes wrong: they bring what is not asked for, or are the first of the rank whose
    contribution is missing that write over it, or else that pass the value on without it."""
    if sum(len(lineage.members(node)) for node in steps) > _MOST_ATOMS:
        return set()
    guilty = set()
    for node, (row, before) in steps.items():
        known: Counter[Atom] = Counter()
        for other in before:
            known += lineage.members(other) - asked
        if (lineage.members(node) - asked) - known:
            guilty.add(row)
    missing = sorted((atom for atom in asked - has if atom[0] == "input"), key=repr)
    if len(missing) <= _TERMS:
        for _, buffer, rank, slot in missing:
            own = sorted((row for row in place if program.columns["rank"][row] == rank), key=place.__getitem__)
            over = [row for row in own if _writes(program, row, str(buffer), int(str(slot)))]
            guilty |= set((over or own)[:1])
    return guilty


def _writes(program: Program, row: int, buffer: str, slot: int) -> bool:
    """Whether an op writes over a slot of its own rank."""
    op = program.op(row)
    return op.kind != Kind.put and any(r.buffer == buffer and _holds(r, slot) for r in op.writes)


def _holds(region: Region, slot: int) -> bool:
    inside = slot - region.offset
    block = min(inside // region.stride, region.blocks - 1) if region.stride else 0
    return inside >= 0 and inside - block * region.stride < region.count


def _untouched(program: Program, wrong: Wrong, exact: Symbols, asked: Counter[Atom], has: Counter[Atom]) -> Fault:
    """A slot that no op writes, and the op that may have been meant to."""
    region = one_slot(program.posts[wrong.post].region, wrong.place)
    is_input = program.buffer(region.buffer).role == "input"
    what = _head(program, wrong, exact.sum_text(asked, _TERMS))
    what += f", but no op writes it{f', so it still holds {exact.sum_text(has)}' if is_input else ''}"
    near, how = _nearest(program, wrong.rank, region.buffer, region.offset, asked - has)
    if near is None:
        return Fault(what, found=f"no op of rank {wrong.rank} writes at all", hint="add an op that writes it")
    return Fault(what, (near,), f"op {near} {how}", hint="add an op that writes it, or let this one do so")


def _nearest(program: Program, rank: int, buffer: str, slot: int, missing: Counter[Atom]) -> tuple[int | None, str]:
    """The op that writes nearest to a slot; else one that reads what is missing there; else the last of the rank."""
    names = [b.name for b in program.buffers]
    writes = _regions_of(program, "write", rank, names.index(buffer))
    if len(writes):
        row, first, last = min(writes, key=lambda at: (max(at[1] - slot, slot - at[2] + 1), at[0]))
        return row, f"writes nearest to it, {buffer}[{first}:{last}]"
    for atom in sorted(missing, key=repr):
        if atom[0] == "input":
            _, name, source, start = atom
            for row, first, last in _regions_of(program, "read", int(str(source)), names.index(str(name))):
                if first <= int(str(start)) < last:
                    return row, f"reads what is missing, {name}[{start}] of rank {source}"
    own = np.flatnonzero(program.columns["rank"] == rank)
    return (int(own[-1]), f"is the last of rank {rank}") if len(own) else (None, "")


def _regions_of(program: Program, side: str, rank: int, buffer: int) -> list[tuple[int, int, int]]:
    """Ops that read or write a buffer on a rank: row, and where their regions begin and end."""
    col = program.columns
    rows = np.repeat(np.arange(program.num_ops), np.diff(col[f"{side}_start"]))
    at = np.flatnonzero((col[f"{side}_buffer"] == buffer) & (owners(program, side)[rows] == rank))
    first, count, stride, blocks = (col[f"{side}_{part}"][at] for part in ("offset", "count", "stride", "blocks"))
    last = first + count + stride * np.maximum(blocks - 1, 0)
    return list(zip(rows[at].tolist(), first.tolist(), last.tolist(), strict=True))


def _head(program: Program, wrong: Wrong, asked: str) -> str:
    return f"{_slot_text(program, wrong)} should hold {_short(asked) or 'nothing'} (post-condition {wrong.post})"


def _slot_text(program: Program, wrong: Wrong) -> str:
    region = one_slot(program.posts[wrong.post].region, wrong.place)
    return f"{region.buffer}[{region.offset}] of rank {wrong.rank}"


def _asked_region(program: Program, wrong: Wrong) -> str:
    """What a post-condition asks, from its terms alone."""
    post = program.posts[wrong.post]
    terms = [
        f"{term.kernel}(...)"
        if term.kernel is not None
        else f"{region.buffer}@{rank}[{one_slot(region, wrong.place).offset}]"
        for term in post.terms[: _TERMS + 1]
        for rank, region in term.args[:1]
    ]
    more = f" and {len(post.terms) - _TERMS} more" if len(post.terms) > _TERMS else ""
    return f"{_short(' + '.join(terms[:_TERMS]) or 'nothing')}{more} (post-condition {wrong.post})"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
