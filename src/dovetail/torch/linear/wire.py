"""wire: the collectives of tiles on a process group, begun at once and awaited later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from dovetail.torch import private
from dovetail.torch.linear.kinds import EXCHANGE, GATHER, REDUCE

HALVES = (torch.bfloat16, torch.float16)


def _options(kind: Any, is_async: bool, op: Any = None) -> Any:
    made = kind()
    made.asyncOp = is_async
    if op is not None:
        made.reduceOp = op
    return made


class Wire:
    """The collectives of one operator. `op`: "sum" or "avg". `is_async`: whether `begin` returns at once.

    Sums of half types over three ranks or more are accumulated in float32 and rounded once: each rank gets the parts
    that it adds up. The group's own reductions would round at every rank.
    """

    def __init__(self, op: str, dtype: Any, ranks: int, is_async: bool) -> None:
        self.op, self.ranks, self.is_split = op, ranks, dtype in HALVES and ranks > 2
        reduction = dist.ReduceOp.AVG if op == "avg" else dist.ReduceOp.SUM
        self._reduce = _options(private.AllreduceOptions, is_async, reduction)
        self._scatter = _options(private.ReduceScatterOptions, is_async, reduction)
        self.gathers = _options(private.AllgatherOptions, is_async)
        self._exchange = _options(private.AllToAllOptions, is_async)

    def begin(self, group: Any, kind: str, out: Any, tensor: Any) -> Any:
        """Begin a collective from `tensor` to `out`; an all_reduce is in place. Return work with `wait()`."""
        if kind == GATHER:
            return group.all_gather_single(out, tensor, self.gathers)
        if kind == EXCHANGE:
            return group.all_to_all_single(out, tensor, [], [], self._exchange)
        if self.is_split:
            return self._split(group, kind, out, tensor)
        if kind == REDUCE:
            return group.allreduce([out], self._reduce)
        return group.reduce_scatter_single(out, tensor, self._scatter)

    def _split(self, group: Any, kind: str, out: Any, tensor: Any) -> Split:
        flat = tensor.reshape(-1)
        part = -(-flat.numel() // self.ranks)
        if flat.numel() != part * self.ranks:
            flat = torch.nn.functional.pad(flat, (0, part * self.ranks - flat.numel()))
        parts = torch.empty_like(flat)
        first = group.all_to_all_single(parts, flat, [], [], self._exchange)
        places = parts.view(self.ranks, part), out, flat
        return Split(self, group, first, places, gathers=kind == REDUCE)


class PlansDiffer(Exception):
    """Ranks know different plans of a call: all make it by the serial one. No data have moved."""


class SettlingWire:
    """A Wire whose first collective begins once all ranks have agreed on their call, which `settle` waits for.

    So a product that is made before it is not delayed by the agreement, or by a rank that comes late.
    """

    def __init__(self, wire: Wire, settle: Callable[[], bool]) -> None:
        self._wire, self._settle = wire, settle
        self.op, self.ranks = wire.op, wire.ranks
        self._is_settled = False

    def settle(self) -> None:
        """Wait until all ranks have agreed, if they have not. Raises OperatorError on every rank if they do not.

        Raises PlansDiffer on every rank that has a plan to give up.
        """
        if not self._is_settled:
            self._is_settled = True
            if not self._settle():
                raise PlansDiffer

    def begin(self, group: Any, kind: str, out: Any, tensor: Any) -> Any:
        """As `Wire.begin`."""
        self.settle()
        return self._wire.begin(group, kind, out, tensor)


class Split:
    """A reduction in halves: parts are exchanged, added up in float32, and for an all-reduce gathered.

    `places`: the parts of all ranks, the result, and the tensor that was sent, which has room for all sums.
    """

    def __init__(self, wire: Wire, group: Any, first: Any, places: tuple[Any, Any, Any], gathers: bool) -> None:
        self._wire, self._group, self._first, self._second = wire, group, first, None
        self._parts, self._out, self._whole = places
        self._gathers = gathers

    def advance(self) -> None:
        """Add up the parts once they are here, and begin to gather the sums."""
        if self._first is None:
            return
        self._first.wait()
        self._first = None
        wide = self._parts.sum(0, dtype=torch.float32)
        wide = wide.div_(self._wire.ranks) if self._wire.op == "avg" else wide
        if not self._gathers:
            self._out.view(-1).copy_(wide)
            return
        own = wide.to(self._out.dtype)
        self._second = self._group.all_gather_single(self._whole, own, self._wire.gathers)

    def wait(self) -> None:
        """Wait until the result is there."""
        self.advance()
        if self._second is not None:
            self._second.wait()
            if self._whole.data_ptr() != self._out.data_ptr():
                self._out.view(-1).copy_(self._whole[: self._out.numel()])
            self._second = None


def advance(work: Any) -> None:
    """Begin the second half of a collective that has two."""
    if isinstance(work, Split):
        work.advance()
