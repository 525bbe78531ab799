"""exchanged: steps of one rank that sends the other ranks' parts of a product before it multiplies its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dovetail.ir import Kind, Program
from dovetail.torch.linear.across import multiply
from dovetail.torch.linear.kinds import EXCHANGE, GATHER, SCATTER
from dovetail.torch.linear.lanes import BEGIN, LATER, PRODUCT, WAIT, Lanes, Step
from dovetail.torch.linear.scratch import Scratch
from dovetail.torch.linear.serial import Made
from dovetail.torch.linear.wire import HALVES, Wire


class ExchangedLanes(Lanes):
    """As `Lanes`, for `C = Σ over ranks of Σ_i A_i · B_i`, of which rank r gets the rows C_r.

    Each rank multiplies the rows that other ranks get, tile by tile, and sends the products while it multiplies its own
    rows; then it adds up what has arrived. A reduce-scatter of a tile needs the own rows too, and so begins later.
    `across`: tiles are columns of B_i, else rows of C_r.
    """

    def __init__(self, program: Program, rank: int, rows: int, *, across: bool) -> None:
        self.kind, self.rank, self.ranks, self.across = SCATTER, rank, program.num_ranks, across
        ops = [op for op in program.ops() if op.rank == rank and op.kind == Kind.compute]
        *others, own = ops
        self.lengths = tuple(op.reads[0].count for op in others[:: self.ranks - 1])
        assert own.writes[0].buffer == "C", "the own rows are multiplied last"
        assert len(others) == len(self.lengths) * (self.ranks - 1), "a tile has a product for each other rank"
        assert sum(self.lengths) == own.reads[0].count, "tiles are parts of the rows of a rank"
        self.scale = rows / (sum(self.lengths) * self.ranks)
        self.steps = tuple(self._in_order())

    def _in_order(self) -> Iterator[Step]:
        for number, length in enumerate(self.lengths):
            yield Step(PRODUCT, rows=(self.ranks - 1) * length)
            yield Step(BEGIN, number, rows=self.ranks * length)
        yield Step(PRODUCT, rows=sum(self.lengths))
        yield Step(LATER)
        for number in range(len(self.lengths)):
            yield Step(WAIT, number)

    def run(
        self,
        group: Any,
        wire: Wire,
        inputs: Sequence[Any],
        weights: Sequence[Any],
        first: Sequence[Any],
        later: Callable[[], Any] | None = None,
    ) -> Made:
        """Return None, the result, and what `later` returns."""
        rows, width = inputs[0].shape[0] // self.ranks, weights[0].shape[1]
        scratch = Scratch(inputs[0].dtype, [(self.ranks * rows, width)] * min(self.ranks - 1, 2))
        out = inputs[0].new_empty((rows, width))
        begun: list[tuple[Any, Any, Any]] = []  # work, where its products are added up, and what it receives
        end = 0
        for length in self.lengths:
            part, end = slice(end, end + length), end + length
            shape = (self.ranks, rows, length) if self.across else (self.ranks, length, width)
            places = slice(part.start * self.ranks * (rows if self.across else width), None)
            sent, received = (_tile(scratch.matrices[at].view(-1)[places], shape) for at in (0, -1))
            for own_rows, into in self._products(sent, part, rows):
                columns = part if self.across else slice(0, width)
                multiply(into, columns, [each[own_rows] for each in inputs], weights, first[0])
            begun.append(
                (self._exchange(group, wire, received, sent), out[:, part] if self.across else out[part], received)
            )
        mine = slice(self.rank * rows, (self.rank + 1) * rows)
        multiply(out, slice(0, width), [each[mine] for each in inputs], weights, first[0])
        found = None if later is None else later()
        for work, into, received in begun:
            work.wait()
            _add([received[source] for source in range(self.ranks) if source != self.rank], into, wire)
        scratch.give_back()
        return None, [out], found

    def _products(self, sent: Any, part: slice, rows: int) -> Iterator[tuple[slice, Any]]:
        """Yield which rows of the inputs are multiplied for other ranks, and where to. `sent`: by target, but for two
        ranks, whose one place for what is sent is the sender's."""
        if self.ranks == 2:
            first = (1 - self.rank) * rows
            yield (
                (slice(first, first + rows) if self.across else slice(first + part.start, first + part.stop)),
                sent[self.rank],
            )
        elif self.across:
            for ranks in (slice(0, self.rank), slice(self.rank + 1, self.ranks)):
                if ranks.start < ranks.stop:
                    yield slice(ranks.start * rows, ranks.stop * rows), sent[ranks].flatten(0, 1)
        else:
            for target in range(self.ranks):
                if target != self.rank:
                    yield slice(target * rows + part.start, target * rows + part.stop), sent[target]

    def _exchange(self, group: Any, wire: Wire, received: Any, sent: Any) -> Any:
        """Begin to exchange products. Two ranks gather both in place: so nothing is sent to the rank itself."""
        if self.ranks == 2:
            return wire.begin(group, GATHER, received.flatten(0, 1), sent[self.rank])
        return wire.begin(group, EXCHANGE, received, sent)


def _tile(flat: Any, shape: tuple[int, int, int]) -> Any:
    return flat[: shape[0] * shape[1] * shape[2]].view(shape)


def _add(products: Sequence[Any], into: Any, wire: Wire) -> None:
    """Add the products of other ranks up in `into`; those of half types are rounded once."""
    sums = into.float() if into.dtype in HALVES and len(products) > 1 else into
    for each in products:
        sums.add_(each)
    if wire.op == "avg":
        sums.div_(wire.ranks)
    if sums is not into:
        into.copy_(sums)
