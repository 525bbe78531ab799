"""lanes: choose which ops of a rank share a lane."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dovetail.core import ProgramError
from dovetail.ir import Program
from dovetail.passes.columns import Array, edges, ranked, spread
from dovetail.passes.hints import Hints
from dovetail.passes.transfers import messages

IN, OUT = 0, 1


class Ends(NamedTuple):
    """An end is a rank's messages with one peer, in one direction, on one channel. They are all on one lane.

    By end: IN or OUT, rank, channel, peer, and the lane asked for (-1: any). `of`: by op, its end (-1: none).
    """

    way: Array
    rank: Array
    channel: Array
    peer: Array
    asked: Array
    of: Array


class Lanes(NamedTuple):
    """`of`: each op's lane, numbered over all ranks; `first`: each rank's first lane; `forward`: flows that fit."""

    of: Array
    first: Array
    forward: Array


def share_lanes(program: Program, hints: Hints, forward: Array) -> Lanes:
    """Choose lanes for a trace with channels (see `assign_lanes`). ProgramError if the author's are impossible."""
    ends, kept = _ends(program, hints), forward.copy()
    flows = np.flatnonzero(forward >= 0)
    kept[flows[ends.asked[ends.of[flows]] != ends.asked[ends.of[forward[flows]]]]] = -1
    local = np.flatnonzero((ends.of < 0) & (hints.lane >= 0))
    asked = np.concatenate([ends.asked, hints.lane[local]])
    rank = np.concatenate([ends.rank, program.columns["rank"][local]])
    number = ranked(_labels(ends, kept, rank, asked))[1]
    _check(program, hints, ends, number)
    of, first = _by_rank(program.num_ranks, ends, number, rank, asked)
    lane = np.full(program.num_ops, -1)
    lane[ends.of >= 0] = of[ends.of[ends.of >= 0]]
    lane[local] = of[len(ends.rank) :]
    return Lanes(*_join_locals(program, lane, first), kept)


def _ends(program: Program, hints: Hints) -> Ends:
    send, receive = messages(program)
    rank, ranks = program.columns["rank"].astype(np.int64), program.num_ranks
    op, peer = np.concatenate([receive, send]), np.concatenate([rank[send], rank[receive]])
    way, channels = np.repeat([IN, OUT], len(send)), int(hints.channel.max(initial=0)) + 1
    keys, number = ranked(((way * ranks + rank[op]) * channels + hints.channel[op]) * ranks + peer)
    rest, peers = np.divmod(keys, ranks)
    rest, channel = np.divmod(rest, channels)
    of, asked = np.full(program.num_ops, -1), np.full(len(keys), -1)
    of[op] = number
    np.maximum.at(asked, number, hints.lane[op])
    wrong = op[(hints.lane[op] >= 0) & (hints.lane[op] != asked[number])]
    if len(wrong):
        _refuse(program, hints, int(wrong[0]), "others of the same peer and channel are on another lane")
    return Ends(*np.divmod(rest, ranks), channel, peers, asked, of)


def _labels(ends: Ends, forward: Array, rank: Array, asked: Array) -> Array:
    """For each end, and each copy or reduce that asks for a lane: a label, equal for those that share a lane."""
    label = np.arange(len(asked))
    operator = np.flatnonzero(asked >= 0)
    label[operator] = len(asked) + ranked(rank[operator] * (asked.max(initial=0) + 1) + asked[operator])[1]
    free = ends.asked < 0
    flows = np.flatnonzero(forward >= 0)
    flows = flows[free[ends.of[flows]]]
    one, other = ends.of[flows], ends.of[forward[flows]]
    room = (ends.rank * (ends.channel.max(initial=0) + 1) + ends.channel) * (ends.peer.max(initial=0) + 1)
    for keys in (None, room + ends.peer, room):
        if keys is not None:
            one, other = _match(keys, free & (ends.way == IN), free & (ends.way == OUT))
        label[other] = label[one]
        free[one] = free[other] = False
    return label


