"""Traces for tests of passes: algorithms of copies and reduces, by hand or at random; and what is good on lanes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np

from dovetail.collective import Spec, spec_of
from dovetail.ir import Builder, Kind, Post, Program, Region, Term, verify
from dovetail.ir.op_lists import OpLists
from dovetail.ir.proof.greedy import Greedy
from dovetail.ir.proof.symbolic import Execution
from dovetail.ir.proof.symbols import Symbols
from dovetail.passes import Hints

Place = tuple[int, str, int]  # rank, buffer, slot


class Trace:
    """Copies and reduces in the order written: a remote one is a send and, in the next row, its receive."""

    def __init__(self, num_ranks: int, buffers: dict[str, tuple[str, int]], depth: int = 2) -> None:
        self.builder, self.depth = Builder("traced", num_ranks), depth
        for name, (role, slots) in buffers.items():
            self.builder.buffer(name, role, slots)  # type: ignore[arg-type]
        self.net = self.builder.lane("net", "net")
        self.hints: list[tuple[int, int, int]] = []

    @classmethod
    def of(cls, spec: Spec, depth: int = 2, **scratch: int) -> Trace:
        made = cls(spec.num_ranks, {b.name: (b.role, max(b.slots)) for b in spec.buffers}, depth)
        for name, slots in scratch.items():
            made.builder.buffer(name, "scratch", slots)
        for post in spec.posts:
            made.builder.post(*post)
        return made

    def move(
        self,
        source: Place,
        target: Place,
        count: int = 1,
        *,
        add: bool = False,
        ch: int = -1,
        lanes: tuple[int, int] = (-1, -1),
        copies: int = 1,
    ) -> None:
        """Copy `count` slots from `source` to `target`, or add them there."""
        (a, b), line = (source[0], target[0]), f"algorithm.py:{len(self.hints)}"
        src, dst = Region(*source[1:], count), Region(*target[1:], count)
        if a == b:
            self.builder.add(Kind.reduce if add else Kind.copy, a, self.net, reads=[src], writes=[dst], line=line)
            self.hints.append((-1, lanes[1], copies))
            return
        channel = self.builder.channel(a, b, max(ch, 0), self.depth)
        self.builder.add(Kind.send, a, self.net, reads=[src], chan_out=channel, line=line)
        kind, reads = (Kind.recv_reduce, [dst]) if add else (Kind.recv, [])
        self.builder.add(kind, b, self.net, reads=reads, writes=[dst], chan_in=channel, line=line)
        self.hints += [(ch, lanes[0], copies), (ch, lanes[1], copies)]

    def done(self) -> tuple[Program, Hints]:
        columns = np.array(self.hints, np.int32).reshape(-1, 3).T
        return self.builder.build(), Hints(*columns)


def ring(num_ranks: int, chunks: int = 1, depth: int = 2, ch: Sequence[int] = (-1,)) -> tuple[Program, Hints]:
    """all_reduce in place, written chunk by chunk; chunk c of every `num_ranks` on channel ch[c % len(ch)]."""
    trace = Trace.of(spec_of("all_reduce", num_ranks, chunks=num_ranks * chunks, in_place=True), depth)
    for chunk in range(num_ranks * chunks):
        for step in range(2 * num_ranks - 2):
            at, to = (chunk + step) % num_ranks, (chunk + step + 1) % num_ranks
            on = ch[chunk // num_ranks % len(ch)]
            trace.move((at, "input", chunk), (to, "input", chunk), add=step < num_ranks - 1, ch=on)
    return trace.done()


SLOTS = 4
BUFFERS = {"input": ("input", SLOTS), "output": ("output", SLOTS), "a": ("scratch", SLOTS), "b": ("scratch", SLOTS)}


def random_trace(rng: Random, *, operators: bool = False) -> tuple[Program, Hints]:
    """Moves of random places, often on from where the last one went; nothing undefined is read.

    With `operators`, some ask for channels and copies. Post-conditions say what the trace leaves in inputs and outputs.
    """
    ranks, depth, steps = rng.randint(2, 5), rng.choice([1, 2, 2, 8]), rng.choice([2, 5, 10, 20, 40])
    trace, last = Trace(ranks, BUFFERS, depth), None
    defined = {(rank, "input", slot) for rank in range(ranks) for slot in range(SLOTS)}
    for _ in range(steps):
        count = rng.choice([1, 1, 1, 2, 3])
        source = last if last and rng.random() < 0.6 else (_place(rng, ranks, count), count)
        (rank, buffer, slot), count = source
        target = _place(rng, ranks, count)
        target = (target[0], buffer, slot) if rng.random() < 0.3 else target
        if not _slots(*source) <= defined or _slots(*source) & _slots(target, count):
            continue
        add = rng.random() < 0.4 and _slots(target, count) <= defined
        operator = {"ch": rng.choice([-1, -1, 0, 1, 2]), "copies": rng.choice([1, 1, 2, 3])} if operators else {}
        trace.move((rank, buffer, slot), target, count, add=add, **operator)
        defined |= _slots(target, count)
        last = target, count
    program, hints = trace.done()
    return _posted(program), hints


def _place(rng: Random, ranks: int, count: int) -> Place:
    return rng.randrange(ranks), rng.choice(list(BUFFERS)), rng.randrange(SLOTS - count + 1)


def _slots(place: Place, count: int) -> set[Place]:
    rank, buffer, slot = place
    return {(rank, buffer, slot + i) for i in range(count)}


def _posted(program: Program) -> Program:
    """With what a symbolic run of the trace leaves as post-conditions, slot by slot."""
    lists, symbols = OpLists(program), Symbols()
    run = Greedy(lists)()
    execution, posts = Execution(program, run, symbols), []
    execution.execute(lists.ops, run.order)
    for rank in range(program.num_ranks):
        for region in (Region(buffer, slot, 1) for buffer in ("input", "output") for slot in range(SLOTS)):
            atoms = symbols.members(execution.memory.read(rank, region)[0])
            if sum(atoms.values()) > 100 or any(atom[0] != "input" for atom in atoms):
                continue
            terms = [Term(None, ((atom[2], Region(atom[1], atom[3], 1)),)) for atom in atoms.elements()]  # type: ignore[arg-type]
            posts.append(Post((rank,), region, tuple(terms)))
    return replace(program, posts=tuple(posts))


def kinds(program: Program) -> list[str]:
    return [Kind(int(kind)).name for kind in program.kind]


def assert_good(program: Program) -> None:
    """Certified, and every lane fit to be a threadblock: one peer each way and one channel; a channel end has one."""
    certificate = verify(program)
    assert certificate.ok, certificate
    assert certificate.min_fifo_depth <= min((c.depth for c in program.channels), default=1)
    ends: dict[object, set[object]] = {}
    for op in program.ops():
        for channel, side in ((op.chan_in, "in"), (op.chan_out, "out")):
            if channel >= 0:
                src, dst, number, _ = program.channels[channel]
                ends.setdefault((op.rank, op.lane, side), set()).add(src if side == "in" else dst)
                ends.setdefault((op.rank, op.lane), set()).add(number)
                ends.setdefault((channel, side), set()).add(op.lane)
    assert all(len(found) == 1 for found in ends.values())
    lanes = {rank: {lane for r, lane in program.queues() if r == rank} for rank in range(program.num_ranks)}
    assert all(used == set(range(len(used))) for used in lanes.values())
