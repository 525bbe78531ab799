"""tensors: where the bytes of CPU tensors lie, and which of the transport's types and operations serve them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from dovetail.core import OperatorError
from dovetail.run.ranks.comm import REDUCED
from dovetail.run.reduce import REDUCE_OPS

NUMBERS = {getattr(torch, name): number for number, name in enumerate(REDUCED)}
_KINDS = dist.ReduceOp.RedOpType
_OPS = {_KINDS.SUM: "sum", _KINDS.PRODUCT: "prod", _KINDS.MIN: "min", _KINDS.MAX: "max", _KINDS.AVG: "avg"}
_LOGICAL = {"sum": "max", "max": "max", "prod": "min", "min": "min"}  # of booleans, which are 0 or 1
_LOGICAL_BITS = {_KINDS.BAND: "min", _KINDS.BOR: "max"}


def _table() -> dict[tuple[Any, Any], tuple[int, int]]:
    """Return the transport's (dtype, op) by torch's; what is not in it goes to gloo."""
    found = {}
    for dtype, number in NUMBERS.items():
        for op, name in _OPS.items():
            if (dtype.is_complex and name not in ("sum", "prod")) or (name == "avg" and not dtype.is_floating_point):
                continue
            found[dtype, op] = number, REDUCE_OPS.index(name)
    for op, name in [*((op, _LOGICAL[name]) for op, name in _OPS.items() if name in _LOGICAL), *_LOGICAL_BITS.items()]:
        found[torch.bool, op] = REDUCED.index("uint8"), REDUCE_OPS.index(name)
    return found


REDUCTIONS = _table()
_MOVERS = {1: (REDUCED.index("uint8"), 1), 2: (REDUCED.index("float16"), 1), 4: (REDUCED.index("int32"), 1)}
_MOVERS |= {8: (REDUCED.index("int64"), 1), 16: (REDUCED.index("int64"), 2)}


class Span(NamedTuple):
    """Bytes in a row: of one tensor, or of several, one after the other. `back`: copies them into the tensors, if they
    lie elsewhere. `kept`: what has to live as long."""

    address: int
    num_bytes: int
    back: Callable[[], None] | None
    kept: Any


def mover(dtype: Any) -> tuple[int, int]:
    """Return the number of the type by which elements of `dtype` are moved, and how many of it make one element."""
    return _MOVERS[dtype.itemsize]


def check(tensor: Any, what: str) -> None:
    """Raise OperatorError unless `tensor` is a dense tensor of the CPU."""
    if not isinstance(tensor, torch.Tensor):
        raise OperatorError(f"{what} takes tensors", found=type(tensor).__name__)
    if not tensor.is_cpu:
        found = f"a tensor on device {tensor.device}"
        raise OperatorError(f'{what} on backend "dovetail" takes CPU tensors', found=found, hint="tensor.cpu()")
    if tensor.layout is not torch.strided or tensor.is_quantized:
        found = "a quantized tensor" if tensor.is_quantized else f"layout {tensor.layout}"
        raise OperatorError(f'{what} on backend "dovetail" takes dense tensors', found=found)


def is_plain(tensor: Any) -> bool:
    """Return whether the elements lie in memory as they are, in order and without gaps."""
    return tensor.is_contiguous() and not (tensor.is_complex() and tensor.is_conj()) and not tensor.is_neg()


def given(tensors: Sequence[Any]) -> Span:
    """Return the elements of `tensors` in one piece: in place where they lie so, else as a copy."""
    if (found := _in_place(tensors)) is not None:
        return found
    flat = torch.cat([tensor.detach().resolve_conj().resolve_neg().reshape(-1) for tensor in tensors])
    return Span(flat.data_ptr(), flat.nbytes, None, flat)


def taken(tensors: Sequence[Any], *, reads: bool = False) -> Span:
    """Return a place for the elements of `tensors`. Call its `back` once they are there. `reads`: it has theirs."""
    if (found := _in_place(tensors)) is not None:
        return found
    plain = [tensor.detach() for tensor in tensors]
    flat = torch.empty(sum(each.numel() for each in plain), dtype=plain[0].dtype)
    parts = flat.split([each.numel() for each in plain])
    pairs = [(each, part.view(each.shape)) for each, part in zip(plain, parts, strict=True)]
    for each, part in pairs if reads else ():
        part.copy_(each)

    def back() -> None:
        for each, part in pairs:
            each.copy_(part)

    return Span(flat.data_ptr(), flat.nbytes, back, (flat, plain))


def _in_place(tensors: Sequence[Any]) -> Span | None:
    """Return where tensors lie one after the other; None if they do not."""
    if len(tensors) == 1:
        (only,) = tensors
        return Span(only.data_ptr(), only.nbytes, None, only) if is_plain(only) else None
    filled = [tensor for tensor in tensors if tensor.numel()]
    next_address = begin = filled[0].data_ptr() if filled else 0
    for tensor in filled:
        if not is_plain(tensor) or tensor.data_ptr() != next_address:
            return None
        next_address += tensor.nbytes
    return Span(begin, next_address - begin, None, list(tensors))
