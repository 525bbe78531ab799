"""reduced_tile: a tile that our own messages all-reduce, of any length, with messages whole or cut, made quickly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dovetail.ir import Kind, Program
from dovetail.passes.op_rows import rows_of, runs
from dovetail.passes.pieces import deepened
from dovetail.passes.regions import bounds, round_units

Ints = NDArray[np.int64]


def of_rows(tile: Program, rows: int, most: int | None = None) -> Program:
    """`tile`, whose every row is a chunk of the all-reduce, as one of `rows` rows, at least as many: what each op
    takes, and, where messages of more than `most` rows are cut, one op for each piece. Offsets of regions are not
    changed, so the result is right for timing only, not for data.

    Piece i waits for piece i of a message of the same chunk, and the first for all of anything else.
    """
    col, chunks = tile.columns, tile.slots_of("C", 0)
    sizes, sends = np.diff(bounds(rows, chunks)), (col["chan_in"] >= 0) | (col["chan_out"] >= 0)
    local = ~sends & (col["kind"] != Kind.compute)  # a copy or a sum of a chunk, never cut
    chunk = np.where(sends | local, _chunk(tile), -1)
    count = np.where(sends, -(-sizes[chunk] // (most or rows)), 1)
    begin = np.append(0, np.cumsum(count))
    op, piece = runs(count)
    held = np.where(sends | local, sizes[chunk], 0)[op]
    unit = round_units(held, count[op], most or rows)
    taken = (held // unit // count[op] + (piece < held // unit % count[op])) * unit
    new = {name: col[name][op] for name in ("kind", "rank", "lane", "call", "line", "chan_in", "chan_out")}
    weights = [b.name for b in tile.buffers].index("B")
    for side in ("read", "write"):
        row, owner = rows_of(col[f"{side}_start"], op)
        new |= {name: col[name][row] for name in col if name.startswith(f"{side}_") and not name.endswith("_start")}
        new[f"{side}_start"] = np.append(0, np.cumsum(np.diff(col[f"{side}_start"])[op]))
        whole = np.where(new[f"{side}_buffer"] == weights, 1, rows)
        new[f"{side}_count"] = np.where((sends | local)[op][owner], taken[owner], whole)
    row, owner = rows_of(col["dep_start"], op)
    on = col["dep"][row]
    alike = sends[on] & (chunk[on] == chunk[op[owner]]) & sends[op[owner]]
    kept = alike | (piece[owner] == 0)
    new["dep"] = np.where(alike, begin[on] + piece[owner], begin[on + 1] - 1)[kept]
    new["dep_start"] = np.append(0, np.cumsum(np.bincount(owner[kept], minlength=len(op))))
    return replace(tile, channels=deepened(tile, count), posts=()).with_columns(new)


def _chunk(tile: Program) -> Ints:
    """The chunk that each op moves or adds up: where it lies in P or in C, or, of what comes aside, where it lay on the
    rank that sent it."""
    col, found = tile.columns, np.full(tile.num_ops, -1, np.int64)
    placed = np.array([b.name in ("P", "C") for b in tile.buffers])
    for side in ("read", "write"):
        row, owner = rows_of(col[f"{side}_start"], np.arange(tile.num_ops))
        here = placed[col[f"{side}_buffer"][row]]
        found[owner[here]] = col[f"{side}_offset"][row[here]]
    sent, came = (_in_order(col[side]) for side in ("chan_out", "chan_in"))
    aside = found[came] < 0
    found[came[aside]] = found[sent[aside]]
    return found


def _in_order(channel: Ints) -> Ints:
    """Rows of the ops that use a channel, one channel's after the other's; the k-th to be sent is the k-th to come."""
    order = np.argsort(channel, kind="stable")
    return order[channel[order] >= 0].astype(np.int64)
