"""tiles: Tile, a tile of a sweep as data: its statements, loops, rows of slots and faces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from dovetail.loops.grid.blocks import Box
from dovetail.loops.matrices import Vector
from dovetail.loops.recording import Statement
from dovetail.pipeline.skews import Need, Skew


class Rows(NamedTuple):
    """Slots of an array that a tile reads and, if `written`, writes: from `back` positions before the tile's own to
    `ahead` beyond; all slots if the array does not extend along the mapped axis (`moves` is False)."""

    array: str
    back: int
    ahead: int
    plane: Vector
    moves: bool
    written: bool


class Face(NamedTuple):
    """Received values of an array that a tile needs; they are copied into a box of its slots before the tile runs."""

    array: str
    needs: tuple[Need, ...]
    box: Box
    moves: bool


class Turn(NamedTuple):
    """A loop of a tile. `sign`: 1 upwards, -1 downwards; `skew`: positions by which each iteration shifts the tile;
    `weight`: weight of an iteration in a point's weighted sum (see `skews.waves`)."""

    sign: int
    skew: int
    weight: int


class Element(NamedTuple):
    """Place of an element that a statement accesses. `ahead`: offset in positions. `place`: for each axis of the slot,
    the loop of the tile that runs along it (None: none), and the offset."""

    array: str
    ahead: int
    place: tuple[tuple[int | None, int], ...]


@dataclass(frozen=True, eq=False)
class Tile:
    """A tile of a sweep: computed in place, after received faces are copied beside the part's own points.
    `box`: range of every loop except the one over positions, outermost first, in the numbering of the part's slots.
    `turns`: the loop over positions, then the loops of `box`. `skew`: extent of a skewed tile; the loop over
    positions then is within the first `outer` others. `lag`: C computes two rows at once, the second `lag` points
    behind the first; None: one row at a time. `in_turn`: the innermost loop must not be vectorised.
    """

    name: str
    label: str
    statements: tuple[Statement, ...]
    elements: Mapping[str, Element]
    rows: tuple[Rows, ...]
    faces: tuple[Face, ...]
    box: Box
    dtypes: Mapping[str, str]
    turns: tuple[Turn, ...]
    skew: Skew | None = None
    outer: int = 0
    lag: int | None = None
    in_turn: bool = False

    @property
    def sides(self) -> Vector:
        return tuple(high - low for low, high in self.box)

    @property
    def written(self) -> list[Rows]:
        return [rows for rows in self.rows if rows.written]
