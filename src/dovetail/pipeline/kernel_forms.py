"""kernel_forms: the slots and kernels of a pipeline's program, and tiles in isolation for measuring their cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, product

from dovetail.ir import Builder, Kind, Program, Region, Slot, Workload
from dovetail.loops.analysis.dependences import Dependence
from dovetail.loops.analysis.sweeps import Sweep
from dovetail.loops.expressions import depth_of
from dovetail.loops.matrices import Vector
from dovetail.loops.types import is_real
from dovetail.pipeline.decomposition import Cutting
from dovetail.pipeline.names import Names, tile_regions, whole
from dovetail.pipeline.skews import Skew, lag_of_rows, span_of, waves
from dovetail.pipeline.sweeps import Inner, Single
from dovetail.pipeline.tile_kernels import BoxKernel, SingleKernel, TileKernel
from dovetail.pipeline.tiles import Element, Face, Rows, Turn

Dtypes = tuple[tuple[str, str], ...]
LONG = 4  # cycles of latency between dependent points from which interleaving two rows pays
AnyKernel = TileKernel | BoxKernel | SingleKernel


def workload_of(cutting: Cutting, dtypes: Mapping[str, str], program: Program, grain: int) -> Workload:
    """Describe a program in tiles of `grain` positions: the slots of its buffers, and the forms of its kernels."""
    known, kernels = _slots(cutting, tuple(dtypes.items())), _kernels(cutting, tuple(dtypes.items()))
    slots = {buffer.name: known[buffer.name] for buffer in program.buffers if buffer.name in known}
    wanted = {kernel.name for kernel in program.kernels}
    found = [kernel for name, kernel in kernels.items() if name in wanted]
    names, wanted = Names(cutting), wanted - {*kernels}
    for sweep, part, skew in _skewed(cutting, grain) if wanted else ():
        if (name := names.tile(sweep, part, skew)) in wanted:
            wanted.remove(name)
            found.append(_tile(cutting, sweep, part, dtypes, skew))
        if not wanted:
            break
    return Workload(slots, tuple(kernel.form for kernel in found))


def _skewed(cutting: Cutting, grain: int) -> Iterator[tuple[Sweep, int, Skew]]:
    """Yield all skewed tiles of `grain` positions: first a typical one, as in benchmarks, then those of a run."""
    skewed = [sweep for sweep in cutting.pipelined.sweeps if any(cutting.skew(sweep))]
    for sweep, part in product(skewed, range(cutting.num_parts)):
        tiles = (cutting.tile_of(sweep, part, tile) for tile in cutting.tiles(sweep, grain))
        for found in chain([cutting.typical(sweep, part, grain, 0)], tiles):
            if found:
                yield sweep, part, found[1]


@lru_cache(maxsize=64)
def _slots(cutting: Cutting, dtypes: Dtypes) -> dict[str, tuple[Slot, ...]]:
    """Return the slots of the buffers of programs on ranks, and of the reference, whose buffers are all on rank 0."""
    parts, found = range(cutting.num_parts), dict[str, tuple[Slot, ...]]()
    names, plain = Names(cutting), Names(cutting, plain=True)
    for array, dtype in dtypes:
        own = [Slot(cutting.own_plane(array, part), dtype) for part in parts]
        found[array] = found[f"{array}_out"] = tuple(own)
        padded = [Slot(cutting.plane(array, part), dtype) for part in parts]
        found[f"{array}_{cutting.way}"] = tuple(padded)
        for part in parts:
            here = dict.fromkeys((plain.given(array, part), plain.result(array, part)), (own[part],) * len(parts))
            found |= here | {plain.storage(array, part): (padded[part],) * len(parts)}
        for offset in cutting.faces(array):
            faces = [Slot(_sides(cutting, array, part, offset), dtype) for part in parts]
            back = tuple(-step for step in offset)
            there = (cutting.neighbour(part, back) for part in parts)
            found[names.received(array, offset, 0)] = tuple(faces)
            found[names.goes(array, offset)] = tuple(
                faces[part if other is None else other] for part, other in zip(parts, there, strict=True)
            )
            found |= {plain.received(array, offset, part): (faces[part],) * len(parts) for part in parts}
    for phase in cutting.pipelined.phases:
        for number, read in enumerate(phase.statement.reads if isinstance(phase, Single) else ()):
            assert isinstance(phase, Single)
            one = (Slot((1,), dict(dtypes)[read.array]),) * len(parts)
            found |= {names.picked(phase, number): one, names.got(phase, number): one}
    return found


def _sides(cutting: Cutting, array: str, part: int, offset: Vector) -> Vector:
    return tuple(high - low for low, high in cutting.ghost_box(array, part, offset))


@lru_cache(maxsize=64)
def _kernels(cutting: Cutting, dtypes: Dtypes) -> dict[str, AnyKernel]:
    found = [*_moves(cutting, dict(dtypes)), *_packs(cutting, dict(dtypes))]
    for phase in cutting.pipelined.phases:
        if isinstance(phase, Single):
            found += _single(cutting, phase, dict(dtypes))
        else:
            upright = range(0 if any(cutting.skew(phase)) else cutting.num_parts)
            found += [_tile(cutting, phase, part, dict(dtypes)) for part in upright]
    return {kernel.name: kernel for kernel in found}


def _moves(cutting: Cutting, dtypes: Mapping[str, str]) -> Iterator[AnyKernel]:
    """Yield the kernels that copy to and from slots with room for faces."""
    names = Names(cutting)
    for array, dtype in dtypes.items():
        for part in range(cutting.num_parts):
            if cutting.is_padded(array, part):
                own, plane = cutting.own_plane(array, part), cutting.plane(array, part)
                whole, within = tuple((0, n) for n in own), cutting.own_box(array, part)
                yield BoxKernel(names.move("enter", array, part), dtype, own, whole, plane, within, True)
                yield BoxKernel(names.move("leave", array, part), dtype, plane, within, own, whole, True)


def _packs(cutting: Cutting, dtypes: Mapping[str, str]) -> Iterator[AnyKernel]:
    """Yield the kernels that copy a face out of the slots of the part that owns it."""
    for array, dtype in dtypes.items():
        for offset in cutting.faces(array):
            for part in range(cutting.num_parts):
                source = cutting.neighbour(part, offset)
                if source is not None:
                    box = cutting.within(array, source, cutting.ghost_box(array, part, offset))
                    sides = tuple(high - low for low, high in box)
                    name, whole = Names(cutting).pack(array, offset, source), tuple((0, n) for n in sides)
                    yield BoxKernel(name, dtype, cutting.plane(array, source), box, sides, whole)


def _single(cutting: Cutting, single: Single, dtypes: Mapping[str, str]) -> list[AnyKernel]:
    names, values = Names(cutting), cutting.values
    target = single.statement.target
    axes = [(k, axis) for k, axis in enumerate(cutting.axes(target.array)) if axis != cutting.mapped]
    at = {axis: target.at[k].at(values) for k, axis in enumerate(cutting.axes(target.array)) if axis is not None}
    part = cutting.holder(at, 0)
    corner = tuple((target.at[k].at(values), target.at[k].at(values) + 1) for k, _ in axes)
    place = tuple(low for low, _ in cutting.within(target.array, part, corner))
    plane = cutting.plane(target.array, part)
    found: list[AnyKernel] = [SingleKernel(names.single(single), single.name, single.statement, place, plane, dtypes)]
    for number, read in enumerate(single.statement.reads):
        sides = zip(cutting.axes(read.array), read.at, strict=True)
        holder = cutting.holder({a: each.at(values) for a, each in sides if a is not None}, part)
        inner = [read.at[k].at(values) for k in cutting.plane_axes(read.array)]
        box = cutting.within(read.array, holder, tuple((where, where + 1) for where in inner))
        shape = cutting.plane(read.array, holder)
        one = ((0, 1),) * max(len(box), 1)
        name = names.pick(single, number)
        found.append(BoxKernel(name, dtypes[read.array], shape, box, (1,) * len(box), one[: len(box)]))
    return found


def rows_of(cutting: Cutting, sweep: Sweep, part: int) -> tuple[Rows, ...]:
    """Return the slots of each array that a tile of a sweep reads."""
    found = []
    for array in sweep.reads:
        (back, ahead), moves = cutting.reach(sweep, array), cutting.mapped_axis(array) is not None
        found.append(Rows(array, -back, ahead, cutting.plane(array, part), moves, array in sweep.targets))
    return tuple(found)


def _tile(cutting: Cutting, sweep: Sweep, part: int, dtypes: Mapping[str, str], skew: Skew | None = None) -> TileKernel:
    """Return the kernel that computes the tiles of a part; if tiles are skewed, those with this extent."""
    own = cutting.owned[part]
    loops = [axis for axis in sweep.order if axis != cutting.mapped]
    box = cutting.part_box(sweep, part)
    rows, faces = rows_of(cutting, sweep, part), []
    for array, moves in ((each.array, each.moves) for each in rows):
        for offset, needs in cutting.needs(sweep, array, part).items():
            comes = skew is None or span_of(skew, needs, sweep.signs[cutting.mapped])
            if comes and cutting.neighbour(part, offset) is not None:
                ghost = cutting.within(array, part, cutting.ghost_box(array, part, offset))
                faces.append(Face(array, needs, ghost, moves))
    return TileKernel(
        Names(cutting).tile(sweep, part, skew),
        sweep.name,
        sweep.statements,
        elements(cutting, sweep, part, loops),
        rows,
        tuple(faces),
        tuple((box[axis][0] - own[axis][0], max(box[axis][1], box[axis][0]) - own[axis][0]) for axis in loops),
        dtypes,
        _turns(cutting, sweep, loops),
        skew,
        outer := sweep.order.index(cutting.mapped) if skew else 0,
        *ways_of_points(cutting.pipelined.inner[sweep.name], (*loops[:outer], cutting.mapped, *loops[outer:]), dtypes),
    )


def ways_of_points(inner: Sequence[Inner], order: Sequence[int], dtypes: Mapping[str, str]) -> tuple[int | None, bool]:
    """Return (lag, in_turn) of a `Tile`.

    `lag`: if each point waits long for the result of the point before, two rows are computed at once, the second one
    this far behind, so that the processor need not wait; else None. `in_turn`: whether points of a row depend on one
    another in another way, so that the loop must not be vectorised.
    """
    needs = [each for each in inner if each.dependence.kind == "flow" and not any(each.by[axis] for axis in order[:-1])]
    chains = [each for each in needs if each.by[order[-1]] == 1 and each.dependence.source is each.dependence.sink]
    waits = (_cycles(each.dependence, dtypes) for each in chains)
    if len(order) > 1 and max(waits, default=0) >= LONG:
        return lag_of_rows([each.by for each in inner], order), False
    return None, bool(needs) and not chains


def _cycles(chain: Dependence, dtypes: Mapping[str, str]) -> int:
    """Return the approximate latency between dependent points, in cycles: per operator 4 for reals, 1 for integers."""
    each = 4 if is_real(dtypes[chain.sink.target.array]) else 1
    return each * depth_of(chain.sink.value, chain.sink_access)


def _deps(cutting: Cutting, sweep: Sweep) -> list[Vector]:
    return [inner.by for inner in cutting.pipelined.inner[sweep.name]]


def _turns(cutting: Cutting, sweep: Sweep, loops: Sequence[int]) -> tuple[Turn, ...]:
    weights = waves(_deps(cutting, sweep), sweep.order)
    return tuple(Turn(sweep.signs[axis], cutting.skew(sweep)[axis], weights[axis]) for axis in (cutting.mapped, *loops))


def elements(cutting: Cutting, sweep: Sweep, part: int, loops: Sequence[int]) -> dict[str, Element]:
    """Return where in the part's slots each element lies that the statements access."""
    found = {}
    for statement in sweep.statements:
        for access in (*statement.reads, statement.target):
            array, places = access.array, sweep.places[str(access)]
            below = dict(zip(cutting.plane_axes(array), (low for low, _ in cutting.margins(array, part)), strict=True))
            place = [
                (None if p.axis is None else loops.index(p.axis), p.offset.at(cutting.values) + below[k])
                for k, p in ((k, places[k]) for k in below)
            ]
            found[str(access)] = Element(array, cutting.positions(places), tuple(place))
    return found


