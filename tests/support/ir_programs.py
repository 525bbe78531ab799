"""Random Programs for the tests of ir: valid ones by construction, faulty ones by mutation, and oracles of both."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from dataclasses import dataclass, field, replace
from itertools import pairwise

from dovetail.ir import Builder, Kernel, Kind, Post, Program, Region, Term
from dovetail.ir.op_lists import OpLists, op_reads, op_writes, slots
from dovetail.ir.proof.greedy import Greedy, Run
from dovetail.ir.proof.symbolic import Execution
from dovetail.ir.proof.symbols import Symbols
from dovetail.ir.proof.terms import known_slots, mapped, modes_of
from dovetail.ir.types import RECVS, SENDS

KERNELS = (
    Kernel("f", ("each",)),
    Kernel("g", ("each", "all")),
    Kernel("g", ("each", "all"), True),
    Kernel("h", ("all",)),
    Kernel("s", ("each", "each")),
)
SUMMING = (
    Kernel("m", ("each_sum", "sum")),
    Kernel("m", ("each_sum", "sum"), True),
    Kernel("c", ("all", "each_sum")),
    Kernel("d", ("sum", "each", "sum")),
    Kernel("q", ("sum",)),
    Kernel("fill", ()),
)
KINDS_OF_COLLECTIVE = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
UNEVEN = ("all_gather", "reduce_scatter", "all_to_all")


@dataclass(eq=False)
class Spec:
    """One op before it has a row; `after` holds other Specs."""

    kind: Kind
    rank: int
    lane: int
    reads: list[Region] = field(default_factory=list)
    writes: list[Region] = field(default_factory=list)
    chan_in: int = -1
    chan_out: int = -1
    call: int = -1
    after: list[Spec] = field(default_factory=list)


def specs_of(program: Program) -> list[Spec]:
    """The ops of a program as Specs."""
    ops = [
        Spec(op.kind, op.rank, op.lane, list(op.reads), list(op.writes), op.chan_in, op.chan_out, op.call)
        for op in program.ops()
    ]
    for op, spec in zip(program.ops(), ops, strict=True):
        spec.after = [ops[row] for row in op.after]
    return ops


def rebuilt(program: Program, ops: list[Spec]) -> Program:
    """The program's tables over other ops; dependencies on ops that are gone are dropped."""
    builder = Builder(program.name, program.num_ranks)
    for buffer in program.buffers:
        builder.buffer(*buffer)
    row = {id(spec): number for number, spec in enumerate(ops)}
    for spec in ops:
        after = [row[id(other)] for other in spec.after if id(other) in row]
        ends = {"chan_in": spec.chan_in, "chan_out": spec.chan_out, "call": spec.call}
        builder.add(spec.kind, spec.rank, spec.lane, reads=spec.reads, writes=spec.writes, **ends, after=after)
    return program.with_columns(builder.build().columns, lines=())


