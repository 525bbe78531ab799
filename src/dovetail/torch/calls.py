"""calls: the collectives of one group on tensors, blocking, by Dovetail's communicator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dovetail.call.collective_arguments import most_of_a_rank
from dovetail.core import OperatorError
from dovetail.ir.collectives import traits_of
from dovetail.run.ranks.comm import KINDS, REDUCED, CollectiveCall, Communicator
from dovetail.run.reduce import REDUCE_OPS
from dovetail.torch.tensors import REDUCTIONS, Span, given, mover, taken

_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}
ALL_REDUCE, BARRIER = _NUMBERS["all_reduce"], _NUMBERS["barrier"]


class Calls:
    """The collectives of a communicator on tensors. Each call blocks, and all ranks make equal calls.

    `checks`: ranks compare their arguments before data move.
    """

    def __init__(self, made: Communicator, checks: bool) -> None:
        self.made, self.rank, self.size, self.checks = made, made.rank, made.size, checks
        self._run = made.bound.run

    def one(self, kind: int, src: int, dst: int, elements: int, dtype: int, op: int, root: int, num_bytes: int) -> None:
        """Make one call. `src`, `dst`: addresses; numbers as in `run.ranks.comm`."""
        if self.checks:
            self.made.agree(_request(kind, src, dst, elements, dtype, op, root, num_bytes))
        if not self._run(kind, src, dst, elements, dtype, op, root, num_bytes, [], b""):
            self.made.run(_request(kind, src, dst, elements, dtype, op, root, num_bytes))

    def reduce(self, kind: str, tensor: Any, op: Any, root: int = 0) -> None:
        """Reduce a tensor in place: on all ranks ("all_reduce"), or on the root ("reduce")."""
        dtype, op_number = REDUCTIONS[tensor.dtype, op]
        span = taken((tensor,), reads=True)
        has_result = not traits_of(kind).rooted or self.rank == root
        dst = span.address if has_result else 0
        self.one(_NUMBERS[kind], span.address, dst, tensor.numel(), dtype, op_number, root, span.num_bytes)
        if span.back is not None and has_result:
            span.back()

    def broadcast(self, tensor: Any, root: int) -> None:
        """Copy the root's tensor to all ranks."""
        dtype, width = mover(tensor.dtype)
        span = taken((tensor,), reads=self.rank == root)
        elements = tensor.numel() * width
        self.one(_NUMBERS["broadcast"], span.address, span.address, elements, dtype, 0, root, span.num_bytes)
        if span.back is not None and self.rank != root:
            span.back()

    def gather(self, outs: Sequence[Any], tensor: Any, root: int | None = None) -> None:
        """Join all ranks' tensors: in `outs`, one or `size` tensors, on every rank or on the root."""
        dtype, width = mover(tensor.dtype)
        src, elements = given((tensor,)), tensor.numel() * width
        has_result = root is None or self.rank == root
        into = taken(outs) if has_result else None
        kind, whole = "all_gather" if root is None else "gather", src.num_bytes * self.size
        self.one(_NUMBERS[kind], src.address, into.address if into else 0, elements, dtype, 0, root or 0, whole)
        _end(into)

    def gather_uneven(self, outs: Sequence[Any], tensor: Any) -> None:
        """Join tensors of sizes that differ by rank, each that of `outs[rank]`."""
        dtype, width = mover(tensor.dtype)
        src, into = given((tensor,)), taken(outs)
        counts = np.array([out.numel() * width for out in outs], np.int64)
        self._uneven("all_gather_v", src, into, dtype, counts, into.num_bytes)

    def scatter(self, out: Any, tensors: Sequence[Any], root: int) -> None:
        """Copy the root's tensor number r to `out` of rank r. Other ranks give no tensors."""
        dtype, width = mover(out.dtype)
        into = taken((out,))
        src = given(tensors) if self.rank == root else None
        whole = into.num_bytes * self.size
        elements = out.numel() * width
        self.one(_NUMBERS["scatter"], src.address if src else 0, into.address, elements, dtype, 0, root, whole)
        _end(into)

    def reduce_scatter(self, out: Any, tensors: Sequence[Any], op: Any) -> None:
        """Reduce `tensors`, one or `size` tensors, and keep this rank's part in `out`."""
        dtype, op_number = REDUCTIONS[out.dtype, op]
        src, into = given(tensors), taken((out,))
        kind = _NUMBERS["reduce_scatter"]
        self.one(kind, src.address, into.address, out.numel(), dtype, op_number, 0, src.num_bytes)
        _end(into)

    def reduce_scatter_uneven(self, out: Any, tensors: Sequence[Any], op: Any) -> None:
        """Reduce tensors of sizes that differ by rank: rank r keeps number r."""
        dtype, op_number = REDUCTIONS[out.dtype, op]
        src, into = given(tensors), taken((out,))
        counts = np.array([each.numel() for each in tensors], np.int64)
        self._uneven("reduce_scatter_v", src, into, dtype, counts, src.num_bytes, op_number)

    def all_to_all(self, out: Any, tensor: Any) -> None:
        """Send part r of `tensor` to rank r, in equal parts."""
        dtype, width = mover(tensor.dtype)
        src, into = given((tensor,)), taken((out,))
        part = tensor.numel() * width // self.size
        self.one(_NUMBERS["all_to_all"], src.address, into.address, part, dtype, 0, 0, src.num_bytes)
        _end(into)

    def all_to_all_uneven(
        self, outs: Sequence[Any], tensors: Sequence[Any], sent: Sequence[int], awaited: Sequence[int]
    ) -> None:
        """Send `sent[r]` elements to rank r, and receive `awaited[r]` from it. Ranks exchange these counts first.

        Raises OperatorError on every rank if one expects another number than it is sent.
        """
        dtype, width = mover(tensors[0].dtype)
        rows = self.made.gather(np.array([*sent, *awaited], np.int64))
        counts, expected = rows[:, : self.size] * width, rows[:, self.size :] * width
        wrong = np.argwhere(counts != expected.T)
        if len(wrong):
            source, target = wrong[0].tolist()
            found = f"rank {source} sends {counts[source, target] // width} elements to rank {target}"
            found += f", which expects {expected[target, source] // width}"
            raise OperatorError("ranks call all_to_all with sizes that do not match", found=found)
        src, into = given(tensors), taken(outs)
        self._uneven("all_to_all_v", src, into, dtype, counts, most_of_a_rank(counts) * tensors[0].itemsize // width)

    def _uneven(self, kind: str, src: Span, into: Span, dtype: int, counts: Any, num_bytes: int, op: int = 0) -> None:
        request = CollectiveCall(
            kind, src.address, into.address, 0, REDUCED[dtype], num_bytes, REDUCE_OPS[op], counts=counts
        )
        if self.checks:
            self.made.agree(request)
        self.made.run(request)
        _end(into)

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.made.bound.library(BARRIER, 0, 0, 0)


def _end(into: Span | None) -> None:
    if into is not None and into.back is not None:
        into.back()


def _request(
    kind: int, src: int, dst: int, elements: int, dtype: int, op: int, root: int, num_bytes: int
) -> CollectiveCall:
    return CollectiveCall(KINDS[kind], src, dst, elements, REDUCED[dtype], num_bytes, REDUCE_OPS[op], root)
