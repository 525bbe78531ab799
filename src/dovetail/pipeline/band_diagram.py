"""band_diagram: a picture of the tiles of bands of steps: positions across, steps upwards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from dovetail.ir import Piece, Space
from dovetail.pipeline.band_program import Tile, tiles_of
from dovetail.pipeline.bands import Line

STRIPS, MOST_TILES, ROUNDS = 48, 16, 2  # most that is shown: steps upwards, tiles to the right, bands of each rank


def space_of_bands(line: Line) -> Space | None:
    """Return the part of the iteration space that the page shows: the first tiles of the sweep, and a few bands of
    steps. In a time step (a turn) every rank may compute one tile."""
    low, high = line.box
    count = min(high - low, MOST_TILES * line.grain)
    if line.steps == 0 or count <= 0:
        return None
    steps = min(line.steps, max(ROUNDS * line.ranks * line.depth, STRIPS))
    stride = -(-steps // STRIPS)
    first = low if line.sweep.signs[0] > 0 else high - count
    pieces = tuple(_pieces(line, steps, stride, first, first + count))
    return Space("position", first, first + count, (), pieces, first=1, stride=stride, apart=False)


def _pieces(line: Line, steps: int, stride: int, low: int, high: int) -> Iterator[Piece]:
    """Yield the positions from `low` to `high` that each tile computes, in every `stride`-th step."""
    begins = np.cumsum([0, *(band.depth for band in line.bands)])
    short = replace(line, steps=int(begins[begins >= steps][0]))
    for tile, turn in _turns(short):
        begin = int(begins[tile.band])
        for step in range(-(-begin // stride) * stride, min(begin + tile.depth, steps), stride):
            first, last = tile.skew.row(line.skew * (step - begin))
            if line.sweep.signs[0] < 0:
                first, last = tile.skew.length - last, tile.skew.length - first
            first, last = max(tile.low + first, low), min(tile.low + last, high)
            if first < last:
                yield Piece(tile.rank, turn, step // stride + 1, first, last, False)


def _turns(line: Line) -> Iterator[tuple[Tile, int]]:
    """Yield each tile with its time step, after its rank's previous tile and after the tiles whose results it reads."""
    ready = {array: np.zeros(line.cutting.grid[0], np.int64) for array in line.moving}
    done = [0] * line.ranks
    for tile in tiles_of(line):
        reads = (ready[array][slice(*line.cutting.span(line.sweep, array, tile.touched))] for array in line.moving)
        turn = 1 + max(done[tile.rank], *(int(values.max(initial=0)) for values in reads))
        for array in line.sweep.targets:
            ready[array][slice(*tile.touched)] = turn
        done[tile.rank] = turn
        yield tile, turn