class Maker:
    """Writes a valid program as one sequence of ops on random lanes, ordered by dependencies and signals as needed."""

    def __init__(self, rng: random.Random, num_ops: int, kernels: tuple[Kernel, ...] = KERNELS + SUMMING) -> None:
        self.rng, self.kernels = rng, kernels
        self.num_ranks, self.num_lanes = rng.randint(1, 4), rng.randint(1, 3)
        self.builder = Builder("random", self.num_ranks)
        self.size = {"a": rng.randint(1, 6), "b": rng.randint(1, 6), "t": rng.randint(1, 6)}
        for name, role in (("a", "input"), ("b", "output"), ("t", "scratch")):
            self.builder.buffer(name, role, self.size[name])
        for lane in range(self.num_lanes):
            self.builder.lane(f"l{lane}", rng.choice(("compute", "copy", "net")))
        for kernel in kernels:
            self.builder.kernel(*kernel)
        self.ops: list[Spec] = []
        self.touched: dict[tuple[int, str, int], list[tuple[Spec, bool]]] = defaultdict(list)
        self.pending: dict[int, deque[int]] = defaultdict(deque)
        self.channel_lanes: dict[int, tuple[int, int, int, int]] = {}
        self.seat: dict[tuple[int, int], Spec] = {}
        steps = (self.local, self.local, self.message, self.message, self.forward, self.put, self.get, self.collective)
        for _ in range(num_ops):
            rng.choice(steps)()
        for channel in [c for c, sizes in self.pending.items() for _ in sizes]:
            self.receive(channel)

    def program(self) -> Program:
        built = rebuilt(self.builder.build(), self.ops)
        lists = OpLists(built)
        run = Greedy(lists)()
        assert run.complete
        return replace(with_depth(built, run.depth), posts=posts_of(lists, run, self.rng))

    def region(self, count: int | None = None, buffers: str = "abt") -> Region:
        """A random region; of `count` slots where given, which must fit one of the buffers."""
        rng = self.rng
        fitting = [b for b in buffers if count is None or self.size[b] >= count]
        buffer = rng.choice(fitting or [max("abt", key=self.size.__getitem__)])
        size = self.size[buffer]
        count = rng.randint(0 if rng.random() < 0.1 else 1, size) if count is None else count
        if count % 2 == 0 and count and rng.random() < 0.4:  # two blocks
            stride = rng.randint(count // 2, size - count // 2)
            return Region(buffer, rng.randint(0, size - stride - count // 2), count // 2, stride, 2)
        return Region(buffer, rng.randint(0, size - count), count)

    def place(self) -> tuple[int, int]:
        return self.rng.randrange(self.num_ranks), self.rng.randrange(self.num_lanes)

    def add(self, *specs: Spec) -> None:
        """Append ops that run as one, with the order that their accesses need."""
        for spec in specs:
            for rank, region, writes in self.touches(spec):
                for slot in slots(region):
                    for other, wrote in self.touched[rank, region.buffer, slot]:
                        if writes or wrote:
                            self.order(other, spec)
        for spec in specs:
            for rank, region, writes in self.touches(spec):
                for slot in slots(region):
                    self.touched[rank, region.buffer, slot].append((spec, writes))
            self.ops.append(spec)

    def touches(self, spec: Spec) -> list[tuple[int, Region, bool]]:
        target = self.peer(spec.chan_out) if spec.kind == Kind.put else spec.rank
        adds = spec.kind == Kind.reduce or (spec.kind == Kind.compute and self.kernels[spec.call].accumulate)
        source = self.channel_lanes[spec.chan_in][0] if spec.kind == Kind.get else spec.rank
        found = [(source, region, False) for region in spec.reads]
        return found + [(target, r, True) for r in spec.writes] + [(target, r, False) for r in spec.writes if adds]

    def order(self, first: Spec, second: Spec) -> None:
        """Let `second`, which is about to be appended, come after `first`."""
        if (first.rank, first.lane) == (second.rank, second.lane) or first in second.after:
            return
        if first.rank == second.rank:
            second.after.append(first)
            return
        channel = self.lanes_channel(first.rank, first.lane, second.rank, second.lane)
        self.ops.append(Spec(Kind.signal, first.rank, first.lane, chan_out=channel, after=[first]))
        self.ops.append(Spec(Kind.wait, second.rank, second.lane, chan_in=channel))

    def lanes_channel(self, src: int, src_lane: int, dst: int, dst_lane: int) -> int:
        channel = self.builder.channel(src, dst, src_lane * self.num_lanes + dst_lane)
        self.channel_lanes[channel] = (src, src_lane, dst, dst_lane)
        return channel

    def peer(self, channel: int) -> int:
        return self.channel_lanes[channel][2]

    def local(self) -> None:
        rank, lane = self.place()
        kind = self.rng.choice((Kind.copy, Kind.reduce, Kind.compute, Kind.compute, Kind.nop))
        if kind == Kind.nop:
            self.add(Spec(kind, rank, lane, after=[op for op in self.ops[-3:] if op.rank == rank]))
            return
        target = self.region(buffers="bt")
        if kind != Kind.compute:
            source = self.region(target.num_slots)
            reads = [target if source.buffer == target.buffer else source]
            self.add(Spec(kind, rank, lane, reads, [target]))
            return
        call = self.rng.randrange(len(self.kernels))
        self.add(Spec(kind, rank, lane, self.operands(self.kernels[call].modes, target), [target], call=call))

    def operands(self, modes: tuple[str, ...], target: Region) -> list[Region]:
        """What a kernel reads, each slot of the result the sum of up to three terms."""
        others = [buffer for buffer in self.size if buffer != target.buffer]
        most = max(self.size[buffer] for buffer in others) // max(target.num_slots, 1)
        terms = self.rng.randint(1, max(min(most, 3), 1))
        if "each_sum" not in modes:
            terms = self.rng.randint(1, min(3, max(self.size.values())))
        reads = []
        for mode in modes:
            if mode == "each_sum" and terms > 1:
                reads.append(self.region(target.num_slots * terms, "".join(others)))
                continue
            sizes = {"each": target.num_slots, "each_sum": target.num_slots, "sum": terms}
            region = self.region(sizes.get(mode))
            reads.append(target if region.buffer == target.buffer and mode in ("each", "each_sum") else region)
        return reads

    def ends(self) -> tuple[int, int, int, int] | None:
        if self.num_ranks == 1:
            return None
        (src, src_lane), (dst, dst_lane) = self.place(), self.place()
        return None if src == dst else (src, src_lane, dst, dst_lane)

    def message(self) -> None:
        ends = self.ends()
        if ends:
            self.send(ends, self.region())
        if self.pending and self.rng.random() < 0.6:
            self.receive(self.rng.choice([c for c, sizes in self.pending.items() if sizes]))

    def send(self, ends: tuple[int, int, int, int], region: Region) -> None:
        channel = self.lanes_channel(*ends)
        self.add(Spec(Kind.send, ends[0], ends[1], [region], chan_out=channel))
        self.pending[channel].append(region.num_slots)

    def receive(self, channel: int) -> None:
        count = self.take(channel)
        _, _, rank, lane = self.channel_lanes[channel]
        target = self.region(count, "bt")
        if self.rng.random() < 0.5:
            self.add(Spec(Kind.recv, rank, lane, [], [target], chan_in=channel))
        else:
            self.add(Spec(Kind.recv_reduce, rank, lane, [self.aligned(target)], [target], chan_in=channel))

    def take(self, channel: int) -> int:
        count = self.pending[channel].popleft()
        if not self.pending[channel]:
            del self.pending[channel]
        return count

    def aligned(self, target: Region) -> Region:
        source = self.region(target.num_slots)
        return target if source.buffer == target.buffer else source

    def forward(self) -> None:
        """A fused op: takes a message and sends it on."""
        if not self.pending:
            return self.message()
        channel = self.rng.choice(list(self.pending))
        _, _, rank, lane = self.channel_lanes[channel]
        dst, dst_lane = self.place()
        if dst == rank:
            return None
        count, out = self.take(channel), self.lanes_channel(rank, lane, dst, dst_lane)
        kind = self.rng.choice((Kind.recv_copy_send, Kind.recv_reduce_send, Kind.recv_reduce_copy_send))
        target = self.region(count, "bt")
        reads = [] if kind == Kind.recv_copy_send else [self.aligned(target)]
        writes = [] if kind == Kind.recv_reduce_send else [target]
        self.add(Spec(kind, rank, lane, reads, writes, chan_in=channel, chan_out=out))
        self.pending[out].append(count)
        return None

    def put(self) -> None:
        ends = self.ends()
        if ends:
            target = self.region(buffers="bt")
            source = self.region(target.num_slots)
            self.add(Spec(Kind.put, ends[0], ends[1], [source], [target], chan_out=self.lanes_channel(*ends)))

    def get(self) -> None:
        ends = self.ends()
        if ends:
            target = self.region(buffers="bt")
            source = self.region(target.num_slots)
            self.add(Spec(Kind.get, ends[2], ends[3], [source], [target], chan_in=self.lanes_channel(*ends)))

    def collective(self) -> None:
        rng = self.rng
        group = tuple(rng.sample(range(self.num_ranks), rng.randint(1, self.num_ranks)))
        kind, p = rng.choice(KINDS_OF_COLLECTIVE), len(group)
        call = self.builder.collective(kind, group)
        small = min(self.size.values())
        unit = (
            rng.randint(1, small // p if kind != "all_reduce" and kind != "broadcast" else small) if small >= p else 0
        )
        whole = unit * p
        reads = {"reduce_scatter": whole, "all_to_all": whole}.get(kind, unit)
        writes = {"all_gather": whole, "all_to_all": whole}.get(kind, unit)
        members = []
        sides = self.uneven_sides(kind, p) if kind in UNEVEN and rng.random() < 0.6 else None
        for place, rank in enumerate(group):
            source, target = [self.region(reads, "at")], [self.region(writes, "b")]
            root = kind == "broadcast" and place == 0
            source = [] if kind == "broadcast" and not root else source
            source, target = sides[place] if sides else (source, target)
            members.append(Spec(Kind.collective, rank, rng.randrange(self.num_lanes), source, target, call=call))
        for spec in members:
            seat = self.seat.get((call, spec.rank))
            if seat:
                self.order(seat, spec)
            self.seat[call, spec.rank] = spec
        self.add(*members)

    def uneven_sides(self, kind: str, p: int) -> list[tuple[list[Region], list[Region]]]:
        """What each of `p` members reads and writes, in parts of any sizes."""
        if kind == "all_to_all":
            taken = [self.shares(self.size["b"], p) for _ in range(p)]
            most = max(self.size["a"], self.size["t"])
            taken = [[min(count, most) for count in row] for row in taken]
            reads = [[self.region(taken[j][i], "at") for j in range(p)] for i in range(p)]
            return [(reads[i], self.apart("b", taken[i])) for i in range(p)]
        small = min(self.size.values())
        parts = self.shares(small, p)
        if kind == "all_gather":
            return [([self.region(part, "at")], [self.region(sum(parts), "b")]) for part in parts]
        return [([self.region(sum(parts), "at")], [self.region(part, "b")]) for part in parts]

    def shares(self, most: int, count: int) -> list[int]:
        """Random sizes, some of them zero, that together are `most` or less."""
        cuts = sorted(self.rng.randint(0, most) for _ in range(count + 1))
        return [b - a for a, b in pairwise(cuts)]

    def apart(self, buffer: str, counts: list[int]) -> list[Region]:
        """Regions of these sizes side by side, in any order."""
        start, found = {}, self.rng.randint(0, self.size[buffer] - sum(counts))
        for place in self.rng.sample(range(len(counts)), len(counts)):
            start[place] = found
            found += counts[place]
        return [Region(buffer, start[place], count) for place, count in enumerate(counts)]


def with_depth(program: Program, depth: int) -> Program:
    return replace(program, channels=tuple(c._replace(depth=depth) for c in program.channels))


def posts_of(lists: OpLists, run, rng: random.Random) -> tuple[Post, ...]:
    """Post-conditions for what the program leaves, where sums of inputs and simple kernels can say it."""
    symbols = Symbols()
    execution = Execution(lists.program, run, symbols)
    execution.execute(lists.ops, run.order)
    found = []
    for buffer in lists.program.buffers:
        for rank in range(lists.program.num_ranks):
            for slot in range(buffer.slots[rank]):
                region = Region(buffer.name, slot, 1)
                (value,) = execution.memory.read(rank, region)
                members = symbols.members(value).items()
                terms = [[term_of(symbols, atom)] * times for atom, times in members if times < 9]
                flat = [term for each in terms for term in each]
                if len(terms) == len(members) and None not in flat and rng.random() < 0.8:
                    found.append(Post((rank,), region, tuple(flat)))
    return tuple(found)


def term_of(symbols: Symbols, atom, depth: int = 4) -> Term | None:
    """The term that asks for an atom, if there is one of moderate size."""
    if atom[0] == "input":
        return Term(None, ((atom[2], Region(atom[1], atom[3], 1)),))
    if atom[0] != "kernel" or atom[2] != 0 or atom[3] not in (-1, 0) or depth == 0:
        return None
    args = [arg_of(symbols, operand, depth - 1) for operand in atom[4]]
    return None if None in args else Term(atom[1], tuple(args))


def arg_of(symbols: Symbols, operand, depth: int):
    """The operand of a term: a region, a term, or a sum of such."""
    values = (operand,) if isinstance(operand, int) else operand
    starts = [input_of(symbols, value) for value in values]
    if starts and None not in starts:
        _, buffer, rank, first = starts[0]
        run = [("input", buffer, rank, first + j) for j in range(len(starts))]
        return (rank, Region(buffer, first, len(starts))) if starts == run else None
    if len(values) != 1:
        return None
    members = symbols.members(values[0])
    if not members or members.total() > 4:
        return None
    terms = [term_of(symbols, atom, depth) for atom in members.elements()]
    args = [term.source if term and term.kernel is None else term for term in terms]
    return None if None in args else args[0] if len(args) == 1 else Term(None, tuple(args))


def input_of(symbols: Symbols, value: int):
    members = symbols.members(value)
    (atom,) = members if len(members) == 1 else (("none",),)
    return atom if atom[0] == "input" and members[atom] == 1 else None


def holds_undefined(symbols: Symbols, value: int, seen: dict[int, bool]) -> bool:
    """Whether anything that a value is made of was never written."""
    if value not in seen:
        seen[value] = False
        seen[value] = any(
            atom[0] == "undefined"
            or (
                atom[0] == "kernel"
                and any(holds_undefined(symbols, v, seen) for o in atom[4] for v in ((o,) if isinstance(o, int) else o))
            )
            for atom in symbols.members(value)
        )
    return seen[value]


def scaled(program: Program, factor: int) -> Program:
    """The same program with every slot replaced by `factor` slots."""

    def region(r: Region) -> Region:
        return Region(r.buffer, r.offset * factor, r.count * factor, r.stride * factor, r.blocks)

    columns = dict(program.columns)
    for side in ("read", "write"):
        for part in ("offset", "count", "stride"):
            columns[f"{side}_{part}"] = columns[f"{side}_{part}"] * factor
    posts = tuple(
        Post(
            post.ranks,
            region(post.region),
            tuple(mapped(term, region) for term in post.terms),
        )
        for post in program.posts
    )
    buffers = tuple(b._replace(slots=tuple(n * factor for n in b.slots)) for b in program.buffers)
    return replace(program.with_columns(columns), posts=posts, buffers=buffers)


def tells_sizes(program: Program) -> bool:
    """Whether every operand that a term takes whole says how many slots it has: else one is meant, which `scaled` does
    not make several."""
    modes = {kernel.name: kernel.modes for kernel in program.kernels}

    def has_sizes(term: Term) -> bool:
        inner = [(a, mode) for a, mode in zip(term.args, modes_of(term, modes), strict=True) if isinstance(a, Term)]
        return all(has_sizes(a) and (mode != "all" or known_slots(a, modes) is not None) for a, mode in inner)

    return all(has_sizes(term) for post in program.posts for term in post.terms)


def mutated(program: Program, rng: random.Random) -> Program:
    """The program with one random change: often a fault, now and then harmless."""
    ops = specs_of(program)
    changes = [
        _drop,
        _swap,
        _shift,
        _cut,
        _retarget,
        _rekind,
        _rechannel,
        _undepend,
        _depend,
        _relane,
        _double,
        _rerank,
    ]
    if ops and rng.random() < 0.9:
        rng.choice(changes)(program, ops, rng)
        return rebuilt(program, ops)
    if program.channels and rng.random() < 0.5:
        depths = tuple(c._replace(depth=rng.randint(1, 2)) for c in program.channels)
        return replace(program, channels=depths)
    if program.posts:
        number = rng.randrange(len(program.posts))
        post = program.posts[number]
        region = post.region._replace(offset=post.region.offset + rng.choice((-1, 1)))
        terms = post.terms[1:] if rng.random() < 0.5 else post.terms
        changed = rng.choice((post._replace(region=region), post._replace(terms=terms)))
        return replace(program, posts=(*program.posts[:number], changed, *program.posts[number + 1 :]))
    return program


def _drop(program: Program, ops: list[Spec], rng: random.Random) -> None:
    del ops[rng.randrange(len(ops))]


def _swap(program: Program, ops: list[Spec], rng: random.Random) -> None:
    first = rng.randrange(len(ops))
    same = [i for i in range(first + 1, len(ops)) if (ops[i].rank, ops[i].lane) == (ops[first].rank, ops[first].lane)]
    if same:
        ops[first], ops[same[0]] = ops[same[0]], ops[first]


def _regions(ops: list[Spec], rng: random.Random) -> tuple[list[Region], int] | None:
    sides = [side for op in ops for side in (op.reads, op.writes) if side]
    if not sides:
        return None
    side = rng.choice(sides)
    return side, rng.randrange(len(side))


def _shift(program: Program, ops: list[Spec], rng: random.Random) -> None:
    at = _regions(ops, rng)
    if at:
        side, i = at
        side[i] = side[i]._replace(offset=side[i].offset + rng.choice((-1, 1)))


def _cut(program: Program, ops: list[Spec], rng: random.Random) -> None:
    at = _regions(ops, rng)
    if at:
        side, i = at
        change = {rng.choice(("count", "stride", "blocks")): rng.randint(-1, 4)}
        side[i] = side[i]._replace(**change)


def _retarget(program: Program, ops: list[Spec], rng: random.Random) -> None:
    at = _regions(ops, rng)
    if at:
        side, i = at
        side[i] = side[i]._replace(buffer=rng.choice(program.buffers).name)


def _rekind(program: Program, ops: list[Spec], rng: random.Random) -> None:
    op = rng.choice(ops)
    alike = {
        Kind.copy: Kind.reduce,
        Kind.reduce: Kind.copy,
        Kind.signal: Kind.nop,
        Kind.recv_reduce: Kind.recv,
        Kind.recv_copy_send: Kind.recv,
        Kind.put: Kind.send,
        Kind.get: Kind.recv,
    }
    op.kind = alike.get(op.kind, rng.choice(list(Kind))) if rng.random() < 0.8 else rng.choice(list(Kind))


def _rechannel(program: Program, ops: list[Spec], rng: random.Random) -> None:
    users = [op for op in ops if op.chan_in >= 0 or op.chan_out >= 0]
    if not users:
        return
    op, end = rng.choice(users), rng.choice(("chan_in", "chan_out"))
    old = getattr(op, end)
    ends = program.channels[old][:2] if old >= 0 else None
    alike = [row for row, c in enumerate(program.channels) if c[:2] == ends] or [-1]
    setattr(op, end, rng.choice(alike) if rng.random() < 0.8 else rng.randrange(-1, len(program.channels)))


def _undepend(program: Program, ops: list[Spec], rng: random.Random) -> None:
    users = [op for op in ops if op.after]
    if users:
        after = rng.choice(users).after
        del after[rng.randrange(len(after))]


def _depend(program: Program, ops: list[Spec], rng: random.Random) -> None:
    op = rng.choice(ops)
    same = [other for other in ops if other.rank == op.rank]
    op.after.append(rng.choice(same if rng.random() < 0.9 else ops))


def _relane(program: Program, ops: list[Spec], rng: random.Random) -> None:
    rng.choice(ops).lane = rng.randrange(len(program.lanes))


def _rerank(program: Program, ops: list[Spec], rng: random.Random) -> None:
    rng.choice(ops).rank = rng.randrange(program.num_ranks)


def _double(program: Program, ops: list[Spec], rng: random.Random) -> None:
    at = rng.randrange(len(ops))
    ops.insert(at, replace(ops[at], reads=list(ops[at].reads), writes=list(ops[at].writes), after=list(ops[at].after)))


CHANGES = (_drop, _swap, _shift, _cut, _retarget, _rekind, _rechannel, _undepend, _depend, _relane, _double, _rerank)


def in_parts(program: Program) -> Program:
    """Every op that sends or receives as several ops of one slot: how messages travel in parts."""
    ops, parts = specs_of(program), {}
    for spec in ops:
        moved = (spec.reads or spec.writes)[:1] if spec.kind in RECVS | SENDS else []
        count = max(moved[0].num_slots, 1) if moved else 1
        parts[id(spec)] = [replace(spec) for _ in range(count)]
        for j, part in enumerate(parts[id(spec)] if count > 1 else ()):
            part.reads = [Region(r.buffer, slots(r)[j], 1) for r in spec.reads]
            part.writes = [Region(r.buffer, slots(r)[j], 1) for r in spec.writes]
    for spec in ops:
        for part in parts[id(spec)]:
            part.after = [parts[id(other)][-1] for other in spec.after]
    return rebuilt(program, [part for spec in ops for part in parts[id(spec)]])


def reachable(lists: OpLists, run) -> tuple[list[set[int]], list[set[int]]]:
    """For each op those that have ended whenever it begins, and whenever its message, if it has one, has come.

    By walking the graph: an oracle of the clocks.
    """
    begun: list[set[int]] = [set() for _ in lists.ops]
    came: list[set[int]] = [set() for _ in lists.ops]
    ended: list[set[int]] = [set() for _ in lists.ops]
    done: set[int] = set()

    def closed(causes: list[int]) -> set[int]:
        return set(causes).union(*(ended[cause] for cause in causes))

    for row in run.order:
        members = run.groups.get(row, (row,))
        if row in done:
            continue
        for member in members:
            queue = lists.queues[lists.queue_of[member]]
            begun[member] = closed([*lists.ops[member].after, *queue[: lists.position[member]]])
            came[member] = begun[member] | closed([run.matched[member]] if member in run.matched else [])
        for j, member in enumerate(members):
            reported = [came[other] for i, other in enumerate(members) if informs_of(lists, members, i, j)]
            ended[member] = came[member].union(*reported)
        done.update(members)
    return begun, came


def informs_of(lists: OpLists, members: tuple[int, ...], i: int, j: int) -> bool:
    if len(members) == 1:
        return False
    mine, theirs = lists.ops[members[i]], lists.ops[members[j]]
    kind = lists.program.collectives[mine.call].kind
    if kind == "broadcast":
        return i == 0 and mine.reads[0].num_slots > 0
    if kind == "all_to_all" and len(mine.reads) > 1:
        return mine.reads[j].num_slots > 0
    return (theirs.writes if kind == "reduce_scatter" else mine.reads)[0].num_slots > 0


def has_race(program: Program) -> bool:
    """Whether any two conflicting accesses, or turns, are unordered: all pairs of parts, by reachability."""
    lists = OpLists(in_parts(program))
    program = lists.program
    begun, came = reachable(lists, Greedy(lists)())
    touch = []
    for op in lists.ops:
        reads = {(a.rank, a.region.buffer, s) for a in op_reads(program, op) for s in slots(a.region)}
        writes = {(a.rank, a.region.buffer, s) for a in op_writes(program, op) for s in slots(a.region)}
        ends = {("in", op.kind in RECVS, op.chan_in)} if op.kind in RECVS or op.kind == Kind.wait else set()
        ends |= {("out", op.kind in SENDS, op.chan_out)} if op.kind in SENDS or op.kind == Kind.signal else set()
        ends |= {("seat", op.call, op.rank)} if op.kind == Kind.collective else set()
        touch.append((reads, writes, ends))
    for a, (reads, writes, ends) in enumerate(touch):
        for b in range(a):
            other_reads, other_writes, other_ends = touch[b]
            conflict = writes & (other_reads | other_writes) or reads & other_writes
            if conflict and a not in came[b] and b not in came[a]:
                return True
            if ends & other_ends and a not in begun[b] and b not in begun[a]:
                return True
    return False


def looping(rng: random.Random) -> Program:
    """One message that is forwarded from rank to rank, and may come to the same ones again and again."""
    num_ranks = rng.randint(2, 3)
    builder = Builder("looping", num_ranks)
    builder.buffer("a", "input", 5), builder.buffer("t", "scratch", 5)
    lanes = [builder.lane(f"l{lane}", "net") for lane in range(4)]
    hops, count = [0], rng.randint(1, 4)
    for _ in range(rng.randint(2, 5)):
        hops.append(rng.choice([rank for rank in range(num_ranks) if rank != hops[-1]]))

    def region() -> Region:
        stride = rng.choice([0, 1, 2]) if count == 2 else 0
        if stride:
            return Region("t", rng.randint(0, 4 - stride), 1, stride, 2)
        return Region("t", rng.randint(0, 5 - count), count)

    for hop, rank in enumerate(hops):
        into, out = hop > 0, hop < len(hops) - 1
        target = region()
        kind = rng.choice([Kind.recv_copy_send, Kind.recv_reduce_send, Kind.recv_reduce_copy_send])
        kind = Kind.send if not into else kind if out else rng.choice([Kind.recv, Kind.recv_reduce])
        reads = [] if kind in (Kind.recv, Kind.recv_copy_send) else [target]
        writes = [] if kind in (Kind.send, Kind.recv_reduce_send) else [target]
        ends = {"chan_in": builder.channel(hops[hop - 1], rank, hop - 1)} if into else {}
        ends |= {"chan_out": builder.channel(rank, hops[hop + 1], hop)} if out else {}
        builder.add(kind, rank, rng.choice(lanes), reads=reads, writes=writes, **ends)
    return builder.build()


def random_run(lists: OpLists, rng: random.Random):
    """One legal order of the ops at the declared depths, chosen at random; incomplete where it gets stuck."""
    run, done = Run(), [0] * len(lists.queues)
    ran: set[int] = set()
    fifos: dict[tuple[bool, int], deque[int]] = defaultdict(deque)
    calls: dict[tuple[int, int], list[int]] = defaultdict(list)

    def may_run(op) -> bool:
        if any(row not in ran for row in op.after):
            return False
        takes = op.kind in RECVS or op.kind == Kind.wait
        if takes and not fifos[op.kind == Kind.wait, op.chan_in]:
            return False
        if op.kind in SENDS and len(fifos[False, op.chan_out]) >= lists.program.channels[op.chan_out].depth:
            return False
        if op.kind == Kind.collective and op.index not in calls[op.call, op.rank]:
            calls[op.call, op.rank].append(op.index)
        return op.kind != Kind.collective or members_of(op) is not None

    def members_of(op):
        number = calls[op.call, op.rank].index(op.index)
        group = lists.program.collectives[op.call].group
        arrived = all(len(calls[op.call, rank]) > number for rank in group)
        return tuple(calls[op.call, rank][number] for rank in group) if arrived else None

    while True:
        heads = [lists.ops[rows[n]] for rows, n in zip(lists.queues, done, strict=True) if n < len(rows)]
        rng.shuffle(heads)
        op = next((head for head in heads if may_run(head)), None)
        if op is None:
            run.complete = not heads
            return run
        members = members_of(op) if op.kind == Kind.collective else (op.index,)
        for row in members:
            run.groups[row] = members
            run.order.append(row)
            ran.add(row)
            done[lists.queue_of[row]] += 1
        if op.kind in RECVS or op.kind == Kind.wait:
            run.matched[op.index] = fifos[op.kind == Kind.wait, op.chan_in].popleft()
        if op.kind in SENDS or op.kind == Kind.signal:
            fifos[op.kind == Kind.signal, op.chan_out].append(op.index)
