"""decomposition: a pipeline's grid, cut into parts along some axes and into tiles along another; and faces of parts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import prod

from dovetail.core import PlanError
from dovetail.loops.analysis.sweeps import Place, Sweep
from dovetail.loops.grid.blocks import Box, Range, boxes, meet, shares, volume
from dovetail.loops.matrices import Vector
from dovetail.pipeline.skews import Need, Skew, mean_row
from dovetail.pipeline.sweeps import Pipelined


@dataclass(frozen=True)
class Cutting:
    """A grid cut into parts. `cut`: number of parts along each axis; 1 along the `mapped` axis, whose positions are the
    slots of buffers.

    A face is what a part needs of the part at an `offset` from it, counted in parts along each axis. A part may have
    fewer points than a face needs.
    """

    pipelined: Pipelined
    sizes: tuple[tuple[str, int], ...]
    grid: tuple[int, ...]
    cut: tuple[int, ...]
    mapped: int

    def __post_init__(self) -> None:
        name, forward, mappable = self.pipelined.name, self.pipelined.forward, self.pipelined.mappable
        wrong = [axis for axis, parts in enumerate(self.cut) if parts > 1 and axis not in forward]
        if wrong or self.mapped not in mappable or self.cut[self.mapped] != 1:
            found = f"cut {'x'.join(map(str, self.cut))}, mapped {self.mapped}"
            axes = (", ".join(map(str, some)) for some in (forward, mappable))
            hint = "cut only axes {}, and map another axis, one of {}".format(*axes)
            raise PlanError(f"{name} cannot be cut like this", found=found, hint=hint)
        if any(parts > points for parts, points in zip(self.cut, self.grid, strict=True)):
            found = f"{'x'.join(map(str, self.grid))} points in {'x'.join(map(str, self.cut))} parts"
            raise PlanError(
                f"{name}: a part would have no points", found=found, hint="use fewer ranks, or a larger grid"
            )

    @property
    def way(self) -> str:
        """A name of the cut, such as `1x2xm` for a grid of three axes, the last one mapped."""
        return "x".join("m" if axis == self.mapped else str(parts) for axis, parts in enumerate(self.cut))

    @property
    def num_parts(self) -> int:
        return prod(self.cut)

    @cached_property
    def values(self) -> Mapping[str, int]:
        return dict(self.sizes)

    @cached_property
    def owned(self) -> list[Box]:
        """The box of points that each part owns."""
        return boxes(self.grid, self.cut)

    @cached_property
    def places(self) -> list[Vector]:
        return list(product(*map(range, self.cut)))

    def neighbour(self, part: int, offset: Vector) -> int | None:
        """The part at an offset from another."""
        place = tuple(at + step for at, step in zip(self.places[part], offset, strict=True))
        return self._number.get(place)

    @cached_property
    def _number(self) -> dict[Vector, int]:
        return {place: number for number, place in enumerate(self.places)}

    def parts_in_turn(self, sweep: Sweep) -> list[int]:
        """The parts in an order that follows the dependences within a sweep."""
        return sorted(range(self.num_parts), key=lambda part: self.turn(sweep, part))

    def turn(self, sweep: Sweep, part: int) -> Vector:
        """The key by which `parts_in_turn` sorts parts."""
        return tuple(sign * at for sign, at in zip(sweep.signs, self.places[part], strict=True))

    def holder(self, at: Mapping[int, int], near: int) -> int:
        """The part that owns a point. `at`: the point's coordinates along some axes; along others, as part `near`."""
        place = list(self.places[near])
        for axis, where in at.items():
            sides = {self.places[part][axis]: self.owned[part][axis] for part in range(self.num_parts)}
            place[axis] = next(k for k, (low, high) in sides.items() if low <= where < high)
        return self._number[tuple(place)]

    def holders(self, at: Mapping[int, int]) -> list[int]:
        """The parts that hold a point of an array: several if the array lacks an axis that is cut."""
        return [part for part in range(self.num_parts) if self.holder(at, part) == part]

    # Arrays

    def axes(self, array: str) -> tuple[int | None, ...]:
        return self.pipelined.axes[array]

    def mapped_axis(self, array: str) -> int | None:
        """The number of the array's axis that is mapped; None if it has none."""
        return self.axes(array).index(self.mapped) if self.mapped in self.axes(array) else None

    def length(self, array: str) -> int:
        """Slots of an array: positions, or one if it does not extend along the mapped axis."""
        return self.grid[self.mapped] if self.mapped in self.axes(array) else 1

    def shape(self, array: str, part: int) -> Vector:
        """A part's block of an array, in the order of its axes."""
        lengths = (self.values[s] if isinstance(s, str) else s for s in self.pipelined.nest.arrays[array].shape)
        sides = zip(self.axes(array), lengths, strict=True)
        return tuple(n if a is None else self.owned[part][a][1] - self.owned[part][a][0] for a, n in sides)

    def block(self, array: str, part: int) -> tuple[slice, ...]:
        """Where a part's block lies in the whole array."""
        sides = (None if axis is None else self.owned[part][axis] for axis in self.axes(array))
        return tuple(slice(None) if side is None else slice(*side) for side in sides)

    def plane_axes(self, array: str) -> list[int]:
        """The axes of an array that lie within a slot."""
        return [k for k, axis in enumerate(self.axes(array)) if axis != self.mapped]

    def margins(self, array: str, part: int) -> list[Range]:
        """Numbers of neighbours' elements that a slot holds below and above its own, along each of its axes."""
        found = []
        for k in self.plane_axes(array):
            axis = self.axes(array)[k]
            if axis is None:
                found.append((0, 0))
                continue
            low, high = self.owned[part][axis]
            there = [self._side(array, part, f, axis) for f in self.faces(array) if self.neighbour(part, f) is not None]
            begins, ends = zip((low, high), *there, strict=True)
            found.append((low - min(begins), max(ends) - high))
        return found

    def plane(self, array: str, part: int) -> Vector:
        """The shape of a slot, margins included."""
        own = self.own_plane(array, part)
        return tuple(n + low + high for n, (low, high) in zip(own, self.margins(array, part), strict=True))

    def own_plane(self, array: str, part: int) -> Vector:
        shape = self.shape(array, part)
        return tuple(shape[k] for k in self.plane_axes(array))

    def is_padded(self, array: str, part: int) -> bool:
        return any(map(any, self.margins(array, part)))

    def own_box(self, array: str, part: int) -> Box:
        """Where a part's own elements lie in a slot."""
        sides = zip(self.own_plane(array, part), self.margins(array, part), strict=True)
        return tuple((low, low + n) for n, (low, _) in sides)

    # Faces

    def faces(self, array: str) -> tuple[Vector, ...]:
        """The offsets of the parts that a part needs elements of an array from."""
        return _faces(self, array)

    def needs(self, sweep: Sweep, array: str, part: int) -> dict[Vector, tuple[Need, ...]]:
        """The faces that a sweep reads, by offset, and the elements that it reads of each."""
        return _needs(self, sweep, array, part)

    def _touched(self, offset: Mapping[int, int]) -> Iterator[Vector]:
        """The offsets of the other parts in which an element at this offset may lie."""
        choices = []
        for axis, parts in enumerate(self.cut):
            by = offset.get(axis, 0) if parts > 1 else 0
            hops = self._hops(axis, abs(by))
            choices.append(range(-hops, 1) if by < 0 else range(hops + 1))
        yield from (f for f in product(*choices) if any(f))

    def _hops(self, axis: int, by: int) -> int:
        """How many parts further an element may lie that is `by` elements away from one of a part."""
        ends, hops = [high for _, high in shares(self.grid[axis], self.cut[axis])], 0
        while hops + 1 < len(ends) and by > min(ends[k + hops] - ends[k] for k in range(len(ends) - 1 - hops)):
            hops += 1
        return hops

    def _width(self, array: str, offset: Vector, axis: int) -> int:
        """The number of elements of a face along an axis."""
        found = 0
        for sweep in self.pipelined.sweeps:
            for each in sweep.offsets(array) if array in sweep.reads else ():
                if offset in self._touched(each):
                    found = max(found, abs(each.get(axis, 0)))
        return found

    def ghost_box(self, array: str, part: int, offset: Vector) -> Box:
        """The elements of a face, in grid coordinates along the axes within a slot; an array's own axes are whole."""
        shape, found = self.shape(array, part), []
        for k in self.plane_axes(array):
            axis = self.axes(array)[k]
            found.append((0, shape[k]) if axis is None else self._side(array, part, offset, axis))
        return tuple(found)

    def _side(self, array: str, part: int, offset: Vector, axis: int) -> Range:
        """The coordinates of a face along an axis: the points of the other part, as far as this part reads."""
        (low, high), width = self.owned[part][axis], self._width(array, offset, axis)
        if not offset[axis]:
            return low, high
        other = self.neighbour(part, offset)
        least, most = (low - width, low) if offset[axis] < 0 else (high, high + width)
        begin, end = (least, most) if other is None else self.owned[other][axis]
        return min(max(begin, least), most), max(min(end, most), least)

    def within(self, array: str, part: int, box: Box) -> Box:
        """A box of grid coordinates, in the coordinates of a part's slot."""
        found = []
        for k, (low, high), (below, _) in zip(self.plane_axes(array), box, self.margins(array, part), strict=True):
            axis = self.axes(array)[k]
            by = 0 if axis is None else below - self.owned[part][axis][0]
            found.append((low + by, high + by))
        return tuple(found)

    # Tiles

    def sweep_box(self, sweep: Sweep) -> Box:
        sides = zip(sweep.low, sweep.high, strict=True)
        return tuple((low.at(self.values), high.at(self.values)) for low, high in sides)

    def part_box(self, sweep: Sweep, part: int) -> Box:
        """The box of points that a part computes in a sweep."""
        return meet(self.sweep_box(sweep), self.owned[part])

    def skew(self, sweep: Sweep) -> Vector:
        """The skew factors of a sweep's tiles, by axis (see `skews`)."""
        return self._skews[sweep.name]

    @cached_property
    def _skews(self) -> Mapping[str, Vector]:
        sweeps = self.pipelined.sweeps
        return {sweep.name: self.pipelined.skew(sweep, self.mapped, self.cut) for sweep in sweeps}

    @property
    def length_of_tiles(self) -> int:
        """Positions that the tiles must cover: more than the grid has if tiles are skewed."""
        most = (self._max_skew(sweep, self.sweep_box(sweep)) for sweep in self.pipelined.sweeps)
        return max(self.grid[self.mapped], 1) + max(most, default=0)

    def _max_skew(self, sweep: Sweep, box: Box) -> int:
        """Return how far the last row of a box is shifted against its first one."""
        pairs = zip(self.skew(sweep), box, strict=True)
        return sum(factor * max(high - 1 - low, 0) for factor, (low, high) in pairs)

    def tiles(self, sweep: Sweep, grain: int) -> list[Range]:
        """Return tiles as ranges of positions in the grid's first row, in loop order; the last one may be shorter."""
        box = self.sweep_box(sweep)
        if volume(box) == 0:
            return []
        end = box[self.mapped][1] - box[self.mapped][0] + self._max_skew(sweep, box)
        return [(start, min(start + grain, end)) for start in range(0, end, grain)]

    def tile_of(self, sweep: Sweep, part: int, tile: Range) -> tuple[int, Skew] | None:
        """Return a tile's first position on a part, in the array's order, and its extent there; None if it has none."""
        box = self.part_box(sweep, part)
        if volume(box) == 0:
            return None
        first, (low, high) = self._first_row(sweep, part), box[self.mapped]
        begin = max(tile[0] - first - self._max_skew(sweep, box), 0)
        end = min(tile[1] - first, high - low)
        if begin >= end:
            return None
        skew = Skew(end - begin, tile[0] - first - begin, tile[1] - tile[0])
        return (low + begin if sweep.signs[self.mapped] > 0 else high - end), skew

    def _first_row(self, sweep: Sweep, part: int) -> int:
        """Return how far the first row of a part is shifted against the first row of the grid."""
        found = 0
        sides = zip(self.skew(sweep), self.part_box(sweep, part), self.sweep_box(sweep), sweep.signs, strict=True)
        for factor, own, whole, sign in sides:
            found += factor * (own[0] - whole[0] if sign > 0 else whole[1] - own[1])
        return found

    def typical(self, sweep: Sweep, part: int, amount: int, number: int) -> tuple[int, Skew] | None:
        """A tile with `amount` positions in a row, on average, as `tile_of` returns it. If tiles are skewed: the
        `number`-th one, as long as all its rows are whole; else one in the middle of the part, and wider."""
        box = self.part_box(sweep, part)
        most, length = self._max_skew(sweep, box), box[self.mapped][1] - box[self.mapped][0]
        first = self._first_row(sweep, part)
        if not most:
            return self.tile_of(sweep, part, (first, first + amount))
        if amount <= length - most:
            start = first + most + number * amount % (length - most - amount + 1)
            return self.tile_of(sweep, part, (start, start + amount))
        pairs = zip(self.skew(sweep), box, strict=True)
        rows = [(factor, high - low) for factor, (low, high) in pairs]

        def around(width: int) -> tuple[int, Skew] | None:
            start = first + (length + most - width) // 2
            return self.tile_of(sweep, part, (start, start + width))

        def positions(width: int) -> float:
            found = around(width)
            return mean_row(found[1], rows) if found else 0.0

        return around(bisect_left(range(length + most), float(amount), lo=1, key=positions))

    def positions(self, places: tuple[Place, ...]) -> int:
        """The offset of an element along the mapped axis."""
        return next((p.offset.constant for p in places if p.axis == self.mapped), 0)

    def reach(self, sweep: Sweep, array: str) -> Range:
        """How far before and beyond a tile's positions a sweep reads of an array; (0, 0) at least."""
        return sweep.reach(self.mapped, array)

    def span(self, sweep: Sweep, array: str, tile: Range) -> Range:
        """Positions of an array that a tile of these positions reads."""
        back, ahead = self.reach(sweep, array)
        return (tile[0] + back, tile[1] + ahead) if self.mapped in self.axes(array) else (0, 1)


