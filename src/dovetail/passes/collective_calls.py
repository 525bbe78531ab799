"""collective_calls: find the library's collectives in a Program, each with the algorithm that can replace it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from typing import NamedTuple, NoReturn

import numpy as np

from dovetail.core import ProgramError
from dovetail.ir import Kind, Op, Program, Region, Sizes, slot_sizes
from dovetail.ir.collectives import Traits, traits_of
from dovetail.ir.proof.bounds import collective_fault, op_fault
from dovetail.ir.proof.certificate import Fault
from dovetail.passes.member_steps import Step, member_steps
from dovetail.passes.regions import Bounds, apart, bounds, common_unit, cut

# (kind, group size, in place) -> the algorithm, or None to keep the library's call. In place, the algorithm
# has no output buffer, and its input is the whole array of a rank.
Make = Callable[[str, int, bool], Program | None]


class Place(NamedTuple):
    """The place of an algorithm's buffer on a rank: its slot i is slots bounds[i] to bounds[i + 1] of the region."""

    region: Region
    bounds: Bounds

    def of(self, part: Region) -> Region:
        """Return the program's region for `part` of the algorithm's buffer."""
        return cut(self.region, self.bounds[part.offset], self.bounds[part.offset + part.count])


@dataclass(frozen=True)
class Algorithm:
    """A Program that performs a collective: its input, its output (None: in place), and the steps of each rank."""

    program: Program
    steps: Sequence[Sequence[Step]]
    input: str
    output: str | None

    @classmethod
    def of(cls, program: Program, size: int) -> Algorithm:
        """Return `program` as an Algorithm. ProgramError unless it has `size` ranks, one input, at most one output."""
        names = {role: [b.name for b in program.buffers if b.role == role] for role in ("input", "output")}
        if program.num_ranks != size or len(names["input"]) != 1 or len(names["output"]) > 1:
            found = f"'{program.name}' of {program.num_ranks} ranks, with buffers {names}"
            raise ProgramError(f"no algorithm for {size} ranks with one input and at most one output", found=found)
        return cls(program, member_steps(program), names["input"][0], next(iter(names["output"]), None))

    @cached_property
    def scratch(self) -> frozenset[str]:
        """The other buffers that steps use."""
        steps = chain.from_iterable(self.steps)
        used = {region.buffer for step in steps for region in (*step.reads, *step.writes)}
        return frozenset(used - {self.input, self.output})

    def writes(self, rank: int) -> Iterator[Region]:
        """Yield the regions that `rank` writes."""
        return chain.from_iterable(step.writes for step in self.steps[rank])


