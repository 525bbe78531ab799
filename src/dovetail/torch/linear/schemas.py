"""schemas: the operators in torch's registry: their signatures, CPU kernels, and what they return for fake tensors."""

from __future__ import annotations

from typing import Any

import torch

from dovetail.torch import dispatch
from dovetail.torch.linear import kernels

SCHEMAS = {
    "linear_all_reduce": "(Tensor[] inputs, Tensor[] weights, Tensor? bias, str op, str group) -> Tensor",
    "linear_reduce_scatter": (
        "(Tensor[] inputs, Tensor[] weights, Tensor? bias, str op, int dim, str group) -> Tensor"
    ),
    "all_gather_linear": (
        "(Tensor input, Tensor[] weights, Tensor?[] biases, int dim, bool gathered, str group) -> (Tensor?, Tensor[])"
    ),
    "linear_gradients": (
        "(Tensor[] grads, Tensor[] weights, Tensor input, str op, int? dim, str group) -> (Tensor, Tensor[])"
    ),
    "linear_scattered_gradients": (
        "(Tensor grad, Tensor[] weights, Tensor[] inputs, int dim, str group) -> (Tensor, Tensor[], Tensor[])"
    ),
    "linear_of_replicated": "(Tensor input, Tensor[] weights, Tensor?[] biases, str group) -> Tensor[]",
}
library = torch.library.Library("dovetail", "DEF")
for _name, _schema in SCHEMAS.items():
    library.define(_name + _schema, tags=[torch.Tag.needs_fixed_stride_order])
ops = torch.ops.dovetail


def fake_all_reduce(inputs: Any, weights: Any, bias: Any, op: str, group: str) -> Any:
    """Return an empty tensor like the result of `linear_all_reduce`."""
    return inputs[0].new_empty((*inputs[0].shape[:-1], weights[0].shape[0]))


def fake_reduce_scatter(inputs: Any, weights: Any, bias: Any, op: str, dim: int, group: str) -> Any:
    """Return an empty tensor like the result of `linear_reduce_scatter`."""
    shape = [*inputs[0].shape[:-1], weights[0].shape[0]]
    shape[dim] //= dispatch.resolve_process_group(group).size()
    return inputs[0].new_empty(shape)


def _fake_all_gather(tensor: Any, weights: Any, biases: Any, dim: int, gathered: bool, group: str) -> Any:
    widths = [each.shape[0] for each in weights]
    made = [_outermost(tensor, dim, width, dispatch.resolve_process_group(group).size()) for width in widths]
    whole = _outermost(tensor, dim, tensor.shape[-1], dispatch.resolve_process_group(group).size())
    return whole if gathered else None, made


def _outermost(tensor: Any, dim: int, width: Any, ranks: int) -> Any:
    """Return an empty tensor like one gathered along `dim`, with that axis outermost in memory."""
    dim %= tensor.dim()
    others = [size for axis, size in enumerate(tensor.shape[:-1]) if axis != dim]
    return tensor.new_empty((tensor.shape[dim] * ranks, *others, width)).movedim(0, dim)


def _fake_gradients(grads: Any, weights: Any, tensor: Any, op: str, dim: int | None, group: str) -> Any:
    shape = list(tensor.shape)
    if dim is not None:
        shape[dim] //= dispatch.resolve_process_group(group).size()
    return tensor.new_empty(shape), [torch.empty_like(each, memory_format=torch.contiguous_format) for each in weights]


def _fake_scattered_gradients(grad: Any, weights: Any, inputs: Any, dim: int, group: str) -> Any:
    ranks = dispatch.resolve_process_group(group).size()
    whole, *of_inputs = (
        _outermost(grad, dim, width, ranks) for width in (grad.shape[-1], *(w.shape[1] for w in weights))
    )
    return whole, of_inputs, [torch.empty_like(each, memory_format=torch.contiguous_format) for each in weights]


def register() -> None:
    """Register the CPU kernels and the fake ones."""
    fakes = {
        "linear_all_reduce": fake_all_reduce,
        "linear_reduce_scatter": fake_reduce_scatter,
        "all_gather_linear": _fake_all_gather,
        "linear_gradients": _fake_gradients,
        "linear_scattered_gradients": _fake_scattered_gradients,
        "linear_of_replicated": kernels.linear_of_replicated,
    }
    for name, fake in fakes.items():
        library.impl(name, getattr(kernels, name), "CPU")
        torch.library.register_fake(f"dovetail::{name}", fake, lib=library)
