"""shapes: generate large Programs quickly, for benchmarks and tests of scale."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.core import parse_count
from dovetail.ir.build import Builder
from dovetail.ir.program import Program
from dovetail.ir.types import COLUMNS, Kind, Region, Term


def ring_all_reduce(num_ranks: int, chunks_per_rank: int, lanes: int = 1) -> Program:
    """Return an in-place ring all_reduce: each of `num_ranks * chunks_per_rank * lanes` slots goes around twice.

    Buffer `x` (input) has that many slots on each rank and ends with their sum over ranks. Lane l of a rank owns one
    run of `num_ranks * chunks_per_rank` slots, cut into `num_ranks` parts, and a channel id. An op moves one slot.
    There are `lanes * chunks_per_rank * 4 * (num_ranks - 1) * num_ranks` ops, sends and receives alternating.

    >>> ring_all_reduce(64, 62).num_ops
    999936
    """
    num_ranks = parse_count(num_ranks, "num_ranks", least=1)
    chunks = parse_count(chunks_per_rank, "chunks_per_rank", least=1)
    lanes = parse_count(lanes, "lanes", least=1)
    slots = num_ranks * chunks * lanes
    builder = Builder(f"ring_all_reduce_{num_ranks}_{chunks}_{lanes}", num_ranks)
    builder.buffer("x", "input", slots)
    for lane in range(lanes):
        builder.lane(f"net{lane}" if lanes > 1 else "net", "net")
    for lane in range(lanes if num_ranks > 1 else 0):
        for rank in range(num_ranks):
            builder.channel(rank, (rank + 1) % num_ranks, lane)
    whole = Region("x", 0, slots)
    builder.post(range(num_ranks), whole, [Term(None, ((rank, whole),)) for rank in range(num_ranks)])
    return builder.build().with_columns(_ring_columns(num_ranks, chunks, lanes))


def _ring_columns(num_ranks: int, chunks: int, lanes: int) -> dict[str, NDArray[Any]]:
    """Return the columns: arrays with axes (rank, lane, step, chunk, send or receive), flattened."""
    shape = (num_ranks, lanes, 2 * (num_ranks - 1), chunks, 2)
    rank, lane, step, chunk, half = (axis.ravel() for axis in np.indices(shape, sparse=False))
    is_send, reduces = half == 0, step < num_ranks - 1
    kind = np.where(is_send, Kind.send, np.where(reduces, Kind.recv_reduce, Kind.recv))
    part = (rank - step - np.where(is_send, 0, 1)) % num_ranks
    offset = (lane * num_ranks + part) * chunks + chunk
    reads, writes = is_send | reduces, ~is_send
    n, none = len(kind), np.full(len(kind), -1)
    columns = {name: np.zeros(0) for name in COLUMNS}
    columns |= {"kind": kind, "rank": rank, "lane": lane, "call": none, "line": none, "dep_start": np.zeros(n + 1)}
    columns["chan_out"] = np.where(is_send, lane * num_ranks + rank, -1)
    columns["chan_in"] = np.where(is_send, -1, lane * num_ranks + (rank - 1) % num_ranks)
    for side, present in (("read", reads), ("write", writes)):
        count = int(np.count_nonzero(present))
        columns[f"{side}_start"] = np.concatenate([[0], np.cumsum(present)])
        columns[f"{side}_offset"] = offset[present]
        columns[f"{side}_buffer"] = columns[f"{side}_stride"] = np.zeros(count)
        columns[f"{side}_count"] = columns[f"{side}_blocks"] = np.ones(count)
    return columns
