"""two_sided: turn puts and gets into messages, for executors that cannot access another rank's memory."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict

import numpy as np

from dovetail.core import ProgramError
from dovetail.ir import Channel, Kind, Lane, Op, Program
from dovetail.ir.op_lists import OpLists
from dovetail.ir.proof.greedy import Greedy
from dovetail.ir.proof.races import Clocks, happens_before
from dovetail.passes.draft import Draft, OldOp

_DEPTH = 8


def two_sided(program: Program) -> Program:
    """Turn each put into a send that a new lane of the target receives, and each get into a receive that one sends.

    An op that a signal of the put released waits for the new receive instead. A get is served after all earlier ops of
    the serving rank, and ops that its signal released wait for that send. Raises ProgramError for a program that does
    not complete. Run `verify` on the result.

    >>> from dovetail.ir import parse, to_text
    >>> before = parse('''
    ... program give ranks 2
    ... buffer x input 1
    ... buffer y output 1
    ... lane net net
    ... channel 0->1 0 depth 8
    ... post 1 y[0:1] = x@0[0:1]
    ... rank 0 lane net
    ...   put x[0:1] -> y[0:1] to 1
    ...   signal to 1
    ... rank 1 lane net
    ...   wait from 0
    ... ''')
    >>> print(to_text(two_sided(before)), end="")
    program give ranks 2
    buffer x input 1
    buffer y output 1
    lane net net
    lane "0.net put" net
    channel 0->1 0 depth 8
    channel 0->1 1 depth 8
    post 1 y[0:1] = x@0[0:1]
    rank 0 lane net
      send x[0:1] to 1:1
      signal to 1
    rank 1 lane net
      wait from 0 after "0.net put".0
    rank 1 lane "0.net put"
      recv from 0:1 -> y[0:1]
    """
    if not np.any(np.isin(program.columns["kind"], (Kind.put, Kind.get))):
        return program
    plain = OpLists(program)
    run = Greedy(plain)()
    if not run.complete:
        raise ProgramError(f"program '{program.name}' does not complete", hint="run verify for details")
    return _Rewrite(plain, happens_before(plain, run)).program()


class _Rewrite:
    def __init__(self, plain: OpLists, clocks: Clocks) -> None:
        self.plain, self.clocks, self.old = plain, clocks, plain.program
        self.draft = Draft(self.old)
        self.free_id = 1 + max((channel.id for channel in self.old.channels), default=-1)
        # By rank that takes part, then by queue of puts or gets: (position in the queue, partner), where the partner
        # is the op number in the draft of the new receive or send. Partners come first in the draft.
        self.partners: dict[int, dict[int, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))

    def program(self) -> Program:
        one_sided = [op for op in self.plain.ops if op.kind in (Kind.put, Kind.get)]
        for number, op in enumerate(one_sided):
            place = self.plain.position[op.index], number
            self.partners[self._other(op)][self.plain.queue_of[op.index]].append(place)
        for op in one_sided:
            self._add_partner(op)
        waits = self._waits()
        for op in self.plain.ops:
            after: list[int | OldOp] = [*(OldOp(row) for row in op.after), *waits[op.index]]
            self.draft.replaced(op.index, [self._add(op, after)])
        return self.draft.build()

    def _channel(self, op: Op) -> Channel:
        """A separate channel for each lane that puts to a rank, or gets from it, so that messages keep its order."""
        src, dst, _, _ = self.old.channels[op.chan_out if op.kind == Kind.put else op.chan_in]
        number = op.lane if op.kind == Kind.put else len(self.old.lanes) + op.lane
        return Channel(src, dst, self.free_id + number, _DEPTH)

    def _other(self, op: Op) -> int:
        """The rank whose memory the op accesses."""
        channel = self._channel(op)
        return channel.dst if op.kind == Kind.put else channel.src

    def _add_partner(self, op: Op) -> None:
        """Add the receive of a put or the send of a get. It waits for partners of earlier puts and gets; a send also
        waits for earlier ops of its own rank. (A receive needs no such wait: its message implies the order.)"""
        channel, rank = self._channel(op), self._other(op)
        lane = Lane(f"{op.rank}.{self.old.lanes[op.lane].name} {op.kind.name}", "net")
        begun = self.clocks.begun[op.index]
        partners = self.partners[rank]
        counts = {queue: bisect_left(made, (begun[queue],)) for queue, made in partners.items()}
        after: list[int | OldOp] = [partners[queue][count - 1][1] for queue, count in counts.items() if count]
        if op.kind == Kind.put:
            self.draft.add(Kind.recv, rank, lane, writes=op.writes, chan_in=channel, after=after, line=op.line)
            return
        ended = [(queue, int(begun[queue])) for queue in self._queues(rank)]
        after += [OldOp(self.plain.queues[queue][count - 1]) for queue, count in ended if count]
        self.draft.add(Kind.send, rank, lane, reads=op.reads, chan_out=channel, after=after, line=op.line)

    def _add(self, op: Op, after: list[int | OldOp]) -> int:
        where = op.rank, self.old.lanes[op.lane]
        if op.kind == Kind.put:
            out = self._channel(op)
            return self.draft.add(Kind.send, *where, reads=op.reads, chan_out=out, after=after, line=op.line)
        if op.kind == Kind.get:
            into = self._channel(op)
            return self.draft.add(Kind.recv, *where, writes=op.writes, chan_in=into, after=after, line=op.line)
        return self.draft.keep(op, after=after)

    def _waits(self) -> dict[int, list[int]]:
        """For each op, the partners of puts and gets that have ended when it ends, in every timing."""
        waits: dict[int, list[int]] = defaultdict(list)
        for rank, by_queue in self.partners.items():
            for queue in self._queues(rank):
                known: dict[int, int] = defaultdict(int)
                for row in self.plain.queues[queue]:
                    for source, partners in by_queue.items():
                        count = bisect_left(partners, (self.clocks.ended[row, source],))
                        if count > known[source]:
                            waits[row].append(partners[count - 1][1])
                        known[source] = count
        return waits

    def _queues(self, rank: int) -> list[int]:
        return [queue for queue, rows in enumerate(self.plain.queues) if self.plain.ops[rows[0]].rank == rank]
