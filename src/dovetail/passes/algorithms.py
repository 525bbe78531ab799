"""All-reduce algorithms as steps of one member, for expand_collectives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

from dovetail.ir import Kind, Region
from dovetail.passes.regions import Bounds, bounds, cut

Algorithm = Literal["exchange", "ring"]


class Step(NamedTuple):
    """One send, receive or copy of a member; sends and receives are two queues, each in the order of the steps.

    `peer` is a position in the group; `needs` are indices of earlier steps of the same member.
    """

    kind: Kind
    reads: tuple[Region, ...]
    writes: tuple[Region, ...]
    peer: int
    needs: tuple[int, ...] = ()


class _Member:
    """Writes the steps of one member: position `me` of `size`, adding up `src` into `dst` cut at `parts`."""

    def __init__(self, me: int, size: int, src: Region, dst: Region, parts: Bounds) -> None:
        self.me, self.size, self.src, self.dst, self.parts = me, size, src, dst, parts
        self.steps: list[Step] = []
        self.got: dict[int, int] = {}  # part -> the step that last received it

    def send(self, region: Region, part: int, peer: int) -> None:
        piece = self._cut(region, part)
        if piece.num_slots:
            needs = (self.got[part],) if part in self.got else ()
            self.steps.append(Step(Kind.send, (piece,), (), peer, needs))

    def recv(self, part: int, peer: int, add: Region | None = None, needs: Iterable[int] = ()) -> None:
        """Receive a part into dst; with `add`, the sum of the message and that region's part."""
        piece = self._cut(self.dst, part)
        if piece.num_slots:
            kind, reads = (Kind.recv, ()) if add is None else (Kind.recv_reduce, (self._cut(add, part),))
            self.got[part] = len(self.steps)
            self.steps.append(Step(kind, reads, (piece,), peer, tuple(needs)))

    def others(self) -> Iterator[tuple[int, int]]:
        """Whom to send to and whom to receive from, in turn, so that every turn pairs everybody once."""
        return (((self.me + turn) % self.size, (self.me - turn) % self.size) for turn in range(1, self.size))

    def _cut(self, region: Region, part: int) -> Region:
        return cut(region, self.parts[part], self.parts[part + 1])


def exchange(me: int, size: int, src: Region, dst: Region, unit: int) -> list[Step]:
    """All-pairs. Two members: each sends all it has and adds what comes. More: each gathers and adds up
    its own part of the slots from all, then sends it to all, so that every member holds the same bits."""
    if size == 2:
        member = _Member(me, size, src, dst, (0, src.num_slots))
        member.send(src, 0, 1 - me)
        member.recv(0, 1 - me, add=src, needs=range(len(member.steps)) if src == dst else ())
        return member.steps
    member = _Member(me, size, src, dst, bounds(src.num_slots, size, unit))
    for turn, (to, source) in enumerate(member.others()):
        member.send(src, to, to)
        member.recv(me, source, add=dst if turn else src)
    for to, source in member.others():
        member.send(dst, me, to)
        member.recv(source, source)
    return member.steps


def ring(me: int, size: int, src: Region, dst: Region, unit: int) -> list[Step]:
    """Reduce-scatter, then all-gather, round a ring: 2·(size − 1) steps, each of 1/size of the slots."""
    member = _Member(me, size, src, dst, bounds(src.num_slots, size, unit))
    for step in range(2 * size - 2):
        out, into = (me - step) % size, (me - step - 1) % size
        member.send(dst if step else src, out, (me + 1) % size)
        member.recv(into, (me - 1) % size, add=src if step < size - 1 else None)
    return member.steps


def alone(me: int, size: int, src: Region, dst: Region, unit: int) -> list[Step]:
    """A group of one member holds its sum already; it only moves to where it is wanted."""
    return [Step(Kind.copy, (src,), (dst,), me)] if src != dst and src.num_slots else []


ALGORITHMS: dict[Algorithm, Callable[[int, int, Region, Region, int], list[Step]]] = {
    "exchange": exchange,
    "ring": ring,
}
