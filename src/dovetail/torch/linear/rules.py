"""rules: what autocast and vmap make of the operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dovetail.core import OperatorError
from dovetail.torch import dispatch
from dovetail.torch.linear.axes import merged, unmerged
from dovetail.torch.linear.schemas import library, ops

NAMES = ("linear_all_reduce", "linear_reduce_scatter", "all_gather_linear", "linear_of_replicated")


def _cast(value: Any, dtype: Any) -> Any:
    """Return an argument with its tensors as `dtype`; those in float64, and other arguments, are left as they are."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() and value.dtype != torch.float64 else value
    return [_cast(each, dtype) for each in value] if isinstance(value, list | tuple) else value


def _autocast(name: str) -> Callable[..., Any]:
    """Return an operator that runs in autocast's dtype, as torch's linear does."""
    op = getattr(ops, name)

    def call(*arguments: Any) -> Any:
        dtype = torch.get_autocast_dtype("cpu")
        with dispatch.without_autocast():
            return op(*(_cast(each, dtype) for each in arguments))

    return call


def _check_unbatched(axes: Any) -> None:
    if any(axis is not None for axis in axes):
        raise OperatorError(
            "vmap over weights or biases is not served", hint="vmap over the input, or torch.func.vmap of a loop"
        )


def _batched(tensors: Any, axes: Any, size: int) -> list[Any]:
    """Return tensors that all have the batch as their first axis."""
    return [
        each.unsqueeze(0).expand(size, *each.shape) if axis is None else each.movedim(axis, 0)
        for each, axis in zip(tensors, axes, strict=True)
    ]


def _vmap_all_reduce(info: Any, axes: Any, inputs: Any, weights: Any, bias: Any, op: str, group: str) -> Any:
    _check_unbatched([*axes[1], axes[2]])
    joined = _batched(inputs, axes[0], info.batch_size)
    flat = [each.reshape(-1, each.shape[-1]) for each in joined]
    out = ops.linear_all_reduce(flat, weights, bias, op, group)
    return out.view(*joined[0].shape[:-1], out.shape[-1]), 0


def _vmap_reduce_scatter(
    info: Any, axes: Any, inputs: Any, weights: Any, bias: Any, op: str, dim: int, group: str
) -> Any:
    _check_unbatched([*axes[1], axes[2]])
    joined = _batched(inputs, axes[0], info.batch_size)
    shape, place = joined[0].shape, 1 + dim % (joined[0].dim() - 1)
    flat = [merged(each, place) for each in joined]
    out = ops.linear_reduce_scatter(flat, weights, bias, op, 0, group)
    return unmerged(out, shape, place), 0


def _vmap_all_gather(
    info: Any, axes: Any, tensor: Any, weights: Any, biases: Any, dim: int, gathered: bool, group: str
) -> Any:
    _check_unbatched([*axes[1], *axes[2]])
    joined = tensor.movedim(axes[0], 0)
    place = 1 + dim % (joined.dim() - 1)
    whole, outs = ops.all_gather_linear(merged(joined, place), weights, biases, 0, gathered, group)
    made = [unmerged(each, joined.shape, place) for each in outs]
    whole = unmerged(whole, joined.shape, place) if gathered else None
    return (whole, made), (0 if gathered else None, [0] * len(made))


def _vmap_replicated(info: Any, axes: Any, tensor: Any, weights: Any, biases: Any, group: str) -> Any:
    _check_unbatched([*axes[1], *axes[2]])
    joined = tensor.movedim(axes[0], 0)
    outs = ops.linear_of_replicated(joined.reshape(-1, joined.shape[-1]), weights, biases, group)
    return [each.view(*joined.shape[:-1], each.shape[-1]) for each in outs], [0] * len(outs)


def register() -> None:
    """Register the rules."""
    for name in NAMES:
        library.impl(name, _autocast(name), "AutocastCPU")
    batched = (_vmap_all_reduce, _vmap_reduce_scatter, _vmap_all_gather, _vmap_replicated)
    for name, rule in zip(NAMES, batched, strict=True):
        torch.library.register_vmap(f"dovetail::{name}", rule, lib=library)
