"""reduced_tile: quickly build a tile of any length that our own messages all-reduce."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dovetail.ir import Kind, Program
from dovetail.passes.op_rows import rows_of
from dovetail.passes.pieces import in_pieces, origins
from dovetail.passes.regions import bounds

Ints = NDArray[np.int64]


def of_rows(tile: Program, rows: int, most: int | None = None) -> Program:
    """Return `tile`, each row of which is a chunk of the all-reduce, scaled up to `rows` rows.

    Messages of more than `most` rows are cut. Regions keep their offsets: the program is for predicting times, not for
    computing.
    """
    col, sizes = tile.columns, np.diff(bounds(rows, tile.slots_of("C", 0)))
    of_chunk = np.append(sizes, rows)[_chunk(tile)]
    weights, new = [b.name for b in tile.buffers].index("B"), dict(col)
    for side in ("read", "write"):
        _, owner = rows_of(col[f"{side}_start"], np.arange(tile.num_ops))
        new[f"{side}_count"] = np.where(col[f"{side}_buffer"] == weights, 1, of_chunk[owner])
    lengthened = replace(tile, posts=()).with_columns(new)
    return lengthened if most is None else in_pieces(lengthened, most)


def _chunk(tile: Program) -> Ints:
    """Return the chunk that each op moves or adds: its place in P or C, or, of data received into other buffers, on the
    rank that sent it; -1 for computations, which are of the whole tile."""
    col, found = tile.columns, np.full(tile.num_ops, -1, np.int64)
    placed = np.array([b.name in ("P", "C") for b in tile.buffers])
    for side in ("read", "write"):
        row, owner = rows_of(col[f"{side}_start"], np.arange(tile.num_ops))
        here = placed[col[f"{side}_buffer"][row]]
        found[owner[here]] = col[f"{side}_offset"][row[here]]
    found = np.where(found < 0, found[origins(tile)], found)
    return np.where(col["kind"] == Kind.compute, -1, found)
