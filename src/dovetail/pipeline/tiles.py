"""tiles: Tile, a tile of a sweep as data: its statements, loops, rows of slots and faces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from dovetail.loops.blocks import Box
from dovetail.loops.matrices import Vector
from dovetail.loops.recording import Statement
from dovetail.pipeline.skews import Lean, Need


class Rows(NamedTuple):
    """Slots of an array that a tile reads, and writes where `written`: from `back` positions before its own, to `ahead`
    beyond; all slots of one that does not go along the mapped axis (`moves` False)."""

    array: str
    back: int
    ahead: int
    plane: Vector
    moves: bool
    written: bool


class Face(NamedTuple):
    """What came of an array, put into a box of its slots before a tile is computed: what the tile needs of it."""

    array: str
    needs: tuple[Need, ...]
    box: Box
    moves: bool


class Turn(NamedTuple):
    """A loop of a tile: 1 or -1 as it goes up or down, by how many positions a tile leans for each of its iterations,
    and what each counts for the diagonal of a point."""

    sign: int
    lean: int
    weight: int


class Element(NamedTuple):
    """Where an element lies that a statement touches: positions from the tile's own, and a place in the slot: of every
    axis of it, which loop of the tile it goes along (None: along none), and how far from there."""

    array: str
    ahead: int
    place: tuple[tuple[int | None, int], ...]


@dataclass(frozen=True, eq=False)
class Tile:
    """What is computed of a sweep at once, in place, after the faces that came are put beside what is the part's own.

    `box`: of every loop but that over positions, the outermost first, its first and last value, as the part's slots
    count. `turns`: the loop over positions, then these: which way it goes, how far tiles lean along it, and its weight:
    points of one sum of weights may be computed at once. `lean`: how the tile lies, where it leans; the loop over
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
    lean: Lean | None = None
    outer: int = 0
    lag: int | None = None
    in_turn: bool = False

    @property
    def sides(self) -> Vector:
        return tuple(high - low for low, high in self.box)

    @property
    def written(self) -> list[Rows]:
        return [rows for rows in self.rows if rows.written]
