"""depend: turn the order of rows into explicit dependencies between ops that access the same slots."""

from __future__ import annotations

import numpy as np

from dovetail.ir import Program
from dovetail.passes.accesses import WRITE, Accesses, accesses
from dovetail.passes.columns import Array, dep_columns


def depend(program: Program) -> Program:
    """Order all conflicting ops of a rank (same slot, one of them writes) by `after`, in the order of their rows.

    For each slot, a read waits for the last write; a write waits for the reads since then, or for the last write if
    there are none. These imply all other orders. Lane order then matters for messages only. The program's
    own dependencies are replaced.

    >>> from dovetail.ir import parse, to_text
    >>> before = parse('''
    ... program pass ranks 2
    ... buffer x input 2
    ... buffer t scratch 1
    ... lane net net
    ... channel 0->1 0 depth 2
    ... rank 0 lane net
    ...   copy x[0:1] -> t[0:1]
    ...   send t[0:1] to 1
    ...   copy x[1:2] -> t[0:1]
    ... rank 1 lane net
    ...   recv from 0 -> x[0:1]
    ...   reduce x[0:1] -> x[1:2]
    ... ''')
    >>> print(to_text(depend(before)).split("depth 2")[1].strip())
    rank 0 lane net
      copy x[0:1] -> t[0:1]
      send t[0:1] to 1 after net.0
      copy x[1:2] -> t[0:1] after net.1
    rank 1 lane net
      recv from 0 -> x[0:1]
      reduce x[0:1] -> x[1:2] after net.0
    """
    return program.with_columns({**program.columns, **dep_columns(program.num_ops, *conflicts(accesses(program)))})


def conflicts(touched: Accesses) -> tuple[Array, Array]:
    """Return (later op, earlier op) of the conflicts from which all others follow."""
    row, writes = touched.row, (touched.mode & WRITE) != 0
    at = np.arange(len(row))
    start = np.maximum.accumulate(np.where(touched.first, at, 0))
    last = np.concatenate([[-1], np.maximum.accumulate(np.where(writes, at, -1))])[:-1]  # last write before entry
    on_write = (last >= start) & (~writes | (last == at - 1))
    upto = np.minimum.accumulate(np.where(writes, at, len(row))[::-1])[::-1]
    reads = np.flatnonzero(~writes & (upto < len(row)))  # reads that a write follows
    reads = reads[start[upto[reads]] == start[reads]]  # of the same slot
    return np.concatenate([row[on_write], row[upto[reads]]]), np.concatenate([row[last[on_write]], row[reads]])