@dataclass(frozen=True)
class Call:
    """One call by all members of a group. `ops` are in the group's order. `parts`: slots of what the algorithm cuts
    into chunks, one part for each member or one in all."""

    kind: str
    ops: Sequence[Op]
    algorithm: Algorithm
    parts: tuple[int, ...]
    unit: int

    @property
    def traits(self) -> Traits:
        return traits_of(self.kind)

    def places(self, member: int) -> Mapping[str, Place]:
        """Return the places of the algorithm's buffers on a member, without scratch."""
        found = {self.algorithm.input: self._place(member, 0)}
        if self.algorithm.output is not None:
            found[self.algorithm.output] = self._place(member, 1)
        return found

    def first_copy(self, member: int) -> tuple[Region, Region] | None:
        """Return the copy (source, destination) that must precede an algorithm in place; None if there is none."""
        op = self.ops[member]
        if self.algorithm.output is not None or not (op.reads and op.writes) or self.traits.output_is_part:
            return None
        if self.traits.from_root and member > 0:
            return None
        home = self._own(op.writes[0], member) if self.traits.input_is_part else op.writes[0]
        return (op.reads[0], home) if home != op.reads[0] and home.num_slots else None

    def scratch_sizes(self) -> Sizes:
        """Return how many slots each slot of the algorithm's scratch stands for. Raises ProgramError if sizes differ in
        a way that the algorithm does not allow."""
        names = self.algorithm.scratch
        if not names:
            return {}
        places = [self.places(member) for member in range(len(self.ops))]
        known = {name: tuple(np.diff(place[name].bounds) for place in places) for name in places[0]}
        try:
            found = slot_sizes(self.algorithm.program, known)
        except ProgramError as error:
            refuse(self.ops[0], f"has parts of sizes that the algorithm cannot keep apart: {error.what}")
        return {name: found[name] for name in names}

    def check(self) -> None:
        """Raise ProgramError if source and destination overlap in a forbidden way, or blocks would be cut."""
        if any(part % self.unit for part in self.parts):
            refuse(self.ops[0], f"would be cut inside a block: parts of {self.parts} slots, blocks of {self.unit}")
        in_place = self.algorithm.output is None
        for member, op in enumerate(self.ops):
            if overlaps(op) and not (in_place and self._is_in_place(op, member)):
                refuse(op, "has a source and a destination that overlap in part")
            if in_place and self.traits.output_is_part and not self._is_in_place(op, member):
                refuse(op, "has a separate destination, but the algorithm is in place")
            if self._spoils_input(member):
                refuse(op, f"would have its input overwritten by algorithm '{self.algorithm.program.name}'")

    def _spoils_input(self, member: int) -> bool:
        """Whether the algorithm overwrites input: in a reduce_scatter in place, also the other members' parts."""
        own, slots = range(0), self.algorithm.program.slots_of(self.algorithm.input, member)
        if self.algorithm.output is None:
            chunks = slots // len(self.parts)
            own = range(member * chunks, (member + 1) * chunks) if self.traits.output_is_part else range(slots)
        written = (region for region in self.algorithm.writes(member) if region.buffer == self.algorithm.input)
        return any(region.offset < own.start or region.offset + region.count > own.stop for region in written)

    def _is_in_place(self, op: Op, member: int) -> bool:
        src, dst = op.reads[0], op.writes[0]
        if self.traits.input_is_part:
            return src == self._own(dst, member)
        return dst == self._own(src, member) if self.traits.output_is_part else src == dst

    def _own(self, whole: Region, member: int) -> Region:
        """The member's part of a region with the parts of all members."""
        starts = [0, *accumulate(self.parts)]
        return cut(whole, starts[member], starts[member + 1])

    def _place(self, member: int, side: int) -> Place:
        """The place of the algorithm's input (side 0) or output (side 1)."""
        algorithm, op = self.algorithm, self.ops[member]
        name = (algorithm.input, algorithm.output)[side]
        assert name is not None
        if algorithm.output is not None:
            region = (op.reads, op.writes)[side][0]
            is_part = (self.traits.input_is_part, self.traits.output_is_part)[side]
            parts = (self.parts[member],) if is_part else self.parts
        else:
            region = op.reads[0] if self.traits.output_is_part else (op.writes or op.reads)[0]
            parts = self.parts
        slots = algorithm.program.slots_of(name, member)
        if slots % len(parts) or not slots:
            found = f"buffer '{name}' of algorithm '{algorithm.program.name}' has {slots} slots"
            raise ProgramError(f"no {self.kind} of {len(self.ops)} ranks, whose parts are {len(parts)}", found=found)
        chunks = [bounds(part, slots // len(parts), self.unit)[1:] for part in parts]
        starts = accumulate(parts, initial=0)
        return Place(region, (0, *(start + at for start, cuts in zip(starts, chunks, strict=False) for at in cuts)))


def find_calls(program: Program, make: Make) -> dict[int, tuple[Call, int]]:
    """Return (call, member number) by the row of each op for which `make` has an algorithm."""
    found: dict[int, tuple[Call, int]] = {}
    known: dict[tuple[str, int, bool], Algorithm | None] = {}
    for row, ops, lanes in _groups(program):
        kind, group = program.collectives[row]
        asked = kind, len(group), traits_of(kind).from_root or any(map(overlaps, ops))
        if asked not in known:
            made = make(*asked)
            known[asked] = None if made is None else Algorithm.of(made, len(group))
        algorithm = known[asked]
        if algorithm is not None:
            _check_members(program, ops, lanes, len(group))
            regions = [region for op in ops for region in (*op.reads, *op.writes)]
            call = Call(kind, ops, algorithm, _parts(kind, ops), common_unit(regions))
            call.check()
            found.update((op.index, (call, member)) for member, op in enumerate(ops))
    return found


def refuse(op: Op, why: str) -> NoReturn:
    """Raise the ProgramError of a collective call that cannot be replaced."""
    what = f"op {op.index} 'collective' on rank {op.rank}: this call {why}"
    raise ProgramError(what, where=op.line, hint="run verify for details")


def overlaps(op: Op) -> bool:
    """Return whether an op's writes overlap its reads; interleaved regions count as overlapping."""
    pairs = ((src, dst) for src in op.reads for dst in op.writes)
    return any(src.num_slots and dst.num_slots and not apart(src, dst) for src, dst in pairs)


def _groups(program: Program) -> Iterator[tuple[int, list[Op], list[int]]]:
    """Yield each call: its row of `collectives`, its ops in the order of the group (without members that never call),
    and the lane on which each member makes its first call of that row."""
    queues: dict[tuple[int, int], list[Op]] = {}
    for index in np.flatnonzero(program.columns["kind"] == Kind.collective).tolist():
        op = program.op(index)
        queues.setdefault((op.call, op.rank), []).append(op)
    for row in dict.fromkeys(row for row, _ in queues):
        members = [queues.get((row, rank), []) for rank in program.collectives[row].group]
        for number in range(max(map(len, members), default=0)):
            here = [ops for ops in members if number < len(ops)]
            yield row, [ops[number] for ops in here], [ops[0].lane for ops in here]


def _check_members(program: Program, ops: list[Op], lanes: list[int], size: int) -> None:
    for op, lane in zip(ops, lanes, strict=True):
        _raise(program, op_fault(program, op))
        if op.lane != lane:
            refuse(op, f"is made from two lanes of rank {op.rank}")
    if len(ops) != size:
        refuse(ops[0], f"is made by {len(ops)} of its {size} members")
    _raise(program, collective_fault(program, ops))


def _raise(program: Program, fault: Fault | None) -> None:
    if fault is not None:
        raise ProgramError(fault.what, where=program.op(fault.ops[0]).line, found=fault.found, hint=fault.hint)


def _parts(kind: str, ops: Sequence[Op]) -> tuple[int, ...]:
    traits = traits_of(kind)
    if traits.input_is_part:
        return tuple(op.reads[0].num_slots for op in ops)
    if traits.output_is_part:
        return tuple(op.writes[0].num_slots for op in ops)
    whole = (ops[0].reads or ops[0].writes)[0].num_slots
    return (whole // len(ops),) * len(ops) if traits.exchanges else (whole,)
