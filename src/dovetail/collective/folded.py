"""folded: the built-in algorithms whose ranks all do the same, for any number of ranks, as the ops of rank 0.

Each equals what `build` compiles, op for op, wherever that fits (tests/collective/test_folded.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dovetail.core import OperatorError, parse_count
from dovetail.ir import RECVS, SENDS, Builder, Folded, Kind, Region, Symmetry
from dovetail.ir.folded import Requirement
from dovetail.ir.symmetry import Layout
from dovetail.ir.types import Role

DEPTH = 2  # of channels: that of the protocol Simple
MOST_RANKS = 65_536  # ranks of a folded program
FOLDED_FROM = 65  # ranks from which the verbs fold programs; the rules equal `build` op for op at up to 64


class _Rank0:
    """The ops of rank 0. `use` sets the lane and the channels of the ops that `step` adds next."""

    def __init__(self, name: str, buffers: dict[Role, int], lanes: int = 1) -> None:
        self.builder, self.offsets = Builder(name, 1), list[int]()
        for role, slots in buffers.items():
            self.builder.buffer(role, role, slots)
        self.lanes = [self.builder.lane(f"tb{number}", "net") for number in range(lanes)]
        self.lane = self.chan_in = self.chan_out = 0
        self.last = (-1, -1)  # row and lane of the last op

    def use(self, ahead: int, lane: int = 0, behind: int | None = None) -> None:
        """Send messages `ahead` ranks ahead, and take those from as far (or `behind`) behind, on `lane`."""
        self.lane = self.lanes[lane]
        self.chan_in, self.chan_out = (self._channel(each) for each in (ahead if behind is None else behind, ahead))

    def _channel(self, ahead: int) -> int:
        if ahead not in self.offsets:
            self.offsets.append(ahead)
        return self.builder.channel(0, 0, self.offsets.index(ahead), DEPTH)

    def step(self, kind: Kind, *, read: Region | None = None, write: Region | None = None) -> None:
        """Add an op that runs after the last one, even if that is on another lane."""
        row, lane = self.last
        new = self.builder.add(
            kind,
            0,
            self.lane,
            reads=[read] if read else [],
            writes=[write] if write else [],
            chan_in=self.chan_in if kind in RECVS else -1,
            chan_out=self.chan_out if kind in SENDS else -1,
            after=[row] if row >= 0 and lane != self.lane else [],
        )
        self.last = new, self.lane

    def fold(self, axes: tuple[int, ...], layouts: dict[str, Layout], collective: str, count: int) -> Folded:
        ids = (0,) * len(self.offsets)
        requirement = Requirement(collective, count)
        return Folded(Symmetry(axes, layouts), self.builder.build(), tuple(self.offsets), ids, requirement)

    def reduce_around(self, parts: Sequence[Region]) -> None:
        """Reduce parts around a ring up to the last receive, whose sum is of part 0."""
        self.step(Kind.send, read=parts[-1])
        for part in parts[-2:0:-1]:
            self.step(Kind.recv_reduce_send, read=part)

    def gather_around(self, parts: Sequence[Region]) -> None:
        """Copy parts around a ring, after part 0 has been sent."""
        for part in parts[:1:-1]:
            self.step(Kind.recv_copy_send, write=part)
        self.step(Kind.recv, write=parts[1])

    def all_reduce_around(self, parts: Sequence[Region]) -> None:
        self.reduce_around(parts)
        self.step(Kind.recv_reduce_copy_send, read=parts[0], write=parts[0])
        self.gather_around(parts)


def _slots(buffer: str, count: int) -> list[Region]:
    return [Region(buffer, slot, 1) for slot in range(count)]


def _ring_all_reduce(ranks: int) -> Folded:
    p = _Rank0("ring_all_reduce", {"input": ranks})
    p.use(1)
    p.all_reduce_around(_slots("input", ranks))
    return p.fold((ranks,), {"input": ((ranks, 0),)}, "all_reduce", ranks)


def _ring_all_gather(ranks: int) -> Folded:
    p = _Rank0("ring_all_gather", {"input": 1, "output": ranks})
    p.use(1)
    parts = _slots("output", ranks)
    p.step(Kind.copy, read=Region("input", 0, 1), write=parts[0])
    p.step(Kind.send, read=parts[0])
    p.gather_around(parts)
    return p.fold((ranks,), {"input": (), "output": ((ranks, 0),)}, "all_gather", 1)


def _ring_reduce_scatter(ranks: int) -> Folded:
    p = _Rank0("ring_reduce_scatter", {"input": ranks, "output": 1, "scratch": 1})
    p.use(1)
    parts, scratch = _slots("input", ranks), Region("scratch", 0, 1)
    p.reduce_around(parts)
    p.step(Kind.recv_reduce, read=parts[0], write=scratch)
    p.step(Kind.copy, read=scratch, write=Region("output", 0, 1))
    layouts: dict[str, Layout] = {"input": ((ranks, 0),), "output": (), "scratch": ()}
    return p.fold((ranks,), layouts, "reduce_scatter", 1)


def _hierarchical_all_reduce(ranks: int, nodes: int) -> Folded:
    """Nodes are the slow axis of ranks, but the fast digit of slots: share p has the slots from p * nodes on."""
    size = ranks // nodes
    p = _Rank0("hierarchical_all_reduce", {"input": ranks}, 2)
    shares = [Region("input", place * nodes, nodes) for place in range(size)]
    p.use(1)
    p.reduce_around(shares)
    p.step(Kind.recv_reduce, read=shares[0], write=shares[0])
    p.use(size, 1)
    p.all_reduce_around(_slots("input", nodes))
    p.use(1)
    p.step(Kind.send, read=shares[0])
    p.gather_around(shares)
    return p.fold((nodes, size), {"input": ((size, 1), (nodes, 0))}, "all_reduce", ranks)


def _recursive_doubling_all_reduce(ranks: int) -> Folded:
    bits, whole = _bits(ranks), Region("input", 0, 1)
    p = _Rank0("recursive_doubling_all_reduce", {"input": 1}, bits)
    p.use(1)
    p.step(Kind.send, read=whole)
    for bit in range(1, bits):
        p.use(1 << bit, bit, behind=1 << bit - 1)
        p.step(Kind.recv_reduce_copy_send, read=whole, write=whole)
    p.use(1 << bits - 1)
    p.step(Kind.recv_reduce, read=whole, write=whole)
    return p.fold((2,) * bits, {"input": ()}, "all_reduce", 1)


def _recursive_doubling_all_gather(ranks: int) -> Folded:
    bits = _bits(ranks)
    p = _Rank0("recursive_doubling_all_gather", {"input": 1, "output": ranks}, bits)
    p.use(1)
    p.step(Kind.copy, read=Region("input", 0, 1), write=Region("output", 0, 1))
    for bit in range(bits):
        p.use(1 << bit, bit)
        p.step(Kind.send, read=Region("output", 0, 1 << bit))
        p.step(Kind.recv, write=Region("output", 1 << bit, 1 << bit))
    return p.fold((2,) * bits, {"input": (), "output": _binary(bits)}, "all_gather", 1)


def _recursive_halving_doubling_all_reduce(ranks: int) -> Folded:
    bits = _bits(ranks)
    p = _Rank0("recursive_halving_doubling_all_reduce", {"input": ranks}, bits)
    low = [Region("input", 0, 1 << bit) for bit in range(bits)]
    high = [Region("input", 1 << bit, 1 << bit) for bit in range(bits)]
    for bit in range(bits - 1, 0, -1):
        p.use(1 << bit, bit)
        p.step(Kind.send, read=high[bit])
        p.step(Kind.recv_reduce, read=low[bit], write=low[bit])
    p.use(1)
    p.all_reduce_around([low[0], high[0]])
    for bit in range(1, bits):
        p.use(1 << bit, bit)
        p.step(Kind.send, read=low[bit])
        p.step(Kind.recv, write=high[bit])
    return p.fold((2,) * bits, {"input": _binary(bits)}, "all_reduce", ranks)


def _bits(ranks: int) -> int:
    if ranks & (ranks - 1):
        raise OperatorError(f"recursive algorithms need a power of 2 ranks, not {ranks}")
    return ranks.bit_length() - 1


def _binary(bits: int) -> Layout:
    return tuple((2, axis) for axis in range(bits))


FOLDED: dict[str, Callable[..., Folded]] = {
    "ring_all_reduce": _ring_all_reduce,
    "ring_all_gather": _ring_all_gather,
    "ring_reduce_scatter": _ring_reduce_scatter,
    "recursive_doubling_all_reduce": _recursive_doubling_all_reduce,
    "recursive_doubling_all_gather": _recursive_doubling_all_gather,
    "recursive_halving_doubling_all_reduce": _recursive_halving_doubling_all_reduce,
    "hierarchical_all_reduce": _hierarchical_all_reduce,
}


def build_folded(name: str, num_ranks: int, *, nodes: int = 1) -> Folded:
    """Return a built-in algorithm folded to the ops of rank 0, not yet proved (`verify_folded`).

    Parameters
    ----------
    name : str
        A name of FOLDED.
    num_ranks : int
        Number of ranks, at least 2.
    nodes : int
        Number of nodes that share the ranks evenly, node by node. Only hierarchical algorithms use it.

    Raises
    ------
    OperatorError
        If the algorithm has no folded form, or does not support the number of ranks.

    >>> build_folded("hierarchical_all_reduce", 16384, nodes=2048)
    <Folded 'hierarchical_all_reduce': 16384 ranks, 4111 ops each>
    """
    ranks = parse_count(num_ranks, "num_ranks", least=2)
    if ranks > MOST_RANKS:
        raise OperatorError(f"programs are folded for at most {MOST_RANKS} ranks", found=str(ranks))
    if name not in FOLDED:
        raise OperatorError(f"no folded form of algorithm '{name}'", hint=f"one of {', '.join(FOLDED)}")
    if name != "hierarchical_all_reduce":
        return FOLDED[name](ranks)
    nodes = parse_count(nodes, "nodes", least=2)
    if ranks % nodes or ranks == nodes:
        hint = f"a number of nodes that divides {ranks}, at most {ranks // 2}"
        raise OperatorError(f"{nodes} nodes do not share {ranks} ranks evenly, at least 2 each", hint=hint)
    return FOLDED[name](ranks, nodes)
