"""nest_code: what a standalone MPI program of tiles computes: the dependences, space and statement of a nest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from dovetail.core import WishError
from dovetail.loops.affine import Affine
from dovetail.loops.counted import set_text
from dovetail.loops.expressions import Read
from dovetail.loops.generate import Expressions
from dovetail.loops.matrices import Matrix
from dovetail.loops.nest import Nest
from dovetail.loops.spaces import Space

_DATA = "/* {name} before the loops: put your own data in its place. */\n#define GIVEN_{name}({axes}) ({value})\n"
FACTORS = (7919, 104729, 1299709, 15485863)


class NestCode(NamedTuple):
    """D (a column for each dependence), the points of the loops, and the C of what is computed at a point."""

    deps: Matrix
    space: Space
    statement: str


def sizes_of(wish: Any) -> dict[str, int]:
    """The sizes of a wish's nest, and its steps."""
    shape = (wish.stencil if hasattr(wish, "stencil") else wish.pipelined).shape
    named = zip(shape, wish.points_by_axis, strict=True)
    return {name: points for name, points in named if isinstance(name, str)} | {"steps": wish.steps}


def nest_code(nest: Nest, sizes: Mapping[str, int]) -> NestCode:
    """For nests of one statement whose array does not go round its ends; computed in double precision.

    Every value has a place of its own, by iteration, so that flow dependences are all there is. WishError for others.
    """
    if len(nest.statements) != 1:
        found = f"{len(nest.statements)} statements"
        raise WishError(f"{nest.name} cannot be written as such a program", found=found, hint="a nest of one statement")
    (statement,) = nest.statements
    boundary = nest.arrays[statement.target.array].boundary
    if boundary in ("periodic", "reflecting"):
        raise WishError(f"{nest.name} cannot be written as such a program", found=f"boundary {boundary}", hint="fixed")
    writer = _Writer(nest, sizes)
    vectors = sorted({*writer.distances.values()})
    if not vectors:
        raise WishError(f"{nest.name} has no dependences", hint="its points can be computed in any order")
    deps = tuple(tuple(vector[k] for vector in vectors) for k in range(len(statement.loops)))
    return NestCode(deps, Space.parse(set_text(statement.loops, sizes)), writer.text())


class _Writer(Expressions):
    """The statement at iteration p0, p1, …: what earlier iterations computed is A of theirs, all else is given."""

    def __init__(self, nest: Nest, sizes: Mapping[str, int]) -> None:
        super().__init__(dict.fromkeys(nest.arrays, "float64"))
        self.nest, self.sizes, (self.statement,) = nest, sizes, nest.statements
        self.points = {loop.index: f"(p{k})" for k, loop in enumerate(self.statement.loops)}
        self.distances: dict[str, tuple[int, ...]] = {}
        for each in nest.dependences():
            if each.kind == "flow":
                known = self.distances.setdefault(str(each.sink_access), each.distance)
                if known != each.distance:
                    raise WishError(f"{each.sink_access} of {nest.name} is from several iterations", hint="one of them")

    def element(self, read: Read) -> str:
        distance = self.distances.get(str(read))
        if read.array != self.statement.target.array or distance is None:
            return self._given(read)
        return f"A({', '.join(_back(point, by) for point, by in zip(self.points.values(), distance, strict=True))})"

    def _given(self, read: Read) -> str:
        """An element of an array before the loops."""
        at = read.at[self.nest.arrays[read.array].time :]
        return f"GIVEN_{read.array}({', '.join(map(self._affine, at))})"

    def _affine(self, value: Affine) -> str:
        names = self.points | {name: str(size) for name, size in self.sizes.items()}
        terms = [names[name] if factor == 1 else f"{factor} * {names[name]}" for name, factor in value.terms]
        constant = [str(value.constant)] if value.constant or not terms else []
        return " + ".join([*terms, *constant]).replace("+ -", "- ")

    def text(self) -> str:
        target, points = self.statement.target, ", ".join(f"p{k}" for k in range(len(self.points)))
        value = self.expression(self.statement.value, "float64")
        lines = [*(_data(name, len(array.shape)) for name, array in self.nest.arrays.items()), *self.helpers]
        lines.append(f"/* {self.statement} */")
        lines.append(f"#define POINT({points}) A({points}) = {value}")
        lines.append(f"#define START({points}) {self._given(target)} /* what A holds outside the space */")
        return "\n".join(lines)


def _back(point: str, by: int) -> str:
    return f"{point} - {by}" if by > 0 else f"{point} + {-by}" if by else point


def _data(name: str, axes: int) -> str:
    """Numbers from 0 to 1, other ones at each place; whole thousandths, so that every machine has the same."""
    names = [f"i{k}" for k in range(axes)]
    place = " + ".join(f"({axis}) * {factor}" for axis, factor in zip(names, FACTORS, strict=False))
    return _DATA.format(name=name, axes=", ".join(names), value=f"(double)(({place}) % 1000) / 1000")
