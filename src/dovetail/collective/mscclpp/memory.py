"""memory: map chunks to slots: how finely loops and threadblock groups cut them, and the buffers of a plan."""

from __future__ import annotations

from fractions import Fraction
from math import gcd, lcm
from typing import NamedTuple

from dovetail.collective.mscclpp.parts import KIND_OF_WORD, UNJUDGED, Document, Loop, Place, Step, steps_of
from dovetail.collective.spec import spec_of
from dovetail.core import ProgramError
from dovetail.ir import Buffer, Post, Region, Term
from dovetail.ir.collectives import traits_of

SCRATCH_BYTES = 1 << 26  # size of scratch if resources are reused, for messages of any size
MOST_GRAIN = 4096


class Cut(NamedTuple):
    """How chunks are cut: into `grain` slots; a chunk of reused scratch has `kept` of them. `turns`: iterations of the
    loop with the largest unit per chunk; `base`: that loop's chunks per byte of its unit.
    """

    grain: int
    kept: int
    turns: int
    base: Fraction

    def turns_of(self, loop: Loop) -> int:
        return int(self.turns * Fraction(loop.chunks, loop.unit) / self.base)

    def unit_of(self, loop: Loop) -> int:
        """Return the slots of one iteration."""
        return loop.chunks * self.grain // self.turns_of(loop)


