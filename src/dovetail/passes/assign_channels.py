"""assign_channels: choose the channel id of each message so that flows share lanes end to end."""

from __future__ import annotations

import numpy as np

from dovetail.ir import Program
from dovetail.passes.columns import Array, ints, ranked
from dovetail.passes.hints import Hints
from dovetail.passes.spread_channels import spread_channels
from dovetail.passes.transfers import messages


def assign_channels(program: Program, hints: Hints, forward: Array, most: int = 32) -> tuple[Hints, Array]:
    """Return hints with a channel for every send and receive, and `forward` with the flows that channels allow.

    A lane sends to one peer, receives from one, and uses one channel. So on each rank a channel pairs each source peer
    with the one peer that its messages are forwarded to, and with the one lane that the author asked for. A flow
    takes the lowest channel for which this holds on its whole path. If none of the first `most` channels fits, or the
    author asked for another channel on the way, the flow is cut: the rank in between receives and sends by two ops.
    Messages outside flows are on channel 0, or on several if a rank has many peers (see spread_channels).

    Here rank 1 forwards messages of rank 0 to ranks 2 and 3, which takes two channels:

    >>> from dovetail.ir import parse
    >>> from dovetail.passes.hints import no_hints
    >>> fork = parse('''
    ... program fork ranks 4
    ... buffer x input 2
    ... lane net net
    ... channel 0->1 0 depth 2
    ... channel 1->2 0 depth 2
    ... channel 1->3 0 depth 2
    ... rank 0 lane net
    ...   send x[0:1] to 1
    ... rank 1 lane net
    ...   recv from 0 -> x[0:1]
    ...   send x[0:1] to 2
    ... rank 2 lane net
    ...   recv from 1 -> x[0:1]
    ... rank 0 lane net
    ...   send x[1:2] to 1
    ... rank 1 lane net
    ...   recv from 0 -> x[1:2]
    ...   send x[1:2] to 3
    ... rank 3 lane net
    ...   recv from 1 -> x[1:2]
    ... ''')
    >>> forward = np.array([-1, 2, -1, -1, -1, 6, -1, -1])
    >>> hints, forward = assign_channels(fork, no_hints(fork), forward)
    >>> hints.channel.tolist(), forward.tolist()
    ([0, 0, 0, 0, 1, 1, 1, 1], [-1, 2, -1, -1, -1, 6, -1, -1])
    >>> hints, forward = assign_channels(fork, no_hints(fork), forward, most=1)
    >>> hints.channel.tolist(), forward.tolist()
    ([0, 0, 0, 0, 0, 0, 0, 0], [-1, 2, -1, -1, -1, -1, -1, -1])
    """
    send, receive = messages(program)
    flows = _Flows(program, hints, forward)
    for head in flows.heads():
        flows.place(head, (1 << most) - 1)
    channel, forward = hints.channel.copy(), forward.copy()
    rank = program.columns["rank"].astype(np.int64)
    spread = spread_channels(rank[send], rank[receive], np.asarray(flows.channel, np.int64), flows.alone(), most)
    channel[send] = channel[receive] = spread
    forward[receive[flows.cuts]] = -1
    return hints._replace(channel=channel), forward