def add_tiles(cutting: Cutting, sweep: Sweep, b: Builder, ranks: int, amounts: Sequence[int]) -> dict[int, list[int]]:
    """Append one tile for each of `amounts` (positions) on every rank with points; return the ops' numbers by rank."""
    names, found = Names(cutting), dict[int, list[int]]()
    lane = b.lane("compute", "compute")
    for array in sweep.reads:
        for name in dict.fromkeys(names.storage(array, part) for part in range(ranks)):
            b.buffer(name, "input" if name == array else "scratch", cutting.length(array))
        for offset in cutting.faces(array):
            b.buffer(names.received(array, offset, 0), "scratch", cutting.length(array))
    for rank, (number, amount) in product(range(ranks), enumerate(amounts)):
        if about := cutting.typical(sweep, rank, amount, number):
            touched = tile_regions(names, sweep, rank, *about)
            reads = [*touched.own, *(region for _, _, region in touched.faces)]
            call = b.kernel(names.tile(sweep, rank, about[1]), whole(len(reads)))
            row = b.add(Kind.compute, rank, lane, call=call, reads=reads, writes=touched.writes)
            found.setdefault(rank, []).append(row)
    return found


def add_moves(cutting: Cutting, array: str, b: Builder, ranks: int, amounts: Sequence[int]) -> dict[int, list[int]]:
    """Append a copy of each of `amounts` positions of an array into slots with room for faces; return rows by rank."""
    names, lane, target = Names(cutting), b.lane("compute", "compute"), f"{array}_{cutting.way}"
    found = dict[int, list[int]]()
    b.buffer(array, "input", cutting.length(array)), b.buffer(target, "scratch", cutting.length(array))
    for rank in range(ranks):
        found[rank] = []
        for amount in amounts:
            about = {"reads": [Region(array, 0, amount)], "writes": [Region(target, 0, amount)]}
            if cutting.is_padded(array, rank):
                call = b.kernel(names.move("enter", array, rank), ("each",))
                row = b.add(Kind.compute, rank, lane, call=call, **about)  # type: ignore[arg-type]
            else:
                row = b.add(Kind.copy, rank, lane, **about)  # type: ignore[arg-type]
            found[rank].append(row)
    return found
