"""spread_channels: spread the peers of a rank over several channels if it has many."""

from __future__ import annotations

import numpy as np

from dovetail.passes.columns import Array, ranked

CROWD = 32  # lanes of a rank on one channel that all MSCCL runtimes support (`ir.limits`)


def spread_channels(source: Array, target: Array, channel: Array, free: Array, most: int, crowd: int = CROWD) -> Array:
    """Return channels of messages, with `free` messages moved so that a rank has few peers, in and out, on each.

    At most `crowd` peers if the first `most` channels suffice; messages without a place stay. All messages between the
    same two ranks move together. Peers are placed by distance, so that symmetric exchanges stay symmetric:

    >>> source = np.repeat(np.arange(4), 3)
    >>> target = (source + np.tile([1, 2, 3], 4)) % 4
    >>> spread_channels(source, target, np.zeros(12, int), np.ones(12, bool), 32, crowd=2).reshape(4, 3).tolist()
    [[0, 0, 1], [0, 0, 1], [0, 0, 1], [0, 0, 1]]
    """
    ranks, width = int(max(source.max(initial=0), target.max(initial=0))) + 1, int(channel.max(initial=0)) + 1
    pairs, of = ranked((source * ranks + target) * width + channel)
    edge, on = np.divmod(pairs, width)
    ends = np.concatenate([edge // ranks * width + on, (edge % ranks + ranks) * width + on])
    if not len(pairs) or np.bincount(ends).max() <= crowd:
        return channel
    moves = np.ones(len(pairs), bool)
    moves[of[~free]] = False
    moved = _placed(edge, on, moves, ranks, max(most, width), crowd)
    return np.where(free, moved[of], channel)


def _placed(edge: Array, on: Array, moves: Array, ranks: int, most: int, crowd: int) -> Array:
    """The channel of each edge (source · ranks + target); those that move get the lowest with room at both ends."""
    used = [[0] * most for _ in range(2 * ranks)]  # number of edges by channel: out of each rank, then into each
    full, all_channels, placed = [0] * (2 * ranks), (1 << most) - 1, on.copy()
    source, target = np.divmod(edge, ranks)
    order = np.lexsort((source, (target - source) % ranks, moves))
    for one in order.tolist():
        ends = int(source[one]), int(target[one]) + ranks
        free = all_channels & ~(full[ends[0]] | full[ends[1]])
        number = int(on[one])
        if moves[one] and free:
            number = (free & -free).bit_length() - 1
        for end in ends:
            used[end][number] += 1
            if used[end][number] >= crowd:
                full[end] |= 1 << number
        placed[one] = number
    return placed
