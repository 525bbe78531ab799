"""partners: for each op, its partners on other ranks and the time at which they were ready."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from dovetail.ir import RECVS, SENDS, Kind, Program, is_one_of
from dovetail.timeline.spans import Floats

Ints = NDArray[np.int64]


def message_of(program: Program) -> Ints:
    """Return for each op that receives (or waits) the row of the op that sends (or signals); -1 for all others.

    The k-th receive on a channel gets the k-th message sent on it, both in the order of rows.
    """
    col = program.columns
    partner = np.full(program.num_ops, -1, dtype=np.int64)
    for givers, takers in ((SENDS, RECVS), ({Kind.signal}, {Kind.wait})):
        sent, sends = _by_channel(program, col["chan_out"], givers)
        taken, takes = _by_channel(program, col["chan_in"], takers)
        met = np.minimum(sends, takes)
        partner[taken[_first(takes, met)]] = sent[_first(sends, met)]
    return partner


def ready_s(
    program: Program, message: Ints, start: Floats, end: Floats, wire: Floats, rendezvous: NDArray[np.bool_]
) -> Floats:
    """Return when each op had all that it needs from other ranks, in seconds; -inf if it needs nothing or left no span.

    `message`: see `message_of`. A receive: when its send (or the last `wire` seconds of a fused op) began. A wait: when
    its signal was given. A send by `rendezvous`: when its receive was posted. A collective: when the last member
    called.
    """
    ready = np.full(program.num_ops, -np.inf)
    taker = np.flatnonzero(message >= 0)
    giver = message[taker]
    fused = is_one_of(program.columns["kind"][giver], RECVS & SENDS)
    ready[taker] = np.where(fused, np.maximum(end[giver] - wire[giver], start[giver]), start[giver])
    waits = rendezvous[giver] & is_one_of(program.columns["kind"][giver], [Kind.send])
    ready[giver[waits]] = start[taker[waits]]
    for members in _meetings(program):
        ready[members] = np.max(start[members])
    return np.where(np.isnan(ready), -np.inf, ready)


def _by_channel(program: Program, channel: NDArray[np.int32], kinds: Iterable[int]) -> tuple[Ints, Ints]:
    """Rows of ops of `kinds`, grouped by channel; and the number of rows of each channel."""
    rows = np.flatnonzero(is_one_of(program.columns["kind"], kinds) & (channel >= 0))
    number, channels = channel[rows], len(program.channels)
    few = number.astype(np.uint16) if channels < 1 << 16 else number  # NumPy sorts 16-bit numbers by counting
    return rows[np.argsort(few, kind="stable")], np.bincount(number, minlength=channels)


def _first(counts: Ints, most: Ints) -> NDArray[np.bool_]:
    """Of n entries per channel, concatenated by channel: mark the first `most` of each channel."""
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    first: NDArray[np.bool_] = number < np.repeat(most, counts)
    return first


def _key(group: Ints, size: int) -> Ints:
    """Return group · size + the number of the row within its group."""
    order = np.argsort(group, kind="stable")
    sorted_group = group[order]
    first = np.searchsorted(sorted_group, sorted_group)
    key = np.empty(len(group), dtype=np.int64)
    key[order] = sorted_group * max(size, 1) + np.arange(len(group)) - first
    return key


def _meetings(program: Program) -> list[Ints]:
    """Return the rows of each call of a collective: the k-th calls of all members."""
    col = program.columns
    rows = np.flatnonzero((col["kind"] == Kind.collective) & (col["call"] >= 0))
    if not len(rows):
        return []
    member = col["call"][rows].astype(np.int64) * program.num_ranks + col["rank"][rows]
    number = _key(member, program.num_ops) - member * program.num_ops
    meeting = col["call"][rows].astype(np.int64) * program.num_ops + number
    order = np.argsort(meeting, kind="stable")
    return list(np.split(rows[order], np.flatnonzero(np.diff(meeting[order])) + 1))
