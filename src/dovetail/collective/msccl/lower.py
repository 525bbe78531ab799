"""lower: rewrite a Program for MSCCL's interpreter: without nops, and each region a short run of slots."""

from __future__ import annotations

from itertools import chain

import numpy as np
from numpy.typing import NDArray

from dovetail.ir import Kind, Program
from dovetail.ir.build import REGION
from dovetail.passes.op_rows import SIDES, rows_of, runs, taken
from dovetail.passes.pieces import origins

Ints = NDArray[np.int64]


def lower(program: Program, most: int) -> Program:
    """Cut ops into steps of one run of at most `most` slots. Ops after a nop inherit its dependencies.

    A message is cut alike by all ops that it passes. The first piece of an op has the op's dependencies; ops that
    waited for the op wait for its last piece, because pieces of a lane run in order. Channels keep their depths,
    unlike in `passes.slice_messages`: the depth of a runtime's FIFO is fixed, and each piece takes one place.

    >>> from dovetail.ir import parse, to_text
    >>> before = parse('''
    ... program columns ranks 2
    ... buffer input input 4
    ... buffer scratch scratch 4
    ... lane a net
    ... lane b net
    ... channel 0->1 0 depth 2
    ... rank 0 lane a
    ...   send input[0:1; 2 x 2] to 1
    ... rank 1 lane a
    ...   recv from 0 -> scratch[0:2]
    ... rank 1 lane b
    ...   nop after a.0
    ...   copy scratch[0:2] -> scratch[2:4]
    ... ''')
    >>> print(to_text(lower(before, 71)), end="")
    program columns ranks 2
    buffer input input 4
    buffer scratch scratch 4
    lane a net
    lane b net
    channel 0->1 0 depth 2
    rank 0 lane a
      send input[0:1] to 1
      send input[2:3] to 1
    rank 1 lane a
      recv from 0 -> scratch[0:1]
      recv from 0 -> scratch[1:2]
    rank 1 lane b
      copy scratch[0:2] -> scratch[2:4] after a.1
    """
    return in_pieces(_without_nops(program), most)


def in_pieces(program: Program, most: int) -> Program:
    """Cut ops as `lower` does, but keep nops.

    >>> from dovetail.ir import parse, to_text
    >>> whole = parse('''
    ... program two ranks 1
    ... buffer x input 3
    ... buffer y output 3
    ... lane a net
    ... lane b net
    ... rank 0 lane a
    ...   copy x[0:3] -> y[0:3]
    ... rank 0 lane b
    ...   nop after a.0
    ... ''')
    >>> print("\\n".join(to_text(in_pieces(whole, 2)).splitlines()[-5:]))
    rank 0 lane a
      copy x[0:2] -> y[0:2]
      copy x[2:3] -> y[2:3]
    rank 0 lane b
      nop after a.1
    """
    col = program.columns
    if all(((col[f"{side}_blocks"] == 1) & (col[f"{side}_count"] <= most)).all() for side in SIDES):
        return program
    first, low, high = _cuts(program, most)
    piece, op = rows_of(first, origins(program))
    new, owners = taken(col, op)
    for side in SIDES:
        begin, end = low[piece[owners[side]]], high[piece[owners[side]]]
        offset, count, stride, blocks = (new[f"{side}_{part}"] for part in REGION[1:])
        block, inside = np.divmod(begin, np.maximum(count, 1))
        offset += block * stride + inside
        count[:], stride[:], blocks[:] = end - begin, 0, 1
    last = np.cumsum(np.bincount(op, minlength=program.num_ops)) - 1
    is_first = np.append(True, op[1:] != op[:-1])[: len(op)]
    waits = np.where(is_first, np.diff(col["dep_start"])[op], 0)
    return program.with_columns(new | {"dep_start": np.append(0, np.cumsum(waits)), "dep": last[col["dep"]]})


def _cuts(program: Program, most: int) -> tuple[Ints, Ints, Ints]:
    """Cut messages, numbered by the op that first sends each. Return the index of each op's first piece, and each
    piece's first slot and end. No piece crosses a block of any region that the message passes."""
    col, origin, slots = program.columns, origins(program), np.zeros(program.num_ops, np.int64)
    sides = [(np.repeat(origin, np.diff(col[f"{side}_start"])), side) for side in SIDES]
    for of, side in sides:
        np.maximum.at(slots, of, col[f"{side}_count"] * col[f"{side}_blocks"])
    span = int(slots.max(initial=0)) + 1
    ends = [np.arange(program.num_ops) * span]  # an op and a slot of its message, as one number
    for of, side in sides:
        many = np.flatnonzero(col[f"{side}_blocks"] > 1)
        which, block = runs(col[f"{side}_blocks"][many])
        ends.append(of[many][which] * span + block * col[f"{side}_count"][many][which])
    op, begin = np.divmod(np.unique(np.concatenate(ends)), span)
    end = np.where(np.append(op[1:] != op[:-1], True)[: len(op)], slots[op], np.append(begin[1:], 0))
    which, number = runs(np.maximum(-(-(end - begin) // most), 1))
    low = begin[which] + number * most
    return np.searchsorted(op[which], np.arange(program.num_ops + 1)), low, np.minimum(low + most, end[which])


def _without_nops(program: Program) -> Program:
    """The program without nops. The next op of a nop's lane, and ops that waited for it, inherit its dependencies."""
    is_nop = program.kind == Kind.nop
    if not is_nop.any():
        return program
    after = [op.after for op in program.ops()]
    stands_for: dict[int, list[int]] = {}  # by nop: the rows to wait for instead
    waits: list[list[int]] = [[] for _ in after]
    for rows in program.queues().values():
        last, pending = list[int](), list[int]()
        for row in rows.tolist():
            if is_nop[row]:
                pending += after[row]
                stands_for[row] = [*last, *pending]
            else:
                waits[row] = [*pending, *after[row]]
                last, pending = [row], []
    kept, place = np.flatnonzero(~is_nop), np.cumsum(~is_nop) - 1
    found = [_resolved(waits[row], stands_for) for row in kept.tolist()]
    deps = np.fromiter(chain.from_iterable(found), np.int64)
    starts = np.append(0, np.cumsum([*map(len, found)]))
    return program.with_columns(taken(program.columns, kept)[0] | {"dep": place[deps], "dep_start": starts})


def _resolved(waits: list[int], stands_for: dict[int, list[int]]) -> list[int]:
    found, todo, seen = dict[int, None](), waits[::-1], set[int]()
    while todo:
        row = todo.pop()
        if row not in stands_for:
            found[row] = None
        elif row not in seen:
            seen.add(row)
            todo += reversed(stands_for[row])
    return list(found)
