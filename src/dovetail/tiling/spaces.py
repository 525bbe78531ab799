"""spaces: iteration spaces with bounds, and the whole and cut tiles in them, by exact integer sets (islpy)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dovetail.core import OperatorError
from dovetail.loops.matrices import Vector
from dovetail.tiling.tile_points import Points
from dovetail.tiling.tiling import Tiling

if TYPE_CHECKING:
    import islpy as isl

Condition = tuple[int, ...]  # coefficients of variables and parameters, and a constant; the linear form is ≥ 0
_HINT = "write sizes like 16x16x16384, ranges like 0:16,1:20, or a set like '[N] -> { [i, j] : 0 <= i <= j < N }'"


@dataclass(frozen=True)
class Space:
    """The points that a nest visits: a set in isl's notation; a size may be a parameter, like N in `[N] -> { … }`.

    >>> Space.parse("4x6"), Space.parse("4x6").num_loops, Space.parse("[N] -> { [i, j] : 0 <= i <= j < N }").parameters
    (Space(text='{ [i0, i1] : 0 <= i0 < 4 and 0 <= i1 < 6 }'), 2, ('N',))
    """

    text: str

    @staticmethod
    def parse(text: str) -> Space:
        """Return a space from sizes (`16x16`), half-open ranges (`0:16,1:20`), or isl's notation."""
        if "{" in text:
            space = Space(text)
            space.check()
            return space
        ends = [word.split(":") if ":" in word else ["0", word] for word in re.split(r"[x,]", text.replace(" ", ""))]
        if any(len(pair) != 2 or not all(re.fullmatch(r"-?\d{1,15}", end) for end in pair) for pair in ends):
            if long := [end for pair in ends for end in pair if re.fullmatch(r"-?\d{16,}", end)]:
                raise OperatorError("a space has an end of more than 15 digits", found=long[0], hint="a smaller space")
            raise OperatorError(f"'{text}' is no iteration space", hint=_HINT)
        return Space.box([(int(low), int(high)) for low, high in ends])

    @staticmethod
    def box(ranges: list[tuple[int, int]]) -> Space:
        """Return all points whose coordinates lie in these half-open ranges."""
        names = ", ".join(f"i{k}" for k in range(len(ranges)))
        bounds = " and ".join(f"{low} <= i{k} < {high}" for k, (low, high) in enumerate(ranges))
        space = Space(f"{{ [{names}] : {bounds} }}")
        space.check()
        return space

    @cached_property
    def set(self) -> isl.Set:
        """The space as a set of islpy."""
        import islpy as isl

        context = isl.Context()
        context.set_ast_iterator_type("int64_t")
        try:
            found = isl.Set.read_from_str(context, self.text).flatten()
            return found.reset_tuple_id() if found.has_tuple_id() else found
        except isl.Error as error:
            why = str(error).split(" failed: ")[-1].split(" in /")[0]
            raise OperatorError(f"'{self.text}' is no iteration space", found=why, hint=_HINT) from None

    @property
    def num_loops(self) -> int:
        return len(self.loops)

    @cached_property
    def loops(self) -> tuple[str, ...]:
        """The names of the loops, the outermost first."""
        import islpy as isl

        kind = isl.dim_type.set
        return tuple(self.set.get_dim_name(kind, k) or f"i{k}" for k in range(self.set.dim(kind)))

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """The names of the sizes that have no value yet."""
        return tuple(self.set.get_var_names_not_none(_kinds().param))

    def check(self) -> None:
        """Raise OperatorError if the space is empty or unbounded."""
        if self.set.dim(_kinds().set) == 0 or self.set.is_empty():
            raise OperatorError("this iteration space has no points", found=self.text, hint=_HINT)
        if not all(self.set.dim_is_bounded(_kinds().set, k) for k in range(self.num_loops)):
            raise OperatorError(
                "this iteration space is unbounded", found=self.text, hint="bound every loop on both sides"
            )

    def with_sizes(self, sizes: Mapping[str, int]) -> Space:
        """Return the space with values in place of parameters.

        >>> Space.parse("[N] -> { [i] : 0 <= i < N }").with_sizes({"N": 3}).num_points
        3
        """
        unknown = sorted(set(sizes) - set(self.parameters))
        if unknown:
            raise OperatorError(f"the space has no parameter '{unknown[0]}'", found=self.text)
        bound = self.set
        for name, value in sizes.items():
            at = bound.find_dim_by_name(_kinds().param, name)
            bound = bound.fix_val(_kinds().param, at, value).project_out(_kinds().param, at, 1)
        space = Space(str(bound))
        space.check()
        return space

    def need_sizes(self) -> None:
        """Raise OperatorError if a size is still a parameter."""
        if self.parameters:
            found = f"parameters {', '.join(self.parameters)}"
            raise OperatorError("counts need a space of known sizes", found=found, hint="write numbers in their place")

    @cached_property
    def num_points(self) -> int:
        """The number of points."""
        self.need_sizes()
        return int(self.set.count_val().to_python())

    @cached_property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Least and greatest coordinate along each loop."""
        self.need_sizes()
        return _ranges(self.set)

    @cached_property
    def parts(self) -> list[list[Condition]]:
        """The conditions of each convex part. A part is the set of points for which all its conditions hold."""
        parts = self.set.coalesce().get_basic_sets()
        if any(part.dim(_kinds().div) for part in parts):
            raise OperatorError("this iteration space has holes", found=self.text, hint="test for them in the body")
        return [conditions(part) for part in parts]

    @property
    def hull(self) -> list[Condition]:
        """Conditions that hold for all points of the space; if it has one part, for these only."""
        return self.parts[0] if len(self.parts) == 1 else conditions(self.set.simple_hull())

    def holds(self, points: Points) -> NDArray[np.bool_]:
        """Return which points lie in the space. Points: (num_points, num_loops); result: (num_points,)."""
        self.need_sizes()
        rows = (np.array(part, dtype=np.int64).reshape(-1, self.num_loops + 1) for part in self.parts)
        inside = [np.all(points @ each[:, :-1].T + each[:, -1] >= 0, axis=1) for each in rows]
        return np.asarray(np.any(inside, axis=0))


@dataclass(frozen=True)
class TileSet:
    """The tiles of a space: their number, the number of whole ones, and the range of their coordinates."""

    num_tiles: int
    num_whole: int
    ranges: tuple[tuple[int, int], ...]

    @property
    def extents(self) -> Vector:
        """The number of tiles along each dimension, from the first to the last."""
        return tuple(high - low + 1 for low, high in self.ranges)

    @property
    def num_cut(self) -> int:
        """Number of tiles at the boundary, which have points outside the space."""
        return self.num_tiles - self.num_whole


def tiles_of(tiling: Tiling, space: Space) -> TileSet:
    """Return the tiles that have a point in the space.

    >>> tiling = Tiling(((3, 1), (1, 2)), ((6, 2), (2, 4)))
    >>> tiles_of(tiling, Space.parse("12x8"))
    TileSet(num_tiles=11, num_whole=1, ranges=((-1, 2), (-2, 2)))
    """
    space.need_sizes()
    found = tile_set(tiling, space)
    whole = found.subtract(_tiles_with(tiling, space, space.set.complement()))
    return TileSet(int(found.count_val().to_python()), int(whole.count_val().to_python()), _ranges(found))


def tile_set(tiling: Tiling, space: Space) -> isl.Set:
    """Return the tiles that have a point in the space, as a set of islpy with the space's parameters."""
    return _tiles_with(tiling, space, space.set)


