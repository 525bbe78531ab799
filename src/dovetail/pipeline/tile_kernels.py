"""tile_kernels: the kernels of a pipeline: tiles of a sweep, single statements, and copies of boxes between slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import sha256
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.ir import CFunction, KernelForm, Operand, Work
from dovetail.loops.code.evaluate import evaluated
from dovetail.loops.code.generate import Expressions, c_type
from dovetail.loops.code.run import address
from dovetail.loops.expressions import Read, operations
from dovetail.loops.grid.blocks import Box
from dovetail.loops.matrices import Vector
from dovetail.loops.recording import Statement
from dovetail.pipeline.skews import Skew, mean_row, span_of
from dovetail.pipeline.tile_text import INCLUDES, STRUCT, TileWriter
from dovetail.pipeline.tiles import Tile

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class TileKernel(Tile):
    """The kernel that computes a tile."""

    @property
    def form(self) -> KernelForm:
        return KernelForm(self.name, self.call, self.work, self.native)

    def call(self, reads: Sequence[Array], writes: Sequence[Array]) -> None:
        """Compute the tile by NumPy, on copies, one diagonal of points after the other: the kernel's reference."""
        count = len(writes[0])
        skew = self.skew or Skew(count, 0, count)
        held = {rows.array: np.array(array) for rows, array in zip(self.rows, reads, strict=False)}
        back = {rows.array: rows.back if rows.moves else 0 for rows in self.rows}
        for face, array in zip(self.faces, reads[len(self.rows) :], strict=True):
            span = span_of(skew, face.needs, self.turns[0].sign)
            first = back[face.array] + span[0] if span and face.moves else 0
            held[face.array][(slice(first, first + len(array)), *(slice(*side) for side in face.box))] = array
        with np.errstate(all="ignore"):
            for counters in diagonals((count, *self.sides), tuple(turn.weight for turn in self.turns)):
                self._compute(held, back, self._points(skew, counters))
        for rows, out in zip(self.written, writes, strict=True):
            out[...] = held[rows.array][rows.back : rows.back + count]

    def _points(self, skew: Skew, counters: tuple[Array, ...]) -> tuple[Array, ...]:
        """Return the position and the place in the box of each point of a tile, among those that the loops counted."""
        shift = sum(turn.skew * counter for turn, counter in zip(self.turns, counters, strict=True))
        inside = (counters[0] >= skew.start - shift) & (counters[0] < skew.start + skew.width - shift)
        pairs = zip(self.turns, (skew.length, *self.sides), counters, strict=True)
        return tuple((each if turn.sign > 0 else side - 1 - each)[inside] for turn, side, each in pairs)

    def _compute(self, held: Mapping[str, Array], back: Mapping[str, int], points: tuple[Array, ...]) -> None:
        def index(read: Read) -> tuple[Any, ...]:
            array, ahead, place = self.elements[str(read)]
            moves = next(rows.moves for rows in self.rows if rows.array == array)
            within = (by if loop is None else points[1 + loop] + self.box[loop][0] + by for loop, by in place)
            return (points[0] + back[array] + ahead if moves else 0, *within)

        for statement in self.statements:
            dtype = self.dtypes[statement.target.array]
            value = evaluated(statement.value, lambda read: held[read.array][index(read)], self.dtypes, dtype)
            held[statement.target.array][index(statement.target)] = value

    def work(self, reads: Sequence[Operand], writes: Sequence[Operand]) -> Work:
        """Return the work in positions; its cost curve is specific to this sweep and the size of its slots."""
        units = float(writes[0].slots) if self.skew is None else self._mean_row
        points = units * prod(self.sides)
        num_bytes = sum(operand.slots * operand.slot.num_bytes for operand in (*reads, *writes))
        flops = points * sum(operations(statement.value) for statement in self.statements)
        sides = "x".join(map(str, self.sides))
        return Work(f"{self.label}-{self.mark}:{sides}:{writes[0].slot.dtype}", units, flops, num_bytes)

    @cached_property
    def _mean_row(self) -> float:
        assert self.skew is not None
        return mean_row(self.skew, [(turn.skew, side) for turn, side in zip(self.turns[1:], self.sides, strict=True)])

    @cached_property
    def mark(self) -> str:
        """A hash of the computation, so that kernels of equal names do not share costs."""
        texts, faces = [str(statement) for statement in self.statements], () if self.skew else self.faces
        return sha256(repr((texts, self.rows, self.turns, faces)).encode()).hexdigest()[:6]

    def native(self, reads: Sequence[Operand], writes: Sequence[Operand]) -> CFunction | None:
        """Return the compiled C function; None, with a warning, if it cannot be compiled."""
        found = address(self.c_text(), self.label)
        return CFunction(found, self.skew or (writes[0].slots,)) if found else None

    def c_text(self) -> str:
        return TileWriter(self).text()


@lru_cache(maxsize=64)
def diagonals(sides: Vector, weights: Vector) -> list[tuple[Array, ...]]:
    """Return the points of a box, grouped by their weighted sums, in increasing order.

    >>> [[points.tolist() for points in each] for each in diagonals((2, 2), (1, 1))]
    [[[0], [0]], [[0, 1], [1, 0]], [[1], [1]]]
    """
    points = np.indices(sides).reshape(len(sides), -1)
    level = np.tensordot(weights, points, 1)
    order = np.argsort(level, kind="stable")
    ends = np.flatnonzero(np.diff(level[order])) + 1
    return [tuple(each) for each in np.split(points[:, order], ends, axis=1)] if points.shape[1] else []


