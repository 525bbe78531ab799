"""pieces: cut long messages into pieces, or into chains: ops that each represent a run of equal pieces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.ir import Channel, Program
from dovetail.ir.build import REGION
from dovetail.ir.types import RECVS, SENDS, is_one_of
from dovetail.passes.op_rows import SIDES, rows_of, runs, taken
from dovetail.passes.regions import round_units
from dovetail.timeline.partners import message_of

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Cut(NamedTuple):
    """How the message of each op is cut, by op.

    Attributes
    ----------
    slots : array of int
        Slots of the message; 0 for ops that stay whole.
    pieces : array of int
        Number of pieces; 1 for ops that stay whole.
    unit : array of int
        All pieces are multiples of this; the first ones may be longer by it.
    """

    slots: Ints
    pieces: Ints
    unit: Ints

    @staticmethod
    def of(program: Program, most: int) -> Cut:
        """Cut messages of more than `most` slots into as few pieces as hold them, as even as round lengths allow.

        All ops that a message passes are cut alike. Strided regions are cut between their blocks. Not cut are messages
        of a channel that several lanes of a rank use, and those whose ops disagree about the number of slots.
        """
        slots, origin = _message_slots(program), np.arange(program.num_ops)
        cut = Cut(*(np.full_like(slots, fill) for fill in (0, 1, 1)))
        if (slots <= most).all():
            return cut
        origin, block, whole = origins(program), np.ones_like(slots), _on_shared_channels(program)
        long = np.flatnonzero((slots > 0) & (np.maximum(slots, slots[origin]) > most))
        for side in SIDES:
            row, place = rows_of(program.columns[f"{side}_start"], long)
            count, stride, blocks = (program.columns[f"{side}_{part}"][row] for part in REGION[2:])
            of = origin[long[place]]
            np.lcm.at(block, of[stride > 0], count[stride > 0])
            whole[of[count * blocks != slots[of]]] = True
        whole[origin[whole]] = True
        long = long[~whole[origin[long]]]
        slots, block = slots[long], block[origin[long]]
        units, room = slots // block, np.maximum(most // block, 1)
        pieces = -(-units // room)
        unit = block * round_units(units, pieces, room)
        even = slots // unit % pieces == 0
        for column, values in zip(cut, (slots, pieces, np.where(even, slots // pieces, unit)), strict=True):
            column[long] = values
        return cut

    def lengths(self) -> tuple[Ints, Ints]:
        """Return how many pieces of each op are longer than the others, and how many units these others have."""
        longer, shorter = np.zeros_like(self.slots), np.zeros_like(self.slots)
        cut = np.flatnonzero(self.slots)
        shorter[cut], longer[cut] = np.divmod(self.slots[cut] // self.unit[cut], self.pieces[cut])
        return longer, shorter


def collapse_repeats(program: Program, most: int) -> tuple[Program, Ints]:
    """Return `program` with chains in place of messages of more than `most` slots, and how many pieces each op is.

    A message becomes its first piece, which represents all of that length, and its first shorter piece, if pieces
    differ. An op takes as long as all its pieces together, if they follow each other on the wire. Channels are those
    of the pieces, which `expand_repeats` makes.
    """
    cut = Cut.of(program, most)
    made, times = _cut(program, cut, chained=True)
    return replace(made, channels=deepened(program, cut.pieces)), times


def expand_repeats(program: Program, times: Ints) -> Program:
    """Return a program with each chain replaced by its `times` pieces. See `collapse_repeats`."""
    slots = _message_slots(program)
    return _cut(program, Cut(slots * times, times, np.maximum(slots, 1)))[0]


def in_pieces(program: Program, most: int) -> Program:
    """Return `program` with every message of more than `most` slots in pieces, sent one after the other.

    This function does not check for races: `slice_messages` does.

    Piece i waits for piece i of a message that is cut at the same places, if pieces of unlike numbers share no slot.
    In all other dependencies piece 0 waits for the last piece. Pieces of a send right before its receive alternate
    with those of the receive.
    """
    cut = Cut.of(program, most)
    if (cut.pieces == 1).all():
        return program
    return replace(_cut(program, cut)[0], channels=deepened(program, cut.pieces))


def deepened(program: Program, pieces: Ints) -> tuple[Channel, ...]:
    """Return the channels of `program` once each op's message is in `pieces`: depth times the most pieces of a message.

    Channels hold as many whole messages as before, so a program that completed still does. The certificate finds the
    least depth for the pieces.
    """
    most = np.ones(len(program.channels), np.int64)
    for channel in (program.chan_in, program.chan_out):
        np.maximum.at(most, channel[channel >= 0], pieces[channel >= 0])
    return tuple(c._replace(depth=c.depth * m) for c, m in zip(program.channels, most.tolist(), strict=True))


def origins(program: Program) -> Ints:
    """Return for each op the op that first sent the message that it receives or forwards; itself if it does neither."""
    sender = message_of(program)
    origin = np.where(sender >= 0, sender, np.arange(program.num_ops))
    for _ in range(program.num_ops.bit_length() if (origin[origin] != origin).any() else 0):
        origin = origin[origin]
    return origin


def _message_slots(program: Program) -> Ints:
    """Slots of the message that each op sends or receives; 0 for other ops."""
    col, found = program.columns, np.zeros(program.num_ops, np.int64)
    moves = is_one_of(col["kind"], SENDS | RECVS)
    for side in reversed(SIDES):
        has = np.flatnonzero((np.diff(col[f"{side}_start"]) > 0) & moves)
        row = col[f"{side}_start"][has]
        found[has] = col[f"{side}_count"][row] * col[f"{side}_blocks"][row]
    return found


def _on_shared_channels(program: Program) -> Bools:
    """Whether each op uses a channel on which several lanes of a rank send, or receive."""
    sides, lanes = (program.chan_in, program.chan_out), program.columns["lane"]
    shared = np.zeros(len(program.channels) + 1, np.bool_)
    for channel in sides:
        ops, lane = np.flatnonzero(channel >= 0), np.zeros(len(shared), lanes.dtype)
        used, own = channel[ops], lanes[ops]
        lane[used] = own
        shared[used[lane[used] != own]] = True
    found: Bools = shared[sides[0]] | shared[sides[1]]  # the last entry belongs to channel -1: none
    return found


class _Order(NamedTuple):
    """By new op: the old op (`op`), and its number among the pieces (`turn`). By old op: number of pieces (`times`),
    the row of the first one (`begin`), and the distance of their rows (`apart`)."""

    op: Ints
    turn: Ints
    times: Ints
    begin: Ints
    apart: Ints

    @staticmethod
    def of(program: Program, count: Ints) -> _Order:
        """Return the order with each op `count` times in a row; a send right before its receive alternates with it."""
        sent, got = program.chan_out[:-1], program.chan_in[1:]
        unfused = (program.chan_in[:-1] < 0) & (program.chan_out[1:] < 0)
        paired = np.flatnonzero((sent >= 0) & (sent == got) & unfused & (count[:-1] == count[1:]))
        begin, apart = np.append(0, np.cumsum(count))[:-1], np.ones_like(count)
        begin[paired + 1] = begin[paired] + 1
        apart[paired] = apart[paired + 1] = 2
        which, number = runs(count)
        if not len(paired):
            return _Order(which, number, count, begin, apart)
        place = begin[which] + number * apart[which]
        op, turn = np.empty_like(which), np.empty_like(which)
        op[place], turn[place] = which, number
        return _Order(op, turn, count, begin, apart)


def _cut(program: Program, cut: Cut, *, chained: bool = False) -> tuple[Program, Ints]:
    """`program` with the pieces of its messages, or the first of each length; and how many each op represents."""
    longer, shorter = cut.lengths()
    count = 1 + (longer > 0) if chained else cut.pieces
    if chained and (count == 1).all():  # only first pieces, in place of their messages
        new, ops = {name: column.copy() for name, column in program.columns.items()}, np.flatnonzero(cut.slots)
        for side in SIDES:
            place, owner = rows_of(new[f"{side}_start"], ops)
            _narrow(new, side, place, np.zeros_like(owner), (shorter * cut.unit)[ops[owner]])
        return program.with_columns(new), cut.pieces
    order = _Order.of(program, count)
    op, piece = order.op, order.turn
    first, size = piece * (shorter * cut.unit)[op], (shorter * cut.unit)[op]
    times = cut.pieces[op] if chained else np.ones_like(op)
    if longer.any():
        more, unit = longer[op], cut.unit[op]
        if chained:
            times = np.where(piece > 0, times - more, np.where(more > 0, more, times))
            piece = piece * more
            first = piece * size
        first, size = first + np.minimum(piece, more) * unit, size + (piece < more) * unit
    new, owners = taken(program.columns, op)
    for side in SIDES:
        place = np.flatnonzero((cut.slots > 0)[op][owners[side]])
        owner = owners[side][place]
        _narrow(new, side, place, first[owner], size[owner])
        if not chained:  # chains keep it, for the pieces that they represent
            new[f"{side}_stride"][new[f"{side}_blocks"] == 1] = 0
    return program.with_columns(new | _dependencies(program, cut, order)), times


def _dependencies(program: Program, cut: Cut, order: _Order) -> dict[str, Ints]:
    """The columns of the new ops' dependencies. See `in_pieces`."""
    on, op = program.columns["dep"], np.repeat(np.arange(program.num_ops), np.diff(program.columns["dep_start"]))
    alike = (cut.slots[on] > 0) & np.logical_and.reduce([column[on] == column[op] for column in cut])
    alike[alike] = _piece_by_piece(program, on[alike], op[alike])
    row, owner = rows_of(program.columns["dep_start"], order.op)
    kept = np.flatnonzero(alike[row] | (order.turn[owner] == 0))
    row, owner = row[kept], owner[kept]
    dep = order.begin[on[row]] + order.apart[on[row]] * np.where(
        alike[row], order.turn[owner], order.times[on[row]] - 1
    )
    return {"dep": dep, "dep_start": np.append(0, np.cumsum(np.bincount(owner, minlength=len(order.op))))}


