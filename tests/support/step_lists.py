"""A Program run on names instead of numbers, by rules of its own: which rows of which rank are in every slot, and what
each rank was sent, multiplied and copied. It shares no code with the builders, the certificate or the executors."""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from itertools import chain
from typing import Any, NamedTuple

from dovetail.ir import Kind

Held = tuple[tuple[int, int, int], ...]  # of a slot: (rank, row, slice) of each A in it; of a result, in summing order


class Steps(NamedTuple):
    """What happened: results by (buffer, rank), slots in order; and by rank what it was sent (slots of each message),
    the products it made (rows, slices of K), and how many slots it copied to and from which buffers."""

    results: dict[tuple[str, int], list[Held]]
    messages: dict[int, Counter[int]]
    products: dict[int, Counter[tuple[int, int]]]
    copies: dict[int, Counter[tuple[str, str]]]


class Replay:
    """One run, its lanes in an order that the seed decides. AssertionError where a slot is used before it is filled."""

    def __init__(self, program: Any, slices: int = 1) -> None:
        self.program, self.slices, self.ranks = program, slices, range(program.num_ranks)
        self.memory: dict[tuple[str, int], list[Any]] = {}
        for buffer in program.buffers:
            for rank in self.ranks:
                count = buffer.slots[rank]
                names = [((rank, *divmod(slot, slices)),) for slot in range(count)]
                self.memory[buffer.name, rank] = names if buffer.name == "A" else [None] * count
        self.under_way: dict[int, deque[list[Held]]] = defaultdict(deque)
        self.seen = Steps(self.memory, defaultdict(Counter), defaultdict(Counter), defaultdict(Counter))

    def run(self, seed: int) -> Steps:
        rng, lanes = random.Random(seed), defaultdict(deque)
        for op in self.program.ops():
            lanes[op.rank, op.lane].append(op)
        self.lanes, self.done = lanes, set()
        while lanes:
            keys = [*lanes]
            first = rng.randrange(len(keys))
            ready = next(filter(None, map(self.ready, keys[first:] + keys[:first])), None)
            assert ready, "no lane can go on"
            self.call(ready) if ready[0].kind == Kind.collective else self.step(ready[0])
            for op in ready:
                self.done.add(op.index)
                lanes[op.rank, op.lane].popleft()
                if not lanes[op.rank, op.lane]:
                    del lanes[op.rank, op.lane]
        assert not any(self.under_way.values()), "a message was never taken in"
        return self.seen

    def ready(self, key: tuple[int, int]) -> list[Any]:
        """The op that a lane can do now; of a collective those of all members; nothing where it has to wait."""
        head = self.lanes[key][0]
        if head.kind != Kind.collective:
            return [head] if self.done.issuperset(head.after) and self.can(head) else []
        group = self.program.collectives[head.call].group
        heads = [self.lanes[rank, key[1]][0] for rank in group if (rank, key[1]) in self.lanes]
        alike = [op for op in heads if op.call == head.call and self.done.issuperset(op.after)]
        return alike if len(alike) == len(group) else []

    def can(self, op: Any) -> bool:
        if op.kind in (Kind.recv, Kind.recv_reduce):
            return bool(self.under_way[op.chan_in])
        return op.kind != Kind.send or len(self.under_way[op.chan_out]) < self.program.channels[op.chan_out].depth

    def read(self, rank: int, region: Any) -> list[Held]:
        held = [self.memory[region.buffer, rank][slot] for slot in region.slots()]
        assert None not in held, f"rank {rank} uses {region} before it is filled"
        return held

    def write(self, rank: int, region: Any, what: list[Held]) -> None:
        assert len(what) == region.num_slots
        for slot, held in zip(region.slots(), what, strict=True):
            self.memory[region.buffer, rank][slot] = held

    def step(self, op: Any) -> None:
        rank, reads, writes = op.rank, op.reads, op.writes
        if op.kind == Kind.send:
            self.under_way[op.chan_out].append(self.read(rank, reads[0]))
        elif op.kind in (Kind.recv, Kind.recv_reduce):
            came = self.under_way[op.chan_in].popleft()
            self.seen.messages[rank][len(came)] += 1
            self.write(rank, writes[0], self.added(rank, reads[0], came) if op.kind == Kind.recv_reduce else came)
        elif op.kind == Kind.copy:
            self.seen.copies[rank][reads[0].buffer, writes[0].buffer] += writes[0].num_slots
            self.write(rank, writes[0], self.read(rank, reads[0]))
        elif op.kind == Kind.reduce:
            self.write(rank, writes[0], self.added(rank, writes[0], self.read(rank, reads[0])))
        else:
            assert op.kind == Kind.compute
            self.multiply(op)

    def added(self, rank: int, region: Any, more: list[Held]) -> list[Held]:
        return [a + b for a, b in zip(self.read(rank, region), more, strict=True)]

    def multiply(self, op: Any) -> None:
        (rows, blocks), (into,) = op.reads, op.writes
        held, count = self.read(op.rank, rows), into.num_slots
        assert len(held) == count * blocks.num_slots, "rows of A have as many slices as B"
        each = [sum(held[i * blocks.num_slots : (i + 1) * blocks.num_slots], ()) for i in range(count)]
        if self.slices > 1:
            assert all([s for _, _, s in row] == blocks.slots().tolist() for row in each), "another slice of K"
        self.seen.products[op.rank][count, blocks.num_slots] += 1
        if self.program.kernels[op.call].accumulate:
            each = self.added(op.rank, into, each)
        self.write(op.rank, into, each)

    def call(self, ops: list[Any]) -> None:
        kind = self.program.collectives[ops[0].call].kind
        given = [[held for region in op.reads for held in self.read(op.rank, region)] for op in ops]
        parts = [[self.read(op.rank, region) for region in op.reads] for op in ops]
        for place, op in enumerate(ops):
            if kind == "all_gather":
                found = [*chain(*given)]
            elif kind == "all_to_all":
                found = [*chain(*(part[place] for part in parts))]
            else:  # sums, of which a reduce_scatter takes its own part
                found = [sum(held, ()) for held in zip(*given, strict=True)]
                if kind == "reduce_scatter":
                    first = sum(other.writes[0].num_slots for other in ops[:place])
                    found = found[first : first + op.writes[0].num_slots]
            for region in op.writes:
                self.write(op.rank, region, found[: region.num_slots])
                found = found[region.num_slots :]
