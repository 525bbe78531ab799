"""fuse_reduces: fuse a receive into scratch and a later reduce from there into one op."""

from __future__ import annotations

import numpy as np

from dovetail.ir import Kind, Program
from dovetail.passes.accesses import READ, WRITE, accesses
from dovetail.passes.columns import NONE, Array, OpColumns
from dovetail.passes.hints import Hints
from dovetail.passes.transfers import messages


def fuse_reduces(program: Program, hints: Hints) -> tuple[Program, Hints]:
    """In a trace, replace `recv t` and a later `reduce t to d` by one `recv_reduce d` in the place of the reduce.

    The message then waits in its channel until the reduce. Both ops stay if `t` is read elsewhere, if the author asked
    for different lanes, channels or copies of the two, and on channels whose messages would then be received in another
    order than they are sent.

    >>> from dovetail.ir import parse, to_text
    >>> from dovetail.passes.hints import no_hints
    >>> before = parse('''
    ... program sum ranks 2
    ... buffer x input 1
    ... buffer t scratch 1
    ... lane net net
    ... channel 0->1 0 depth 2
    ... rank 0 lane net
    ...   send x[0:1] to 1
    ... rank 1 lane net
    ...   recv from 0 -> t[0:1]
    ...   reduce t[0:1] -> x[0:1]
    ... ''')
    >>> after, _ = fuse_reduces(before, no_hints(before))
    >>> print(to_text(after).split("depth 2")[1].strip())
    rank 0 lane net
      send x[0:1] to 1
    rank 1 lane net
      recv_reduce from 0 x[0:1] -> x[0:1]
    """
    if not np.any(program.columns["kind"] == Kind.reduce):
        return program, hints
    rows = OpColumns.of(program)
    receive, reduce = _private(program, rows)
    fits = np.all(rows.write[receive] == rows.read[reduce], axis=1) & hints.agree(receive, reduce)
    receive, reduce = _in_turn(program, receive[fits], reduce[fits])
    kept = np.ones(program.num_ops, bool)
    kept[receive] = False
    rows.op["kind"][reduce] = Kind.recv_reduce
    rows.op["chan_in"][reduce] = rows.op["chan_in"][receive]
    rows.read[reduce] = rows.write[reduce]
    merged = hints.of(np.arange(program.num_ops))
    for new, old in ((merged.channel, hints.channel), (merged.lane, hints.lane)):
        new[reduce] = np.maximum(old[receive], old[reduce])
    return rows.take(np.flatnonzero(kept)).into(program, NONE, NONE), merged.of(np.flatnonzero(kept))


def _private(program: Program, rows: OpColumns) -> tuple[Array, Array]:
    """Receives whose slots only one reduce reads, and these reduces."""
    touched, kind, n = accesses(program, rows), program.columns["kind"], program.num_ops
    row, mode = touched.row, touched.mode
    at = np.flatnonzero((kind[row] == Kind.recv) & (mode == WRITE))
    reader = np.minimum(at + 1, len(row) - 1)
    good = touched.same(at, at + 1) & (kind[row[reader]] == Kind.reduce) & (mode[reader] == READ)
    good[good] = touched.unread_from(program, at[good] + 2)
    least, most = np.full(n, n), np.full(n, -1)
    np.minimum.at(least, row[at], np.where(good, row[reader], -1))
    np.maximum.at(most, row[at], row[reader])
    receive = np.flatnonzero((least == most) & (most >= 0))
    return receive, most[receive]


def _in_turn(program: Program, receive: Array, reduce: Array) -> tuple[Array, Array]:
    """The pairs without those on channels whose messages would be received in another order than they are sent."""
    taken = messages(program).receive
    channel = program.columns["chan_in"][taken]
    place = np.arange(program.num_ops)
    place[receive] = reduce
    order = np.argsort(channel, kind="stable")
    channel, when = channel[order], place[taken[order]]
    wrong = np.zeros(len(program.channels) + 1, bool)
    wrong[channel[1:][(channel[1:] == channel[:-1]) & (when[1:] < when[:-1])]] = True
    kept = ~wrong[program.columns["chan_in"][receive]]
    return receive[kept], reduce[kept]
