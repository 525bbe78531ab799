"""emit: convert the recorded operations of an algorithm to a Program with one net lane per rank."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.collective.recorder import COPY, FIELDS, REDUCE, SEND_COPY, SEND_REDUCE, Recorder
from dovetail.ir import COLUMNS, Builder, Kind, Program
from dovetail.passes.hints import Hints

Columns = dict[str, NDArray[Any]]


def emit(name: str, recorder: Recorder, depth: int, slot_by_slot: bool = False) -> tuple[Program, Hints]:
    """Return the Program of recorded operations, and the author's hints for each op.

    An operation between ranks becomes a send and a recv or recv_reduce; an operation within a rank becomes a copy or
    reduce. A channel holds `depth` messages; its id is the requested one, else 0. `slot_by_slot`: an operation on n
    slots becomes n operations on one slot.
    """
    ops = _cut(_fields(recorder)) if slot_by_slot else _fields(recorder)
    builder = Builder(name, recorder.num_ranks)
    stores = dict.fromkeys(recorder.stores.values())
    for buffer in recorder.spec.buffers:
        builder.buffer(*buffer)
    for store in stores:
        if store.is_scratch:
            builder.buffer(store.name, "scratch", [len(slots) for slots in store.written])
    builder.lane("trace", "net")
    channel = _channels(builder, ops, depth)
    used, ops["line"] = np.unique(ops["line"], return_inverse=True)
    columns, hints = _columns(ops, channel)
    texts = recorder.texts()
    tables = replace(builder.build(), posts=recorder.spec.posts)
    return tables.with_columns(columns, tuple(texts[line] for line in used.tolist())), hints


def _fields(recorder: Recorder) -> Columns:
    """Return the recorded operations as columns, one per name of FIELDS."""
    rows = np.frombuffer(recorder.rows, dtype=np.int32) if recorder.time else np.zeros(0, dtype=np.int32)
    return dict(zip(FIELDS, rows.reshape(-1, len(FIELDS)).T.copy(), strict=True))


def _cut(ops: Columns) -> Columns:
    """Cut every operation into operations on one slot, in the order of the slots."""
    count = ops["count"]
    cut = {name: np.repeat(column, count) for name, column in ops.items()}
    place = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    return (
        cut
        | {name: cut[name] + place for name in ("src_index", "add_index", "dst_index")}
        | {"count": cut["count"] * 0 + 1}
    )


def _channels(builder: Builder, ops: Columns, depth: int) -> NDArray[np.int64]:
    """Declare the channels in order of (source, destination, id). Return each operation's channel; -1 within a rank."""
    remote = ops["what"] >= SEND_COPY
    number = np.maximum(ops["channel"], 0)
    keys = np.stack([ops[name][remote] for name in ("src", "dst")] + [number[remote]], axis=1)
    width = builder.num_ranks, int(number.max(initial=0)) + 1
    flat = (keys[:, 0].astype(np.int64) * width[0] + keys[:, 1]) * width[1] + keys[:, 2]
    _, first, row = np.unique(flat, return_index=True, return_inverse=True)
    for src, dst, id in keys[first].tolist():
        builder.channel(src, dst, id, depth)
    channel = np.full(len(remote), -1, dtype=np.int64)
    channel[remote] = row.ravel()
    return channel


def _columns(ops: Columns, channel: NDArray[np.int64]) -> tuple[Columns, Hints]:
    """Return the Program's columns (two rows per operation between ranks, one per other operation), and the hints."""
    remote = ops["what"] >= SEND_COPY
    op = np.repeat(np.arange(len(remote)), 1 + remote)  # the operation of each row
    starts = np.cumsum(1 + remote) - 1 - remote
    n, is_send = len(op), np.zeros(len(op), dtype=bool)
    is_send[starts[remote]] = True
    what = ops["what"][op]
    is_recv, adds = (what >= SEND_COPY) & ~is_send, (what == SEND_REDUCE) & ~is_send
    kind = np.choose(what, [Kind.copy, Kind.reduce, Kind.recv, Kind.recv_reduce])
    kind[is_send] = Kind.send
    columns: Columns = {name: np.zeros(0) for name in COLUMNS}
    columns |= {"kind": kind, "rank": np.where(is_send, ops["src"][op], ops["dst"][op]), "lane": np.zeros(n)}
    columns |= {"chan_in": np.where(is_recv, channel[op], -1), "chan_out": np.where(is_send, channel[op], -1)}
    columns |= {"call": np.full(n, -1), "line": ops["line"][op], "dep_start": np.zeros(n + 1)}
    for side, present, of in (("read", ~is_recv | adds, "src"), ("write", ~is_send, "dst")):
        buffer, index = ops[f"{of}_buffer"][op], ops[f"{of}_index"][op]
        if side == "read":
            buffer, index = np.where(adds, ops["add_buffer"][op], buffer), np.where(adds, ops["add_index"][op], index)
        columns[f"{side}_start"] = np.concatenate([[0], np.cumsum(present)])
        columns[f"{side}_buffer"], columns[f"{side}_offset"] = buffer[present], index[present]
        columns[f"{side}_count"] = ops["count"][op][present]
        columns[f"{side}_stride"] = np.zeros(int(np.count_nonzero(present)))
        columns[f"{side}_blocks"] = np.ones(int(np.count_nonzero(present)))
    lane = np.where(is_send | (what == COPY) | (what == REDUCE), ops["send_lane"][op], ops["recv_lane"][op])
    asked = (ops["channel"][op], lane, ops["copies"][op])
    return columns, Hints(*(np.ascontiguousarray(column, dtype=np.int32) for column in asked))
