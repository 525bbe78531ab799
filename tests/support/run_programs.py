"""Programs for the tests of the executors: random ones with kernels that NumPy computes exactly alike everywhere."""

from __future__ import annotations

import ir_programs
import numpy as np
from ir_programs import Spec

from dovetail.collective import spec_of
from dovetail.ir import Builder, Kind, Program, Region, Slot, Term, Workload, slot_classes, uneven

DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64")


class Maker(ir_programs.Maker):
    """Without puts and gets, which the native executors do not have."""

    def put(self) -> None:
        self.message()

    def get(self) -> None:
        self.message()


class Mover(Maker):
    """Without kernels either: slots may then differ in size."""

    def local(self) -> None:
        rank, lane = self.place()
        target = self.region(buffers="bt")
        source = self.region(target.num_slots)
        kind = self.rng.choice((Kind.copy, Kind.reduce))
        self.add(Spec(kind, rank, lane, [target if source.buffer == target.buffer else source], [target]))


class TwoSided(Mover):
    """Without the library's collectives too."""

    def collective(self) -> None:
        self.message()


class OneSided(Mover):
    """With puts and gets, for executors of one memory, which do them themselves."""

    put, get = ir_programs.Maker.put, ir_programs.Maker.get

    def collective(self) -> None:
        self.message()


def workload_of(program: Program, shape: tuple[int, ...], dtype: str) -> Workload:
    """One slot for all buffers."""
    slots = {buffer.name: (Slot(shape, dtype),) * program.num_ranks for buffer in program.buffers}
    return Workload(slots)


def uneven_of(program: Program, dtype: str, seed: int, most: int = 4) -> Workload:
    """A size of 0 … `most` elements for each class of slots that must be alike."""
    classes = slot_classes(program)
    count = 1 + max((int(part.max(initial=-1)) for parts in classes.values() for part in parts), default=0)
    size = np.random.default_rng(seed).integers(0, most + 1, count)
    return uneven(program, {name: tuple(size[part] for part in parts) for name, parts in classes.items()}, dtype)


def all_to_all(ranks: int, swapped: bool = False):
    """Everybody sends its part for each, straight; or through one scratch slot, in which all sizes meet."""
    spec = spec_of("all_to_all_v", ranks)
    b = Builder("all_to_all_v", ranks)
    for buffer in spec.buffers:
        b.buffer(*buffer)
    b.buffer("s", "scratch", 1)
    for post in spec.posts:
        b.post(*post)
    net, s = b.lane("net", "net"), Region("s", 0, 1)
    for src in range(ranks):
        for dst in range(ranks):
            part, into = Region("input", dst, 1), Region("output", src, 1)
            if src == dst:
                b.add(Kind.copy, src, net, reads=[part], writes=[into])
                continue
            if swapped:
                b.add(Kind.copy, src, net, reads=[part], writes=[s])
            b.add(Kind.send, src, net, reads=[s if swapped else part], chan_out=b.channel(src, dst))
            b.add(Kind.recv, dst, net, writes=[into], chan_in=b.channel(src, dst))
    return spec, b.build()


def library_call(kind: str, counts, group=None, in_place=False, swapped=False, ranks: int | None = None) -> Program:
    """One call of a library's collective in parts of these slots, by member (of an all_to_all by source and member).

    `in_place`: an all_gather of parts that lie in their place. `swapped`: the parts of an all_to_all lie in memory
    last first.
    """
    group = tuple(range(len(counts))) if group is None else group
    ranks = ranks or max(group) + 1
    reads, writes = call_sides(kind, counts, in_place, swapped)
    b = Builder(f"uneven_{kind}", ranks)
    for name, role in (("y", "input"),) if in_place else (("x", "input"), ("y", "output")):
        sides = [[r for r in (*reads[p], *writes[p]) if r.buffer == name] for p in range(len(group))]
        ends = [max(region.offset + region.count for region in side) for side in sides]
        b.buffer(name, role, [ends[group.index(rank)] if rank in group else 0 for rank in range(ranks)])
    net, call = b.lane("net", "net"), b.collective(kind, group)
    for place, rank in enumerate(group):
        b.add(Kind.collective, rank, net, reads=reads[place], writes=writes[place], call=call)
        for region, sent in call_asks(kind, counts, place, reads, writes):
            sources = group if kind == "reduce_scatter" else [group[sent[0]]]
            b.post((rank,), region, [Term(None, ((source, sent[1]),)) for source in sources])
    return b.build()