def _narrow(columns: Mapping[str, NDArray[Any]], side: str, cut: Ints, first: Ints, size: Ints) -> None:
    """Reduce the regions `cut` of a side to `size` slots from slot `first` on; strided ones to whole blocks."""
    _, offset, count, stride, blocks = (columns[f"{side}_{part}"] for part in REGION)
    if (stride[cut] == 0).all():
        offset[cut] += first
        count[cut] = size
        return
    strided = stride[cut] > 0
    flat, rows = cut[~strided], cut[strided]
    offset[flat] += first[~strided]
    offset[rows] += first[strided] // count[rows] * stride[rows]
    blocks[rows] = size[strided] // count[rows]
    count[flat] = size[~strided]


def _piece_by_piece(program: Program, one: Ints, other: Ints) -> Bools:
    """For each pair of ops: whether pieces of different numbers never share a slot."""
    col, found = program.columns, np.ones(len(one), np.bool_)
    for side, beside in product(SIDES, repeat=2):
        row, pair = rows_of(col[f"{side}_start"], one)
        facing, which = rows_of(col[f"{beside}_start"], other[pair])
        x = [col[f"{side}_{part}"][row[which]] for part in REGION]
        y = [col[f"{beside}_{part}"][facing] for part in REGION]
        equal = np.logical_and.reduce([a == b for a, b in zip(x, y, strict=True)])
        apart = (x[0] != y[0]) | (_end(*x) <= y[1]) | (_end(*y) <= x[1])
        found[pair[which[~(equal | apart)]]] = False
    return found


def _end(buffer: Ints, offset: Ints, count: Ints, stride: Ints, blocks: Ints) -> Ints:
    return offset + stride * (blocks - 1) + count