@dataclass(frozen=True, eq=False)
class BoxKernel:
    """A kernel that copies a box of each slot into a box of another slot, whose other elements it leaves.

    `priced`: whether its cost is that of its positions, or zero.
    """

    name: str
    dtype: str
    source: Vector
    source_box: Box
    target: Vector
    target_box: Box
    priced: bool = False

    @property
    def form(self) -> KernelForm:
        return KernelForm(self.name, self.call, self.work, self.native)

    def call(self, reads: Sequence[Array], writes: Sequence[Array]) -> None:
        there, here = ((slice(None), *(slice(*side) for side in box)) for box in (self.target_box, self.source_box))
        writes[0].reshape(-1, *self.target)[there] = reads[0].reshape(-1, *self.source)[here]

    def work(self, reads: Sequence[Operand], writes: Sequence[Operand]) -> Work:
        elements = prod(high - low for low, high in self.source_box)
        num_bytes = 2.0 * elements * writes[0].slots * writes[0].slot.num_bytes / max(prod(self.target), 1)
        return Work(f"moved:{elements}:{self.dtype}", writes[0].slots * self.priced, 0.0, num_bytes)

    def native(self, reads: Sequence[Operand], writes: Sequence[Operand]) -> CFunction | None:
        found = address(self.c_text(), "moved")
        return CFunction(found, (writes[0].slots,)) if found else None

    def c_text(self) -> str:
        """Return the C code: loops over all axes of the box."""
        kind = c_type(self.dtype)
        sides = [high - low for low, high in self.source_box]
        lines, indent = [], "        "
        places: list[list[str]] = [[f"x * {prod(self.source)}"], [f"x * {prod(self.target)}"]]
        for k, side in enumerate(sides):
            lines.append(f"{indent}for (int64_t i{k} = 0; i{k} < {side}; ++i{k})")
            sides_of = (self.source, self.source_box), (self.target, self.target_box)
            for texts, (plane, box) in zip(places, sides_of, strict=True):
                texts.append(f"(i{k} + {box[k][0]}) * {prod(plane[k + 1 :])}")
            indent += "    "
        here, there = (" + ".join(texts) for texts in places)
        head = [
            "/* moved: a box of each slot into a box of another */",
            INCLUDES,
            STRUCT,
            "void moved(const struct rows *o, const int64_t *sizes)",
        ]
        body = [
            f"    const {kind} *restrict from = (const {kind} *)o[0].data;",
            f"    {kind} *restrict to = ({kind} *)o[1].data;",
            "    for (int64_t x = 0; x < sizes[0]; ++x)",
            *lines,
            f"{indent}to[{there}] = from[{here}];",
        ]
        return "\n\n".join(head) + "\n{\n" + "\n".join(body) + "\n}\n"


@dataclass(frozen=True, eq=False)
class SingleKernel:
    """A kernel that executes one statement on one element of a slot. It reads elements that were copied out for it."""

    name: str
    label: str
    statement: Statement
    place: Vector
    plane: Vector
    dtypes: Mapping[str, str]

    @property
    def form(self) -> KernelForm:
        return KernelForm(self.name, self.call, self.work, self.native)

    @property
    def number(self) -> Mapping[str, int]:
        """The number of the operand that holds each element that is read; operand 0 is the slot that is written."""
        return {str(read): 1 + k for k, read in enumerate(self.statement.reads)}

    def call(self, reads: Sequence[Array], writes: Sequence[Array]) -> None:
        dtype = self.dtypes[self.statement.target.array]
        element: Callable[[Read], Any] = lambda read: reads[self.number[str(read)]].reshape(-1)  # noqa: E731
        with np.errstate(all="ignore"):
            value = evaluated(self.statement.value, element, self.dtypes, dtype)
        held = np.array(reads[0])
        held[(0, *self.place)] = np.asarray(value).reshape(-1)[0]
        writes[0][...] = held

    def work(self, reads: Sequence[Operand], writes: Sequence[Operand]) -> Work:
        return Work(f"{self.label}:{writes[0].slot.dtype}", 0.0, 0.0)

    def native(self, reads: Sequence[Operand], writes: Sequence[Operand]) -> CFunction | None:
        found = address(self.c_text(), self.label)
        return CFunction(found, ()) if found else None

    def c_text(self) -> str:
        return _SingleWriter(self).text()


class _SingleWriter(Expressions):
    """Write the C code of a single statement."""

    def __init__(self, kernel: SingleKernel) -> None:
        super().__init__(kernel.dtypes)
        self.kernel = kernel

    def element(self, read: Read) -> str:
        return f"((const {c_type(self.dtypes[read.array])} *)o[{self.kernel.number[str(read)]}].data)[0]"

    def text(self) -> str:
        statement, plane = self.kernel.statement, self.kernel.plane
        kind, last = c_type(self.dtypes[statement.target.array]), 1 + len(statement.reads)
        at = sum(place * prod(plane[k + 1 :]) for k, place in enumerate(self.kernel.place))
        value = self.expression(statement.value, self.dtypes[statement.target.array])
        lines = [
            f"/* {self.kernel.label}: {statement} */",
            INCLUDES,
            STRUCT,
            *self.helpers,
            f"void {self.kernel.label}(const struct rows *o, const int64_t *sizes)\n{{\n    (void)sizes;\n"
            f"    (({kind} *)o[{last}].data)[{at}] = {value};\n}}",
        ]
        return "\n\n".join(lines) + "\n"
