"""blame: explain why a slot is wrong: what it should hold, what it holds, and the ops that its value came through."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from dovetail.ir.program import Program
from dovetail.ir.proof.certificate import Fault
from dovetail.ir.proof.greedy import Run
from dovetail.ir.proof.symbolic import Execution, Wrong, held, one_slot
from dovetail.ir.proof.symbols import Atom, Operand, Symbols
from dovetail.ir.types import Kernel, Kind, Op, Region, Term
from dovetail.ir.workload import owners

_TERMS = 4  # terms of a sum that a text shows
_LONGEST = 240  # characters of a value in a text
_MOST_ATOMS = 1 << 20  # atoms that may be compared to find the ops at which a value goes wrong


class Lineage(Symbols):
    """Symbolic values that record the ops they came through. `exact` holds what each value is."""

    def __init__(self, exact: Symbols) -> None:
        super().__init__()
        self.exact = exact
        self._nodes: list[tuple[int, tuple[int, ...], int]] = []  # op (-1: none), parents, exact value

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

    def exact_value(self, value: int) -> int:
        return self._nodes[value][2]

    def members(self, value: int) -> Counter[Atom]:
        return self.exact.members(self.exact_value(value))

    def steps(self, value: int) -> dict[int, tuple[int, tuple[int, ...]]]:
        """Return the history of a value: for each node that an op made, its op and the nearest such nodes before it."""
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
        """Return the nearest nodes made by ops: the values themselves, or those that they came from."""
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
    wanted: int,
    reference: str | None,
) -> Fault:
    """Describe a wrong slot: what it should hold, what is missing and surplus, and the ops at which it goes wrong.

    `wanted`: the value in `exact` that it should hold. `reference`: the name of the program that defines this value;
    None if a post-condition does.
    """
    lineage = Lineage(exact)
    execution = Execution(program, run, lineage)
    execution.execute(ops, order)
    value = held(execution, wrong)
    has, asked = lineage.members(value), exact.members(wanted)
    steps = lineage.steps(value)
    rows = {row for row, _ in steps.values()}
    trail = tuple(row for row in order if row in rows)
    head = _head(wrong, exact.sum_text(asked, _TERMS), reference)
    if not trail:
        return _untouched(program, wrong, head, exact, asked, has)
    place = {row: number for number, row in enumerate(trail)}
    path, inner_asked, inner_has = _innermost(exact, asked, has)
    lacks = (asked - has, inner_asked - inner_has)
    found_guilty = (_guilty(program, lineage, steps, wanted, each, place) for each in lacks)
    guilty = sorted(next(filter(None, found_guilty), set()), key=place.__getitem__)
    found = _difference_text(exact, asked, has)
    if len(path) > 1:
        found += f"; that is, in {' of '.join(reversed(path))}: {_difference_text(exact, inner_asked, inner_has)}"
    what = f"{head}, but holds {_short(exact.sum_text(has, _TERMS))}"
    hint = f"look at op {guilty[0]} first: there it goes wrong" if guilty else None
    return Fault(what, trail, found, hint, blamed=tuple(dict.fromkeys([*guilty, trail[-1]])))


def too_much(program: Program, wrong: Wrong, ops: tuple[int, ...], found: str, reference: str | None) -> Fault:
    """Describe a wrong slot whose analysis would take too long: where it is, and the last ops that lead to it."""
    asked = f"what it holds after program '{reference}'" if reference is not None else _asked_region(program, wrong)
    return Fault(f"{_slot_text(wrong)} does not hold {asked}", ops, found, blamed=ops[-1:])


def _difference_text(exact: Symbols, asked: Counter[Atom], has: Counter[Atom]) -> str:
    parts = (("missing", asked - has), ("surplus", has - asked))
    return "; ".join(f"{word} {exact.sum_text(part, _TERMS)}" for word, part in parts if part)


def _innermost(
    exact: Symbols, asked: Counter[Atom], has: Counter[Atom]
) -> tuple[list[str], Counter[Atom], Counter[Atom]]:
    """Follow two values down while they differ in one operand of one kernel only.

    Return the path to that operand, what it should hold, and what it holds.
    """
    path: list[str] = []
    while True:
        missing, surplus = list((asked - has).items()), list((has - asked).items())
        if len(missing) != 1 or len(surplus) != 1 or missing[0][1] != surplus[0][1]:
            return path, asked, has
        apart = _operands_apart(missing[0][0], surplus[0][0])
        if len(apart) != 1:
            return path, asked, has
        (where, one, other) = apart[0]
        path += where
        asked, has = exact.members(one), exact.members(other)


def _operands_apart(one: Atom, other: Atom) -> list[tuple[list[str], int, int]]:
    """Return the operands (path, one, other) in which two results of one kernel differ; none if more differs."""
    if one[0] != "kernel" or one[:4] != other[:4]:
        return []
    found: list[tuple[list[str], int, int]] = []
    for number, (a, b) in enumerate(zip(one[4], other[4], strict=True)):  # type: ignore[call-overload]
        name = f"operand {number} of {one[1]}"
        if a == b:
            continue
        if isinstance(a, int) and isinstance(b, int):
            found.append(([name], a, b))
        elif isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
            found += [([name, f"slot {j}"], x, y) for j, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]
        else:
            return []
    return found


def _guilty(
    program: Program,
    lineage: Lineage,
    steps: Mapping[int, tuple[int, tuple[int, ...]]],
    wanted: int,
    lacks: Counter[Atom],
    place: Mapping[int, int],
) -> set[int]:
    """Return the ops at which a value goes wrong.

    These are ops whose result has a surplus that none of their operands has. If an input is missing, they are also the
    first op of its rank on the value's path that overwrites the input, or else the first op of that rank on the path.
    """
    exact, values = lineage.exact, {node: lineage.exact_value(node) for node in steps}
    if sum(map(exact.size, values.values())) > _MOST_ATOMS:
        return set()
    asked = _all_within(exact, wanted)
    surplus = {value: _beyond(exact.members(value), asked) for value in {*values.values()}}
    guilty = set()
    for node, (row, before) in steps.items():
        known: Counter[Atom] = Counter()
        for other in before:
            known += surplus[values[other]]
        new = surplus[values[node]] - known
        if new and not (known and all(atom[0] == "kernel" for atom in new)):
            guilty.add(row)
    missing = sorted((atom for atom in lacks if atom[0] == "input"), key=repr)
    if len(missing) <= _TERMS:
        for _, buffer, rank, slot in missing:
            own = sorted((row for row in place if program.columns["rank"][row] == rank), key=place.__getitem__)
            over = [row for row in own if _writes(program, row, str(buffer), int(str(slot)))]
            guilty |= set((over or own)[:1])
    return guilty


def _beyond(has: Counter[Atom], asked: Counter[Atom]) -> Counter[Atom]:
    """Return `has - asked`, in a time that does not grow with `asked`, whose counts are positive."""
    return Counter({atom: times - asked[atom] for atom, times in has.items() if times > asked[atom]})


def _all_within(exact: Symbols, wanted: int) -> Counter[Atom]:
    """Return the atoms of a value and of all operands of its kernels, each with its greatest count in one value."""
    found: Counter[Atom] = Counter()
    todo, seen, lists = [wanted], {wanted}, set[int]()
    while todo:
        for atom, times in exact.members(todo.pop()).items():
            found[atom] = max(found[atom], times)
            if atom[0] != "kernel":
                continue
            for operand in atom[4]:  # type: ignore[attr-defined]
                if isinstance(operand, tuple) and id(operand) in lists:
                    continue
                lists |= {id(operand)} if isinstance(operand, tuple) else set()
                fresh = {*operand} - seen if isinstance(operand, tuple) else {operand} - seen
                seen |= fresh
                todo += fresh
    return found


def _writes(program: Program, row: int, buffer: str, slot: int) -> bool:
    """Whether an op overwrites a slot of its own rank."""
    op = program.op(row)
    return op.kind != Kind.put and any(r.buffer == buffer and _holds(r, slot) for r in op.writes)


def _holds(region: Region, slot: int) -> bool:
    inside = slot - region.offset
    block = min(inside // region.stride, region.blocks - 1) if region.stride else 0
    return inside >= 0 and inside - block * region.stride < region.count


def _untouched(
    program: Program, wrong: Wrong, head: str, exact: Symbols, asked: Counter[Atom], has: Counter[Atom]
) -> Fault:
    """Describe a wrong slot that no op writes, and point to the op that perhaps should write it."""
    buffer, slot, *_ = wrong.slot
    is_input = program.buffer(buffer).role == "input"
    what = f"{head}, but no op writes it{f', so it still holds {exact.sum_text(has)}' if is_input else ''}"
    near, how = _nearest(program, wrong.rank, buffer, slot, asked - has)
    if near is None:
        return Fault(what, found=f"no op of rank {wrong.rank} writes at all", hint="add an op that writes it")
    return Fault(what, (near,), f"op {near} {how}", hint="add an op that writes it, or let this one do so")


def _nearest(program: Program, rank: int, buffer: str, slot: int, missing: Counter[Atom]) -> tuple[int | None, str]:
    """Return the op that writes nearest to a slot; else one that reads what is missing; else the rank's last op."""
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
    """Return (row, begin, end) of each region of a buffer on a rank that ops read, or write."""
    col = program.columns
    rows = np.repeat(np.arange(program.num_ops), np.diff(col[f"{side}_start"]))
    at = np.flatnonzero((col[f"{side}_buffer"] == buffer) & (owners(program, side)[rows] == rank))
    first, count, stride, blocks = (col[f"{side}_{part}"][at] for part in ("offset", "count", "stride", "blocks"))
    last = first + count + stride * np.maximum(blocks - 1, 0)
    return list(zip(rows[at].tolist(), first.tolist(), last.tolist(), strict=True))


def _head(wrong: Wrong, asked: str, reference: str | None) -> str:
    by = f"post-condition {wrong.post}" if reference is None else f"as in program '{reference}'"
    return f"{_slot_text(wrong)} should hold {_short(asked) or 'nothing'} ({by})"


def _slot_text(wrong: Wrong) -> str:
    return f"{wrong.slot.buffer}[{wrong.slot.offset}] of rank {wrong.rank}"


def _asked_region(program: Program, wrong: Wrong) -> str:
    """Describe what a post-condition requires, by its terms alone."""
    post = program.posts[wrong.post]
    terms = [_term_text(term, wrong.place) for term in post.terms[:_TERMS]]
    more = f" and {len(post.terms) - _TERMS} more" if len(post.terms) > _TERMS else ""
    return f"{_short(' + '.join(terms) or 'nothing')}{more} (post-condition {wrong.post})"


def _term_text(term: Term, place: int) -> str:
    if term.kernel is not None:
        return f"{term.kernel}(...)"
    rank, region = term.source
    return f"{region.buffer}@{rank}[{one_slot(region, place).offset}]"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
