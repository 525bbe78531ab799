"""symm: `torch.ops.symm_mem.fused_all_gather_matmul` and `fused_matmul_reduce_scatter` for CPU tensors.

PyTorch defines these operators for CUDA. Here they get kernels for tensors of the CPU, on groups of backend "dovetail",
with gradients. Results and their layouts equal those of the definitions: an all-gather, then `torch.matmul`; `A @ B`,
then a reduce-scatter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dovetail.core import OperatorError
from dovetail.torch import dispatch
from dovetail.torch.linear import gradients, kernels
from dovetail.torch.linear.agreement import agree, check_backend, named
from dovetail.torch.linear.axes import merged, unmerged

GATHER, SCATTER = "fused_all_gather_matmul", "fused_matmul_reduce_scatter"


def all_gather_matmul(A: Any, Bs: Sequence[Any], dim: int, group: str, *, return_A: bool = True) -> Any:
    """Return (gathered A or None, its product with each B). Axis `dim` is outermost in memory.

    Parameters
    ----------
    A : Tensor
        This rank's part, of two axes or more; equal shapes on all ranks.
    Bs : sequence of Tensor
        (k, n), where k is the length of the gathered A's last axis.
    dim : int
        The axis along which the ranks' parts are joined. For the last, every rank adds up the products of the ranks'
        columns; all results are contiguous then.
    group : str
        Name of a group of backend "dovetail".
    return_A : bool
        Whether to return the gathered A.

    Raises
    ------
    OperatorError
        On every rank, before data move, if the arguments of some rank are invalid or do not fit those of others.
    """
    place = _checked(A, Bs, dim, group)
    turned = [each.t() for each in Bs]
    if place == A.dim() - 1:
        whole, outs = kernels.gather_columns_linear(_matrix(A), turned, return_A, group)
        return None if whole is None else _like(whole, A), [_like(each, A) for each in outs]
    whole, outs = kernels.all_gather_linear(merged(A, place), turned, [None] * len(Bs), 0, return_A, group)
    made = [unmerged(each, A.shape, place) for each in outs]
    return None if whole is None else unmerged(whole, A.shape, place), made


def matmul_reduce_scatter(A: Any, B: Any, op: str, dim: int, group: str) -> Any:
    """Return this rank's part, along `dim`, of the sum or mean of `A @ B` over the ranks; contiguous.

    Parameters
    ----------
    A, B : Tensor
        This rank's, (…, k) and (k, n).
    op : "sum" or "avg"
        How the products of ranks are joined.
    dim : int
        The axis that is cut, whose length is a multiple of the number of ranks. For the last, columns of B are
        multiplied tile by tile.
    group : str
        Name of a group of backend "dovetail".

    Raises
    ------
    OperatorError
        As `all_gather_matmul` does.
    """
    place = _checked(A, [B], dim, group)
    if place == A.dim() - 1:
        out = kernels.linear_reduce_scatter([B.t()], [_matrix(A)], None, op, 0, group)
        return _like(out.t().contiguous(), A)
    out = kernels.linear_reduce_scatter([merged(A, place)], [B.t()], None, op, 0, group)
    return _plain(unmerged(out, A.shape, place))


class GatherColumns(torch.autograd.Function):  # type: ignore[misc]
    """The all-gather along the last axis. Backward multiplies the gradients tile by tile, and scatters their sum."""

    @staticmethod
    def forward(ctx: Any, group: str, A: Any, *Bs: Any) -> Any:
        with dispatch.below_autograd():
            whole, outs = _ops.fused_all_gather_matmul(A, Bs, A.dim() - 1, group, return_A=True)
        ctx.group = group
        ctx.save_for_backward(A, whole, *Bs)
        ctx.set_materialize_grads(False)
        return (whole, *outs)

    @staticmethod
    def backward(ctx: Any, of_whole: Any, *grads: Any) -> Any:
        A, whole, *Bs = ctx.saved_tensors
        if torch.is_grad_enabled():  # for gradients of gradients: the saved tensor has no history
            whole = GatherColumns.apply(ctx.group, A, *Bs)[0]
        used = [place for place, each in enumerate(grads) if each is not None]
        summed = [(Bs[place], _matrix(grads[place])) for place in used]
        if of_whole is not None:
            summed.append((torch.eye(whole.shape[-1], dtype=whole.dtype), _matrix(of_whole)))
        of_input = None
        if summed and ctx.needs_input_grad[1]:
            inputs, weights = zip(*summed, strict=True)
            turned = gradients.linear_reduce_scatter(inputs, weights, None, "sum", 0, ctx.group)
            of_input = turned.t().reshape(A.shape)
        of_weights: list[Any] = [None] * len(Bs)
        for place in used:
            if ctx.needs_input_grad[2 + place]:
                of_weights[place] = _matrix(whole).t().mm(_matrix(grads[place]))
        return None, of_input, *of_weights


def all_gather_matmul_with_gradients(A: Any, Bs: Sequence[Any], dim: int, group: str, *, return_A: bool = True) -> Any:
    """As `all_gather_matmul`, with gradients if one is wanted."""
    if not gradients._needs((A, *Bs)):
        with dispatch.below_autograd():
            return _ops.fused_all_gather_matmul(A, Bs, dim, group, return_A=return_A)
    place = _checked(A, Bs, dim, group)
    if place == A.dim() - 1:
        whole, *outs = GatherColumns.apply(group, A, *Bs)
        return whole if return_A else None, outs
    turned = [each.t() for each in Bs]
    whole, outs = gradients.all_gather_linear(merged(A, place), turned, [None] * len(Bs), 0, return_A, group)
    made = [unmerged(each, A.shape, place) for each in outs]
    return unmerged(whole, A.shape, place) if return_A else None, made


def matmul_reduce_scatter_with_gradients(A: Any, B: Any, op: str, dim: int, group: str) -> Any:
    """As `matmul_reduce_scatter`, with gradients if one is wanted."""
    if not gradients._needs((A, B)):
        with dispatch.below_autograd():
            return _ops.fused_matmul_reduce_scatter(A, B, op, dim, group)
    place = _checked(A, [B], dim, group)
    if place == A.dim() - 1:
        out = gradients.linear_reduce_scatter([B.t()], [_matrix(A)], None, op, 0, group)
        return _like(out.t().contiguous(), A)
    out = gradients.linear_reduce_scatter([merged(A, place)], [B.t()], None, op, 0, group)
    return _plain(unmerged(out, A.shape, place))


def _checked(A: Any, Bs: Sequence[Any], dim: int, group: str) -> int:
    """Return `dim` as an axis of A. Raises OperatorError, on all ranks, if A or `dim` is invalid."""
    axes = A.dim()
    fault = ""
    if axes < 2 or any(each.dim() != 2 for each in Bs) or not Bs:
        fault = f"A (…, k) is multiplied by matrices (k, n): found A {list(A.shape)}"
        fault += f", B {', '.join(str(list(each.shape)) for each in Bs)}"
    elif not -axes <= dim < axes:
        fault = f"dim {dim} of shape {list(A.shape)}"
    if fault:
        if dispatch.is_direct(A, *Bs):
            check_backend(named(group))
            agree(named(group), 0, str, fault)
        raise OperatorError(fault)
    return dim % int(axes)


def _matrix(tensor: Any) -> Any:
    return tensor.reshape(tensor.shape[:-1].numel(), tensor.shape[-1])


def _like(matrix: Any, tensor: Any) -> Any:
    """Return a matrix with the axes of a tensor before its last."""
    return matrix.view(*tensor.shape[:-1], matrix.shape[-1])


def _plain(tensor: Any) -> Any:
    """Return the tensor with a contiguous one's strides, also of axes of length 1."""
    return tensor.contiguous().view(-1).view(tensor.shape)


def _without_autocast(name: str) -> Any:
    """Return an operator as it is outside autocast: its definition keeps the dtypes that it is given."""

    def call(*arguments: Any, **options: Any) -> Any:
        with dispatch.without_autocast():
            return getattr(_ops, name)(*arguments, **options)

    return call


def register() -> None:
    """Give the operators kernels for CPU tensors, unless torch has some."""
    rules = {
        GATHER: (all_gather_matmul, all_gather_matmul_with_gradients),
        SCATTER: (matmul_reduce_scatter, matmul_reduce_scatter_with_gradients),
    }
    for name, (kernel, with_gradients) in rules.items():
        if not dispatch.has_cpu_kernel(f"symm_mem::{name}"):
            library.impl(name, kernel, "CPU")
            library.impl(name, with_gradients, "AutogradCPU")
            library.impl(name, _without_autocast(name), "AutocastCPU")


_ops = dispatch.symmetric_memory_ops()
library = torch.library.Library("symm_mem", "IMPL")