def cut(document: Document) -> Cut:
    """Return how to cut chunks. A loop's iterations depend on the message's size: two of them represent all, or one
    more than reused scratch has room for.
    """
    loops = [(step, step.loop) for step in steps_of(document.gpus) if step.loop]
    ratios = [Fraction(loop.chunks, loop.unit) for _, loop in loops]
    base = min(ratios, default=Fraction(1))
    room = _room(document, [loop for _, loop in loops])
    result = Cut(1, 1, 2 if room is None else room + 1, base)
    fine = 1
    for (step, loop), ratio in zip(loops, ratios, strict=True):
        if (ratio / base).denominator != 1 or ratio / base > 16:
            what = f"{UNJUDGED}: its pipelines' numbers of iterations are not in a whole ratio of at most 16"
            raise ProgramError(
                what, where=f"{step.where} ({step.name})", found=f"{loop.chunks} chunks by {loop.unit} bytes"
            )
        fine = lcm(fine, result.turns_of(loop) // gcd(loop.chunks, result.turns_of(loop)))
    for step in steps_of(document.gpus):
        for place in (*step.reads, *step.writes):
            fine = lcm(fine, step.part[1] // gcd(max(place.size, 1), step.part[1]))
            if fine > MOST_GRAIN:
                what = f"{UNJUDGED}: its chunks would have to be cut into more than {MOST_GRAIN} parts"
                raise ProgramError(what, where=f"{step.where} ({step.name})")
    return result._replace(grain=fine, kept=fine if room is None else fine * room // (room + 1))


def _room(document: Document, loops: list[Loop]) -> int | None:
    """Iterations of a loop for which a chunk of scratch has room at the largest message; None: room for all.

    If semaphores allow fewer iterations in flight, one more than those is as good as the true number.
    """
    scratch = max((gpu.chunks["s"] for gpu in document.gpus), default=0)
    if not (document.reuse_resources and scratch and loops):
        return None
    kept = SCRATCH_BYTES // (2 if document.double_scratch else 1) // scratch
    chunks = max(gpu.chunks["i"] or gpu.chunks["o"] for gpu in document.gpus)
    same = len({(loop.unit, loop.chunks) for loop in loops}) == 1 and loops[0].chunks == 1
    if document.max_bytes // max(chunks, 1) <= kept or not same:
        return None
    given = max((value for gpu in document.gpus for value in gpu.semaphores), default=0)
    return max(1, min(kept // loops[0].unit, 1 + given, 64))


def check_scratch(document: Document) -> None:
    """Refuse plans where packets and plain chunks share bytes: a chunk in packets takes two, for data and flags."""
    spans: list[list[tuple[int, int, bool, str]]] = [[] for _ in document.gpus]
    for step in steps_of(document.gpus):
        for place in (*step.reads, *step.writes):
            wide = 2 if place.packets else 1
            for rank in place.ranks if place.buffer == "s" and place.size else ():
                span = (
                    place.start * wide,
                    (place.start + place.size) * wide,
                    place.packets,
                    f"{step.where} ({step.name})",
                )
                spans[rank].append(span)
    for rank, found in enumerate(spans):
        ends = {True: 0, False: 0}  # of packets, and of plain chunks
        for start, end, packets, where in sorted(found):
            if start < ends[not packets]:
                what = f"packets and plain chunks share scratch of gpu {rank}, where packets take two chunks each"
                raise ProgramError(
                    f"{UNJUDGED}: {what}", where=where, hint="use separate plans, or places further apart"
                )
            ends[packets] = max(ends[packets], end)


class Memory:
    """The places of chunks in the Program's buffers, and the post-conditions of the plan's collective."""

    def __init__(self, document: Document, how: Cut) -> None:
        self.how, self.num_gpus = how, len(document.gpus)
        kind = KIND_OF_WORD.get(document.collective)
        unit = _unit(document, kind) if kind else 0
        self.in_place = document.in_place and kind not in (None, "sendrecv")
        self.spec = None
        if kind and kind != "sendrecv":
            self.spec = spec_of(kind, self.num_gpus, chunks=unit * how.grain, in_place=self.in_place)
        self.posts = self.spec.posts if self.spec else _next(document, unit * how.grain) if kind else ()
        self.buffers = list(self.spec.buffers) if self.spec else _buffers(document, how)
        scratch = [gpu.chunks["s"] * (2 if document.protocol == "LL" else 1) for gpu in document.gpus]
        packets = [count // 2 for count in scratch]
        for name, counts, slots in (("scratch", scratch, how.kept), ("packets", packets, how.grain)):
            self.buffers.append(Buffer(name, "scratch", tuple(n * slots for n in counts)))

    def region(self, step: Step, place: Place, rank: int, turn: tuple[Loop, int] | None) -> Region:
        """Return the slots of a place that a step touches on one of its ranks; in a loop, in one iteration."""
        grain, kept = self.how.grain, self.how.kept
        buffer, start, count = (
            {"i": "input", "o": "output"}.get(place.buffer, ""),
            place.start * grain,
            place.size * grain,
        )
        if not buffer:
            buffer, start = ("packets", start) if place.packets else ("scratch", place.start * kept)
        elif self.spec:
            buffer, start = self.spec.place(rank, buffer, start)
        number, parts = step.part
        count //= parts
        start += number * count
        if turn is not None:
            unit = self.how.unit_of(turn[0])
            done = turn[1] * unit
            count = min(count - done if done <= count else unit, unit)  # past the end the executor's count wraps around
            start += done % kept if buffer == "scratch" else done
        return Region(buffer, start, count)


def _unit(document: Document, kind: str) -> int:
    """Chunks per part of the collective. Raises ProgramError if gpus' counts do not fit it, or one another."""
    n = len(document.gpus)
    for rank, gpu in enumerate(document.gpus):
        for letter, name in (("i", "input"), ("o", "output")):
            if not gpu.chunks[letter]:
                what = f"gpu {rank} has 0 chunks of {name}, and {_an(document.collective)} moves some"
                hint = f"state {name}_chunks, in place too: executor 0.9 divides the message by their number"
                raise ProgramError(what, where=f"{document.place}, gpu {rank}", hint=hint)
    parts = traits_of(kind).parts(n)
    found = {
        Fraction(gpu.chunks[letter], part) for gpu in document.gpus for letter, part in zip("io", parts, strict=True)
    }
    if len(found) != 1 or min(found).denominator != 1:
        counts = ", ".join(sorted({f"{gpu.chunks['i']} and {gpu.chunks['o']}" for gpu in document.gpus}))
        what = f"chunks of input and output do not fit {_an(document.collective)} of {n} gpus"
        raise ProgramError(what, where=document.place, found=f"{counts} chunks")
    return int(min(found))


def _an(word: str) -> str:
    return f"an {word}" if word[:1] in "aeiou" else f"a {word}"


def _buffers(document: Document, how: Cut) -> list[Buffer]:
    sizes = {letter: tuple(gpu.chunks[letter] * how.grain for gpu in document.gpus) for letter in "io"}
    return [Buffer("input", "input", sizes["i"]), Buffer("output", "output", sizes["o"])]


def _next(document: Document, slots: int) -> tuple[Post, ...]:
    """Post-conditions of sendrecv: gpu i sends to gpu i + d, where d is the first other gpu to which gpu 0 writes."""
    n = len(document.gpus)
    targets = (rank for step in steps_of(document.gpus[:1]) for place in step.writes for rank in place.ranks if rank)
    shift = next(targets, 1)
    whole, other = Region("input", 0, slots), Region("output", 0, slots)
    return tuple(Post(((rank + shift) % n,), other, (Term(None, ((rank, whole),)),)) for rank in range(n))