def call_sides(kind: str, counts, in_place: bool, swapped: bool):
    """What each member of `library_call` reads and writes."""
    if kind == "all_to_all":
        taken = zip(*counts, strict=True)
        return [side_by_side("x", row, swapped) for row in counts], [side_by_side("y", row, swapped) for row in taken]
    gathers = kind == "all_gather"
    whole = [[Region("y" if gathers else "x", 0, sum(counts))]] * len(counts)
    parts = [[Region("x" if gathers else "y", 0, count)] for count in counts]
    parts = [[part] for part in side_by_side("y", counts)] if in_place else parts
    return (parts, whole) if gathers else (whole, parts)


def call_asks(kind: str, counts, place: int, reads, writes):
    """What a member must hold: regions, each with the place of its source and the region there."""
    if kind == "reduce_scatter":
        return [(writes[place][0], (place, side_by_side("x", counts)[place]))]
    if kind == "all_gather":
        return [(part, (i, reads[i][0])) for i, part in enumerate(side_by_side("y", counts))]
    return [(writes[place][i], (i, reads[i][place])) for i in range(len(counts))]


def side_by_side(buffer: str, counts, backwards: bool = False) -> list[Region]:
    """Regions of these sizes, the first one at slot 0, or the last one."""
    found, at = [], 0
    for count in reversed(list(counts)) if backwards else counts:
        found.append(Region(buffer, at, count))
        at += count
    return found[::-1] if backwards else found


def _f(reads, writes):
    writes[0][...] = reads[0] + reads[0]


def _g(reads, writes):
    writes[0][...] = 1
    for slot in reads[1]:
        writes[0][...] += slot
    writes[0][...] += reads[0]


def _h(reads, writes):
    writes[0][...] = 3
    for slot in reads[0]:
        writes[0][...] += slot


def _s(reads, writes):
    writes[0][...] = reads[0]
    writes[0][...] -= reads[1]


def _m(reads, writes):
    """Rows of blocks times blocks, element by element."""
    rows, blocks = len(writes[0]), len(reads[1])
    writes[0][...] = 0
    for block in range(blocks):
        writes[0][...] += reads[0].reshape(rows, blocks, *reads[0].shape[1:])[:, block] * reads[1][block]


def _c(reads, writes):
    _h(reads[:1], writes)
    rows = len(writes[0])
    for part in np.moveaxis(reads[1].reshape(rows, len(reads[1]) // max(rows, 1), *reads[1].shape[1:]), 1, 0):
        writes[0][...] += part


def _d(reads, writes):
    writes[0][...] = reads[1]
    with np.errstate(over="ignore"):  # products of single numbers wrap around as arrays do
        for one, other in zip(reads[0], reads[2], strict=True):
            writes[0][...] += one * other


def _fill(reads, writes):
    writes[0][...] = 7


KERNELS = {"f": _f, "g": _g, "h": _h, "s": _s, "m": _m, "c": _c, "d": _d, "q": _h, "fill": _fill}


def assert_same(found, expected) -> None:
    """Equal to the bit, but for the bits of NaN."""
    assert found.keys() >= expected.keys()
    for name, parts in expected.items():
        for rank, (mine, theirs) in enumerate(zip(found[name], parts, strict=True)):
            assert mine.dtype == theirs.dtype
            words = f"u{mine.dtype.itemsize}"
            same = mine.view(words) == theirs.view(words)
            assert np.all(same | ((mine != mine) & (theirs != theirs))), f"{name} of rank {rank}: {mine} {theirs}"
