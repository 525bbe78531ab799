"""pieces: cut messages of a Program into pieces sent one after the other, or into ops that stand for runs of these."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.ir import Channel, Program
from dovetail.passes.op_rows import rows_of, runs
from dovetail.passes.regions import round_units

Ints = NDArray[np.int64]
_SIDES = ("read", "write")


def cut_messages(program: Program, most: int | None) -> Program:
    """Cut every message of more than `most` slots (None: no limit) into pieces, as even as round lengths allow, the
    longer ones first.

    Piece i waits for piece i of a message as long, whose data it passes on, and the first for all of anything else;
    what waited for the message waits for its last piece. A send and its receive that stand side by side take turns.
    Channels become deeper (see `deepened`). Sends and receives only, none that is both; their strided regions are of
    single slots.

    >>> from dovetail.ir import parse, to_text
    >>> before = parse('''
    ... program pair ranks 2
    ... buffer x input 3,0
    ... buffer y output 0,3
    ... lane net net
    ... channel 0->1 0 depth 2
    ... rank 0 lane net
    ...   send x[0:3] to 1
    ... rank 1 lane net
    ...   recv from 0 -> y[0:3]
    ... ''')
    >>> print(to_text(cut_messages(before, 2)), end="")
    program pair ranks 2
    buffer x input 3,0
    buffer y output 0,3
    lane net net
    channel 0->1 0 depth 4
    rank 0 lane net
      send x[0:2] to 1
      send x[2:3] to 1
    rank 1 lane net
      recv from 0 -> y[0:2]
      recv from 0 -> y[2:3]
    """
    return program if most is None else expand_repeats(*collapse_repeats(program, most))


def collapse_repeats(program: Program, most: int) -> tuple[Program, Ints]:
    """`program` with each message of more than `most` slots as its first piece, and its first shorter one where pieces
    differ; and for every op, how many pieces alike it stands for: 1 where it is none of a message.

    Where pieces follow each other on the wire, such an op takes as long as they do together. Channels are those of the
    pieces, which `expand_repeats` makes.
    """
    slots = message_slots(program)
    pieces = np.maximum(-(-slots // most), 1)
    unit = round_units(slots, pieces, most)
    long = slots // unit % pieces  # pieces that are longer by a unit
    order = _Order.of(program, 1 + (long > 0), pieces)
    op, shorter = order.op, order.turn > 0
    size = (slots // unit // pieces)[op] * unit[op] + np.where(~shorter & (long[op] > 0), unit[op], 0)
    first = np.where(shorter, long[op] * (size + unit[op]), 0)
    times = np.where(shorter, pieces[op] - long[op], np.where(long[op] > 0, long[op], pieces[op]))
    made = order.applied(program, slots, first, size)
    return replace(made, channels=deepened(program, pieces)), times


def expand_repeats(program: Program, times: Ints) -> Program:
    """What `collapse_repeats` made, each op as often as it stands for: the pieces themselves."""
    slots = message_slots(program)
    order = _Order.of(program, times, times)
    size = slots[order.op]
    made = order.applied(program, slots, order.turn * size, size)
    col = made.columns
    strides = {f"{side}_stride": np.where(col[f"{side}_blocks"] > 1, col[f"{side}_stride"], 0) for side in _SIDES}
    same = all(np.array_equal(column, col[name]) for name, column in strides.items())
    return made if same else made.with_columns({**col, **strides})


def deepened(program: Program, pieces: Ints) -> tuple[Channel, ...]:
    """The channels of `program` after op i's message is cut into `pieces[i]` pieces: old depth times the most pieces of
    any message that they carry. They hold as many whole messages as before, so a program that completed still does; the
    certificate finds the least depth.
    """
    most = np.ones(len(program.channels), np.int64)
    for channel in (program.chan_in, program.chan_out):
        np.maximum.at(most, channel[channel >= 0], pieces[channel >= 0])
    return tuple(c._replace(depth=c.depth * m) for c, m in zip(program.channels, most.tolist(), strict=True))


def message_slots(program: Program) -> Ints:
    """Slots of the message that each op sends or receives; 0 for other ops."""
    col, found = program.columns, np.zeros(program.num_ops, np.int64)
    for side in reversed(_SIDES):
        start = col[f"{side}_start"]
        has = np.flatnonzero((np.diff(start) > 0) & ((col["chan_in"] >= 0) | (col["chan_out"] >= 0)))
        row = start[has]
        found[has] = col[f"{side}_count"][row] * col[f"{side}_blocks"][row]
    return found


class _Order(NamedTuple):
    """The new ops: which each was (`op`) and how many of it came before (`turn`); where the first of each op stands
    (`begin`), and how far apart all of it (`apart`); how often each op stands (`times`), in how many `pieces`."""

    op: Ints
    turn: Ints
    begin: Ints
    apart: Ints
    times: Ints
    pieces: Ints

    @staticmethod
    def of(program: Program, count: Ints, pieces: Ints) -> _Order:
        sent, got = program.chan_out[:-1], program.chan_in[1:]
        paired = np.append((sent >= 0) & (sent == got) & (pieces[:-1] == pieces[1:]), np.zeros(1, np.bool_))
        paired = paired[: program.num_ops]
        second = np.append(np.zeros(1, np.bool_), paired)[:-1]
        begin = np.append(0, np.cumsum(count))[:-1]
        begin[second] = begin[np.flatnonzero(second) - 1] + 1
        apart = 1 + (paired | second)
        which, number = runs(count)
        place = begin[which] + number * apart[which]
        op, turn = np.empty_like(which), np.empty_like(which)
        op[place], turn[place] = which, number
        return _Order(op, turn, begin, apart, count, pieces)

    def applied(self, program: Program, slots: Ints, first: Ints, size: Ints) -> Program:
        """`program` in this order; new op i is `size[i]` slots from `first[i]` on of an old op of `slots` slots."""
        col, op = program.columns, self.op
        new = {name: col[name][op] for name in ("kind", "rank", "lane", "chan_in", "chan_out", "call", "line")}
        for side in _SIDES:
            start = col[f"{side}_start"]
            row, owner = rows_of(start, op)
            new |= {name: col[name][row] for name in col if name.startswith(f"{side}_") and not name.endswith("_start")}
            new[f"{side}_start"] = np.append(0, np.cumsum(np.diff(start)[op]))
            cut = slots[op[owner]] > 0
            _narrow(new, side, cut, first[owner], size[owner])
        return program.with_columns(new | self._deps(program, slots))

    def _deps(self, program: Program, slots: Ints) -> dict[str, Ints]:
        row, owner = rows_of(program.columns["dep_start"], self.op)
        on, op, turn = program.columns["dep"][row], self.op[owner], self.turn[owner]
        alike = (slots[on] > 0) & (slots[on] == slots[op]) & (self.pieces[on] == self.pieces[op])
        kept = alike | (turn == 0)
        dep = self.begin[on] + self.apart[on] * np.where(alike, turn, self.times[on] - 1)
        return {
            "dep": dep[kept],
            "dep_start": np.append(0, np.cumsum(np.bincount(owner[kept], minlength=len(self.op)))),
        }


def _narrow(new: dict[str, NDArray[np.int64]], side: str, cut: NDArray[np.bool_], first: Ints, size: Ints) -> None:
    """The regions of a side that are of messages, as `size` slots of theirs from `first` on; strided ones keep their
    stride, though of one slot only, for the pieces that follow."""
    offset, count, stride, blocks = (new[f"{side}_{part}"] for part in ("offset", "count", "stride", "blocks"))
    flat, rows = cut & ((stride == 0) | (count > 1)), np.flatnonzero(cut & (stride > 0) & (count == 1))
    assert not np.any(blocks[flat] > 1), "a message of strided blocks of several slots"
    offset[flat] += first[flat]
    count[flat] = size[flat]
    offset[rows] += first[rows] * stride[rows]
    blocks[rows] = size[rows]