def check_loops(tiling: Tiling, space: Space) -> None:
    """Raise OperatorError if the space and the tiling have different numbers of loops."""
    if space.num_loops != tiling.num_loops:
        found = f"a space of {space.num_loops} loops, a tile of {tiling.num_loops}"
        raise OperatorError("the space and the tile differ in their number of loops", found=found, hint=_HINT)


def _tiles_with(tiling: Tiling, space: Space, points: isl.Set) -> isl.Set:
    return points.apply(_to_tiles(tiling, space)).coalesce()


def _to_tiles(tiling: Tiling, space: Space) -> isl.Map:
    """The map from a point to its tile."""
    import islpy as isl

    check_loops(tiling, space)
    n, volume = tiling.num_loops, tiling.volume
    points, tiles = [f"p{k}" for k in range(n)], [f"t{k}" for k in range(n)]
    bounds = []
    for tile, normal in zip(tiles, tiling.normals, strict=True):
        height = " + ".join(f"{entry}{point}" for entry, point in zip(normal, points, strict=True))
        bounds.append(f"{volume}{tile} <= {height} < {volume}{tile} + {volume}")
    text = f"{{ [{', '.join(points)}] -> [{', '.join(tiles)}] : {' and '.join(bounds)} }}"
    return isl.Map.read_from_str(space.set.get_ctx(), text)


def conditions(part: isl.BasicSet) -> list[Condition]:
    """Return the conditions of a convex set, each a row of coefficients of variables, parameters and 1."""
    kinds = (_kinds().set, _kinds().param)
    rows: list[Condition] = []
    for constraint in part.get_constraints():
        entries = [constraint.get_coefficient_val(kind, k) for kind in kinds for k in range(part.dim(kind))]
        row = tuple(int(entry.to_python()) for entry in (*entries, constraint.get_constant_val()))
        rows += [row, tuple(-entry for entry in row)] if constraint.is_equality() else [row]
    return rows


def without_redundant(rows: list[Condition], size: int) -> list[Condition]:
    """Return conditions for the same integer points of `size` variables, without those that follow from the others."""
    return conditions(_convex(rows, size).remove_redundancies()) if rows else []


def project_last(rows: list[Condition], size: int) -> list[Condition]:
    """Project out the last variable. The conditions may hold for further points beside the projection."""
    import islpy as isl

    return conditions(_convex(rows, size).project_out(isl.dim_type.set, size - 1, 1).remove_divs())


def _convex(rows: list[Condition], size: int) -> isl.BasicSet:
    import islpy as isl

    variables = [f"x{k}" for k in range(size)]
    parameters = [f"n{k}" for k in range(len(rows[0]) - size - 1)]
    words = [*variables, *parameters, ""]
    sums = [" + ".join(f"{entry}{word}" for entry, word in zip(row, words, strict=True)) for row in rows]
    bounds = " and ".join(f"{each} >= 0" for each in sums)
    return isl.BasicSet(f"[{', '.join(parameters)}] -> {{ [{', '.join(variables)}] : {bounds} }}")


def _ranges(found: isl.Set) -> tuple[tuple[int, int], ...]:
    size = found.dim(_kinds().set)
    return tuple((int(found.dim_min_val(k).to_python()), int(found.dim_max_val(k).to_python())) for k in range(size))


def _kinds() -> type[isl.dim_type]:
    import islpy as isl

    return isl.dim_type