def _match(keys: Array, some: Array, others: Array) -> tuple[Array, Array]:
    """Pairs of an index in `some` and one in `others` with equal keys, in order; each index is used once."""
    sides = [np.flatnonzero(side) for side in (some, others)]
    sides = [side[np.argsort(keys[side], kind="stable")] for side in sides]
    width = max(map(len, sides)) + 1
    full = [keys[side] * width + spread(np.bincount(ranked(keys[side])[1])) for side in sides]
    at = np.minimum(np.searchsorted(full[0], full[1]), max(len(full[0]) - 1, 0))
    found = full[0][at] == full[1] if len(full[0]) else np.zeros(len(full[1]), bool)
    return sides[0][at[found]] if len(full[0]) else sides[0], sides[1][found]


def _by_rank(num_ranks: int, ends: Ends, number: Array, rank: Array, asked: Array) -> tuple[Array, Array]:
    """Lanes numbered by rank, then the author's lane, channel and peers; and each rank's first lane."""
    size, none = int(number.max(initial=-1)) + 1, np.full(len(rank) - len(ends.rank), -1)
    peer = [np.concatenate([np.where(ends.way == way, ends.peer, -1), none]) for way in (OUT, IN)]
    table = np.full((5, size), -1)
    for part, values in zip(table, (rank, asked, np.concatenate([ends.channel, none]), *peer), strict=True):
        np.maximum.at(part, number, values)
    table[1][table[1] < 0] = asked.max(initial=0) + 1
    order = np.lexsort(table[::-1])
    place = np.empty(size, np.int64)
    place[order] = np.arange(size)
    return place[number], np.searchsorted(table[0][order], np.arange(num_ranks + 1))


def _check(program: Program, hints: Hints, ends: Ends, number: Array) -> None:
    """Raise ProgramError if a lane has two peers in one direction, or two channels."""
    lane = number[: len(ends.rank)]
    crowded = np.zeros(int(number.max(initial=-1)) + 1, bool)
    for way in (IN, OUT):
        crowded |= np.bincount(lane[ends.way == way], minlength=len(crowded)) > 1
    channel = np.full(len(crowded), -1)
    channel[lane] = ends.channel
    crowded[lane[channel[lane] != ends.channel]] = True
    wrong = np.flatnonzero(ends.of >= 0)
    wrong = wrong[crowded[lane[ends.of[wrong]]] & (hints.lane[wrong] >= 0)]
    if len(wrong):
        _refuse(program, hints, int(wrong[-1]), "this lane already has another peer or channel")


def _refuse(program: Program, hints: Hints, row: int, why: str) -> None:
    op, lane, channel = program.op(row), hints.lane[row], hints.channel[row]
    raise ProgramError(
        f"lane {lane} on rank {op.rank} cannot have this {op.kind.name}, which is on channel {channel}: {why}",
        where=op.line,
        hint="a lane has one peer to send to, one to receive from and one channel; ask for another channel by ch=",
    )


def _join_locals(program: Program, lane: Array, first: Array) -> tuple[Array, Array]:
    """Put copies and reduces on the lane of the last op they wait for, of one that waits for them, or the shortest one.

    Returns the lane of each op and the first lane of each rank. A rank with ops but without lanes gets one.
    """
    rank = program.columns["rank"]
    waiting, awaited = edges(program)
    free = np.flatnonzero(lane < 0)
    if not len(free):
        return lane, first
    bare = np.zeros(program.num_ranks, bool)
    bare[rank[free]] = True
    bare &= np.diff(first) == 0
    shift = np.concatenate([[0], np.cumsum(bare)])
    lane = np.where(lane >= 0, lane + shift[rank], -1)
    first = first + shift
    start, used = program.columns["dep_start"], np.bincount(lane[lane >= 0], minlength=int(first[-1]))
    user = np.full(program.num_ops, program.num_ops)
    np.minimum.at(user, awaited, waiting)
    for row in free.tolist():
        homes = lane[awaited[start[row] : start[row + 1]]]
        lane[row] = homes[homes >= 0][-1:].max(initial=-1)
    for row in free[::-1].tolist():
        if lane[row] < 0 and user[row] < program.num_ops:
            lane[row] = lane[user[row]]
    for row in free[lane[free] < 0].tolist():
        low, high = first[rank[row]], first[rank[row] + 1]
        lane[row] = low + np.argmin(used[low:high])
        used[lane[row]] += 1
    return lane, first
