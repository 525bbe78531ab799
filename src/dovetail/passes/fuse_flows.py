"""fuse_flows: fuse a receive and the send of its message into one op that forwards it."""

from __future__ import annotations

import numpy as np

from dovetail.ir import Kind, Program
from dovetail.passes.accesses import WRITE, accesses
from dovetail.passes.columns import BUFFER, Array, OpColumns, moved
from dovetail.passes.hints import Hints
from dovetail.passes.transfers import levels, messages


def find_flows(program: Program, hints: Hints) -> Array:
    """Return, for each op of a trace that receives, the row of the send that forwards its message; -1 for other ops.

    Such a send reads exactly what the receive wrote and waits for nothing else. If there are several, the one with the
    longest chain of ops after it is chosen. The author must not have asked for different lanes, channels or copies.

    >>> from dovetail.ir import parse
    >>> from dovetail.passes.depend import depend
    >>> from dovetail.passes.hints import no_hints
    >>> relay = depend(parse('''
    ... program relay ranks 3
    ... buffer x input 1
    ... lane net net
    ... channel 0->1 0 depth 2
    ... channel 1->2 0 depth 2
    ... rank 0 lane net
    ...   send x[0:1] to 1
    ... rank 1 lane net
    ...   recv from 0 -> x[0:1]
    ...   send x[0:1] to 2
    ... rank 2 lane net
    ...   recv from 1 -> x[0:1]
    ... '''))
    >>> find_flows(relay, no_hints(relay)).tolist()
    [-1, 2, -1, -1]
    """
    col, rows, sends = program.columns, OpColumns.of(program), messages(program).send
    forward = np.full(program.num_ops, -1)
    send = sends[np.diff(col["dep_start"])[sends] == 1]
    receive = col["dep"][col["dep_start"][send]]
    fits = np.isin(col["kind"][receive], (Kind.recv, Kind.recv_reduce)) & hints.agree(receive, send)
    fits &= np.all(rows.read[send] == rows.write[receive], axis=1)
    send, receive = send[fits], receive[fits]
    if np.bincount(receive, minlength=1).max() > 1:
        height = levels(program)[1]
        order = np.lexsort((-send, height[send]))  # the last one remains
        send, receive = send[order], receive[order]
    forward[receive] = send
    return forward


def fuse_flows(program: Program, hints: Hints, forwards: Array) -> tuple[Program, Hints]:
    """Fuse each receive for which `forwards` holds with the send in the next row into one op.

    `recv; send` becomes recv_copy_send. `recv_reduce; send` becomes recv_reduce_copy_send, or recv_reduce_send if no op
    reads the sum before it is overwritten. Ops that waited for either wait for the fused op.

    >>> from dovetail.ir import parse, to_text
    >>> from dovetail.passes.hints import no_hints
    >>> before = parse('''
    ... program relay ranks 3
    ... buffer x input 2
    ... buffer t scratch 1
    ... lane tb0 net
    ... channel 0->1 0 depth 2
    ... channel 1->2 0 depth 2
    ... rank 0 lane tb0
    ...   send x[0:1] to 1
    ...   send x[1:2] to 1
    ... rank 1 lane tb0
    ...   recv from 0 -> x[0:1]
    ...   send x[0:1] to 2 after tb0.0
    ...   recv_reduce from 0 t[0:1] -> t[0:1]
    ...   send t[0:1] to 2 after tb0.2
    ... rank 2 lane tb0
    ...   recv from 1 -> x[0:1]
    ...   recv from 1 -> x[1:2]
    ... ''')
    >>> forwards = np.array([False, False, True, False, True, False, False, False])
    >>> after, _ = fuse_flows(before, no_hints(before), forwards)
    >>> print(to_text(after).split("depth 2")[2].strip())
    rank 0 lane tb0
      send x[0:1] to 1
      send x[1:2] to 1
    rank 1 lane tb0
      recv_copy_send from 0 -> x[0:1] to 2
      recv_reduce_send from 0 t[0:1] to 2
    rank 2 lane tb0
      recv from 1 -> x[0:1]
      recv from 1 -> x[1:2]
    """
    receive = np.flatnonzero(forwards)
    if not len(receive):
        return program, hints
    rows, kind = OpColumns.of(program), program.columns["kind"]
    unread = receive[_unread(program, rows, receive)]
    rows.op["chan_out"][receive] = rows.op["chan_out"][receive + 1]
    rows.op["kind"][receive] = np.where(kind[receive] == Kind.recv, Kind.recv_copy_send, Kind.recv_reduce_copy_send)
    rows.op["kind"][unread] = Kind.recv_reduce_send
    rows.write[unread, BUFFER] = -1
    kept = np.ones(program.num_ops, bool)
    kept[receive + 1] = False
    fused = rows.take(np.flatnonzero(kept)).into(program, *moved(program, np.cumsum(kept) - 1))
    return fused, hints.of(kept)


def _unread(program: Program, rows: OpColumns, receive: Array) -> Array:
    """For each receive: whether it reduces, and only the send after it reads the sum."""
    touched = accesses(program, rows)
    asked = np.zeros(program.num_ops, bool)
    asked[receive] = program.columns["kind"][receive] == Kind.recv_reduce
    sums = np.flatnonzero(asked[touched.row] & ((touched.mode & WRITE) != 0))
    sent = np.minimum(sums + 1, len(touched.row) - 1)
    good = touched.same(sums, sums + 1) & (touched.row[sent] == touched.row[sums] + 1)
    good[good] = touched.unread_from(program, sums[good] + 2)
    asked[touched.row[sums[~good]]] = False
    return asked[receive]
