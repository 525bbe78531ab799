"""tile_diagram: a picture of the tiles of a sweep: the axis that is cut across, the mapped axis upwards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dovetail.ir import Piece, Space
from dovetail.loops.analysis.sweeps import Sweep
from dovetail.loops.grid.blocks import volume
from dovetail.pipeline.decomposition import Cutting

Ints = NDArray[np.int64]
STRIPS, MOST_TILES = 48, 16  # most rows and tiles shown upwards


def space_of_tiles(cutting: Cutting, grain: int, overlapped: bool) -> Space | None:
    """Return the picture of the first tiles of a sweep: the first sweep with skewed tiles, else the first of all.

    A turn is a time step. A tile takes one step; so does a message that travels while tiles are computed.
    """
    sweeps = [sweep for sweep in cutting.pipelined.sweeps if volume(cutting.sweep_box(sweep))]
    if not sweeps:
        return None
    sweep = next((each for each in sweeps if any(cutting.skew(each))), sweeps[0])
    shown = _Shown(cutting, sweep, _across(cutting), grain, 1 + overlapped)
    low, high = cutting.sweep_box(sweep)[shown.across]
    first, end = cutting.sweep_box(sweep)[cutting.mapped]
    count = min(end - first, MOST_TILES * grain)
    if sweep.signs[cutting.mapped] < 0:
        first = end - count
    stride = -(-count // STRIPS)
    middles = [min(start + stride // 2, end - 1) for start in range(first, first + count, stride)]
    pieces = tuple(piece for step, middle in enumerate(middles, 1) for piece in shown.pieces(step, middle))
    ends = sorted({box[shown.across][1] for box in cutting.owned})
    cuts = tuple(at for at in ends if low < at < high)
    across, up = (f"axis {axis}" for axis in (shown.across, cutting.mapped))
    return Space(across, low, high, cuts, pieces, up, first, stride, apart=False)


def _across(cutting: Cutting) -> int:
    """Return the first axis that is cut; else the first that can be."""
    axes = [axis for axis in cutting.pipelined.forward if axis != cutting.mapped]
    return next((axis for axis in axes if cutting.cut[axis] > 1), axes[0])


@dataclass(frozen=True)
class _Shown:
    """The picture of a sweep. `lag`: time steps from one part to the next."""

    cutting: Cutting
    sweep: Sweep
    across: int
    grain: int
    lag: int

    def pieces(self, step: int, position: int) -> Iterator[Piece]:
        """Yield the pieces at one position, of the parts that are first along the axes not shown, at their first points
        there.
        """
        turns = [self.cutting.turn(self.sweep, part)[self.across] for part in range(self.cutting.num_parts)]
        for part, place in enumerate(self.cutting.places):
            rows = np.arange(*self.cutting.part_box(self.sweep, part)[self.across])
            if len(rows) and not any(at for axis, at in enumerate(place) if axis != self.across):
                tiles = self._tiles(rows, position) + self.lag * (turns[part] - min(turns)) + 1
                ends = [0, *(np.flatnonzero(np.diff(tiles)) + 1).tolist(), len(rows)]
                for low, high in pairwise(ends):
                    yield Piece(part, int(tiles[low]), step, int(rows[low]), int(rows[high - 1]) + 1, False)

    def _tiles(self, rows: Ints, position: int) -> Ints:
        """Return the number of the tile that contains the point of each row at a position."""
        box, signs = self.cutting.sweep_box(self.sweep), self.sweep.signs
        (low, high), (first, end) = box[self.across], box[self.cutting.mapped]
        before = rows - low if signs[self.across] > 0 else high - 1 - rows
        done = position - first if signs[self.cutting.mapped] > 0 else end - 1 - position
        found: Ints = (done + self.cutting.skew(self.sweep)[self.across] * before) // self.grain
        return found