class _Ties:
    """Pairs (ties) of ends on a rank that must be one to one in each channel. A set of channels is a bit mask."""

    def __init__(self, rank: Array, left: Array, right: Array, kind: int) -> None:
        """Tie `left[i]` to `right[i]` on `rank[i]`. Ties of different `kind` have no end in common."""
        self._base = kind << 40
        width = int(max(left.max(initial=0), right.max(initial=0))) + 1
        lefts, left_of = ranked(rank * width + left)
        rights, right_of = ranked(rank * width + right)
        ties, number = ranked(left_of * max(len(rights), 1) + right_of)
        self.number = ints(number)  # for each given pair, its tie
        self.left = ints(ties // max(len(rights), 1))
        self.right = ints(ties % max(len(rights), 1))
        self._has, self._at_left, self._at_right = [0] * len(ties), [0] * len(lefts), [0] * len(rights)

    def channels(self, tie: int) -> int:
        """Return the channels that have the tie, or may still take it."""
        return self._has[tie] | ~(self._at_left[self.left[tie]] | self._at_right[self.right[tie]])

    def fits(self, tie: int, held: dict[int, int]) -> bool:
        """Add a tie to those of a flow (`held`, by end), and return whether it agrees with them."""
        left, right = self._base + self.left[tie], -1 - self._base - self.right[tie]
        return held.setdefault(left, tie) == tie == held.setdefault(right, tie)

    def add(self, tie: int, channel: int) -> None:
        self._has[tie] |= channel
        self._at_left[self.left[tie]] |= channel
        self._at_right[self.right[tie]] |= channel


class _Flows:
    """Messages by number: the next message of each one's flow, and the channels chosen so far."""

    def __init__(self, program: Program, hints: Hints, forward: Array) -> None:
        send, receive = messages(program)
        rank = program.columns["rank"].astype(np.int64)
        number = np.full(program.num_ops + 1, -1)
        number[send] = np.arange(len(send))
        source, target, follow = rank[send], rank[receive], number[forward[receive]]
        asked = np.maximum(hints.channel[send], hints.channel[receive])
        goes_on = np.flatnonzero(follow >= 0)
        self._through = _Ties(target[goes_on], source[goes_on], target[follow[goes_on]], kind=0)
        tie = np.full(len(send), -1)
        tie[goes_on] = self._through.number
        self._lanes = _Lanes((source, target, hints.lane[send]), (target, source, hints.lane[receive]))
        self._tie, self._asked, self._follow = ints(tie), ints(asked), ints(follow)
        self.channel = ints(np.maximum(asked, 0))
        self.cuts: list[int] = []  # messages after which a flow is cut
        for message in np.flatnonzero(asked >= 0).tolist() if self._lanes.ties else ():
            self._lanes.add(message, 1 << self._asked[message])

    def heads(self) -> list[int]:
        """Return the first message of each flow that needs a channel; flows that the author constrains come first."""
        is_head = [True] * len(self._follow)
        operator = [channel >= 0 for channel in self._asked]
        for message in range(len(operator) - 1, -1, -1):
            after = self._follow[message]
            if after >= 0:
                is_head[after] = False
                operator[message] |= operator[after]
        heads = [m for m, after in enumerate(self._follow) if is_head[m] and (after >= 0 or m in self._lanes.ties)]
        return sorted(heads, key=lambda head: not operator[head])

    def alone(self) -> Array:
        """Return for each message whether neither a flow nor the author ties it to a channel."""
        alone = np.array(self._asked, np.int64) < 0
        alone &= np.array(self._follow, np.int64) < 0
        alone[[after for after in self._follow if after >= 0]] = False
        alone[list(self._lanes.ties)] = False
        return alone

    def place(self, head: int, few: int) -> None:
        """Assign channels to a flow's messages, from the set `few` if possible; cut the flow where none fits."""
        part, held, free, message = list[int](), dict[int, int](), -1, head
        while message >= 0:
            alone = self._free(message, few)
            if part:
                tie = self._tie[part[-1]]
                free &= alone & self._through.channels(tie)
                if not (free and self._through.fits(tie, held) and self._lanes.fit(message, held)):
                    self._settle(part)
                    self.cuts.append(part[-1])
                    part, held = [], {}
            if not part:
                free = alone
                self._lanes.fit(message, held)
            part.append(message)
            self.channel[message] = (free & -free).bit_length() - 1
            message = self._follow[message]
        self._settle(part)

    def _free(self, message: int, few: int) -> int:
        """The channels that a message may take regardless of its flow."""
        asked = self._asked[message]
        if asked >= 0:
            return 1 << asked
        if message not in self._lanes.ties:
            return few
        free = self._lanes.channels(message)
        return free & few or free or 1

    def _settle(self, part: list[int]) -> None:
        """Give all messages of a part of a flow the channel of its last message, which fits all."""
        number = self.channel[part[-1]]
        for message in part:
            self.channel[message] = number
        for message in part[:-1]:
            self._through.add(self._tie[message], 1 << number)
        for message in part if self._lanes.ties else ():
            self._lanes.add(message, 1 << number)


class _Lanes:
    """The author's lanes as constraints: each has one channel, and one peer in each direction."""

    def __init__(self, *sides: tuple[Array, Array, Array]) -> None:
        """`sides`: first for sends, then for receives: each message's rank, peer, and lane (-1: any)."""
        self.ties: dict[int, list[tuple[_Ties, int, tuple[int, int]]]] = {}  # by message
        self._only: dict[tuple[int, int], int] = {}  # (rank, lane) -> its channel
        for kind, (rank, peer, lane) in enumerate(sides, 1):
            asked = np.flatnonzero(lane >= 0)
            ties = _Ties(rank[asked], peer[asked], lane[asked].astype(np.int64), kind)
            ends = zip(rank[asked].tolist(), lane[asked].tolist(), strict=True)
            for message, tie, end in zip(asked.tolist(), ties.number, ends, strict=True):
                self.ties.setdefault(message, []).append((ties, tie, end))

    def channels(self, message: int) -> int:
        free = -1
        for ties, tie, end in self.ties[message]:
            free &= ties.channels(tie) & self._only.get(end, -1)
        return free

    def fit(self, message: int, held: dict[int, int]) -> bool:
        return all(ties.fits(tie, held) for ties, tie, _ in self.ties.get(message, ()))

    def add(self, message: int, channel: int) -> None:
        for ties, tie, end in self.ties.get(message, ()):
            ties.add(tie, channel)
            self._only[end] = channel