@lru_cache(maxsize=1024)
def _faces(cutting: Cutting, array: str) -> tuple[Vector, ...]:
    found: dict[Vector, None] = {}
    for sweep in cutting.pipelined.sweeps:
        for offset in sweep.offsets(array) if array in sweep.reads else ():
            found |= dict.fromkeys(cutting._touched(offset))
    return tuple(sorted(found))


@lru_cache(maxsize=1024)
def _needs(cutting: Cutting, sweep: Sweep, array: str, part: int) -> dict[Vector, tuple[Need, ...]]:
    found: dict[Vector, dict[Need, None]] = {}
    for offset in sweep.offsets(array):
        for face in cutting._touched(offset):
            rows = _rows_that_read(cutting, sweep, part, offset, face)
            if rows is not None:
                found.setdefault(face, {})[Need(offset.get(cutting.mapped, 0), *rows)] = None
    return {face: tuple(some) for face, some in found.items()}


def _rows_that_read(cutting: Cutting, sweep: Sweep, part: int, offset: Mapping[int, int], face: Vector) -> Range | None:
    """Return how far the first and the last row of a part that read an element of a face are shifted; None if no row
    does.
    """
    least = most = 0
    other = cutting.neighbour(part, face)
    if other is None:
        return None
    for axis, factor in enumerate(cutting.skew(sweep)):
        if axis != cutting.mapped:
            (low, high), (first, end) = cutting.part_box(sweep, part)[axis], cutting.owned[other][axis]
            by = offset.get(axis, 0)
            begin, beyond = max(low, first - by), min(high, end - by)
            if begin >= beyond:
                return None
            up = sweep.signs[axis] > 0
            least += factor * (begin - low if up else high - beyond)
            most += factor * ((beyond if up else high - begin) - 1 - (low if up else 0))
    return least, most
