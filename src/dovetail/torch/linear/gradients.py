"""gradients: the operators' backward: the dual operator, whose messages overlap with products too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dovetail.core import OperatorError
from dovetail.torch import dispatch
from dovetail.torch.linear import kernels
from dovetail.torch.linear.kernels import rows_of
from dovetail.torch.linear.schemas import library, ops


def _weight_gradient(grad: Any, tensor: Any, dim: int | None) -> Any:
    return rows_of(grad, dim).t().mm(rows_of(tensor, dim))


def _bias_gradient(grad: Any) -> Any:
    return grad.sum(tuple(range(grad.dim() - 1)))


def _scaled(grad: Any, op: str, group: str) -> Any:
    return grad / dispatch.resolve_process_group(group).size() if op == "avg" else grad


class AllReduce(torch.autograd.Function):  # type: ignore[misc]
    """`linear_all_reduce`. Its result's gradient is equal on all ranks, so that no data move."""

    @staticmethod
    def forward(ctx: Any, op: str, group: str, bias: Any, count: int, *tensors: Any) -> Any:
        out = _below("linear_all_reduce", (bias, *tensors), tensors[:count], tensors[count:], bias, op, group)
        ctx.about = op, group, count
        ctx.save_for_backward(*tensors)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        op, group, count = ctx.about
        return None, None, *_reduced_backward(ctx, grad, count, _scaled(grad, op, group))


def _reduced_backward(ctx: Any, grad: Any, count: int, scaled: Any) -> tuple[Any, ...]:
    saved, wanted = ctx.saved_tensors, ctx.needs_input_grad
    rows = rows_of(scaled, None)
    found = [None] * (2 * count)
    for place in range(count):
        if wanted[4 + place]:
            made = rows.mm(saved[count + place])
            found[place] = made if grad.dim() == 2 else made.view(saved[place].shape)
        if wanted[4 + count + place]:
            found[count + place] = rows.t().mm(rows_of(saved[place], None))
    return _bias_gradient(grad) if wanted[2] else None, None, *found


class ReduceScatter(torch.autograd.Function):  # type: ignore[misc]
    """`linear_reduce_scatter`. Backward gathers the gradient and multiplies it part by part (`all_gather_linear`), and
    begins the weights' gradients meanwhile."""

    @staticmethod
    def forward(ctx: Any, op: str, dim: int, group: str, bias: Any, count: int, *tensors: Any) -> Any:
        about = tensors[:count], tensors[count:], bias, op, dim, group
        out = _below("linear_reduce_scatter", (bias, *tensors), *about)
        ctx.about = op, dim, group, count
        ctx.save_for_backward(*tensors)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        op, dim, group, count = ctx.about
        saved = ctx.saved_tensors  # once: torch.utils.checkpoint allows no second reading
        inputs, weights = saved[:count], saved[count:]
        wanted = ctx.needs_input_grad
        scaled, of_bias = _scaled(grad, op, group), None
        if all(wanted[5:]) and not torch.is_grad_enabled():
            whole, of_inputs, of_weights = linear_scattered_gradients(scaled, weights, inputs, dim, group)
        else:
            turned = [each.t() for each in weights]
            whole, of_inputs = all_gather_linear(scaled, turned, [None] * count, dim, True, group)
            of_weights = [
                _weight_gradient(whole, each, dim % grad.dim()) if want else None
                for each, want in zip(inputs, wanted[5 + count :], strict=True)
            ]
        if wanted[3]:
            of_bias = _bias_gradient(whole)
            of_bias = of_bias * dispatch.resolve_process_group(group).size() if op == "avg" else of_bias
        return None, None, None, of_bias, None, *of_inputs, *of_weights


class AllGather(torch.autograd.Function):  # type: ignore[misc]
    """`all_gather_linear`. Backward reduces the products' gradients part by part (`linear_reduce_scatter`), and makes
    the weights' gradients meanwhile."""

    @staticmethod
    def forward(ctx: Any, dim: int, group: str, gathered: bool, tensor: Any, count: int, *tensors: Any) -> Any:
        about = tensor, tensors[:count], tensors[count:], dim, True, group
        whole, outs = _below("all_gather_linear", (tensor, *tensors), *about)
        ctx.about = dim, group, gathered
        ctx.save_for_backward(tensor, whole, *tensors[:count])
        ctx.set_materialize_grads(False)
        return (whole, *outs) if gathered else tuple(outs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        dim, group, gathered = ctx.about
        tensor, whole, *weights = ctx.saved_tensors
        of_whole, grads = (grads[0], grads[1:]) if gathered else (None, grads)
        wanted = ctx.needs_input_grad[3:4] + ctx.needs_input_grad[5:]
        about = tensor, whole, weights, of_whole, grads, dim, group
        of_input, of_weights, of_biases = gathered_gradients(wanted, *about)
        return None, None, None, of_input, None, *of_weights, *of_biases


def gathered_gradients(
    wanted: Sequence[bool], tensor: Any, whole: Any, weights: Any, of_whole: Any, grads: Any, dim: int, group: str
) -> tuple[Any, list[Any], list[Any]]:
    """Return the gradients of the input, the weights and the biases of `all_gather_linear`.

    `wanted`: of the input, of each weight, of each bias. `of_whole`, `grads`: of its results; None for one without.
    """
    if torch.is_grad_enabled():  # for gradients of gradients: the saved tensor has no history
        whole, _ = all_gather_linear(tensor, weights, [None] * len(weights), dim, True, group)
    of_input, of_weights, of_biases = _gathered_backward(wanted, whole, weights, grads, dim, group)
    if of_whole is not None and wanted[0]:
        one = torch.eye(whole.shape[-1], dtype=whole.dtype)
        more = linear_reduce_scatter([of_whole], [one], None, "sum", dim, group)
        of_input = more if of_input is None else of_input + more
    return of_input, of_weights, of_biases


class Replicated(torch.autograd.Function):  # type: ignore[misc]
    """`linear_of_replicated`. Backward adds the input's gradient up over the ranks (`linear_all_reduce`), and makes the
    weights' gradients meanwhile."""

    @staticmethod
    def forward(ctx: Any, group: str, tensor: Any, count: int, *tensors: Any) -> Any:
        outs = _below("linear_of_replicated", (tensor, *tensors), tensor, tensors[:count], tensors[count:], group)
        ctx.about = group
        ctx.save_for_backward(tensor, *tensors[:count])
        ctx.set_materialize_grads(False)
        return tuple(outs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        group = ctx.about
        tensor, *weights = ctx.saved_tensors
        wanted = ctx.needs_input_grad[1:2] + ctx.needs_input_grad[3:]
        found = _gathered_backward(wanted, tensor, weights, grads, None, group)
        of_input, of_weights, of_biases = found
        return None, of_input, None, *of_weights, *of_biases


def _gathered_backward(
    wanted: Sequence[bool], whole: Any, weights: Sequence[Any], grads: Sequence[Any], dim: int | None, group: str
) -> tuple[Any, list[Any], list[Any]]:
    """Return the gradients of the input, the weights and the biases. `wanted`: of each of them."""
    count = len(weights)
    is_whole = wanted[0] and all(wanted[1 : 1 + count]) and all(each is not None for each in grads)
    if is_whole and not torch.is_grad_enabled():
        of_input, made = linear_gradients(grads, weights, whole, "sum", dim, group)
        return of_input, made, _bias_gradients(wanted[1 + count :], grads)
    used = [place for place, grad in enumerate(grads) if grad is not None]
    of_weights: list[Any] = [None] * count
    of_input = None
    needs_weights = any(wanted[1 + place] for place in used)
    if used and wanted[0]:
        about = [grads[place] for place in used], [weights[place] for place in used]
        if needs_weights and not torch.is_grad_enabled():
            of_input, made = linear_gradients(*about, whole, "sum", dim, group)
            for place, each in zip(used, made, strict=True):
                of_weights[place] = each
        else:
            turned = [each.t() for each in about[1]]
            if dim is None:
                of_input = linear_all_reduce(about[0], turned, None, "sum", group)
            else:
                of_input = linear_reduce_scatter(about[0], turned, None, "sum", dim, group)
    if needs_weights and of_weights[used[0]] is None:
        for place in used:
            of_weights[place] = _weight_gradient(grads[place], whole, None if dim is None else dim % whole.dim())
    return of_input, of_weights, _bias_gradients(wanted[1 + count :], grads)


def _bias_gradients(wanted: Sequence[bool], grads: Sequence[Any]) -> list[Any]:
    return [
        _bias_gradient(each) if want and each is not None else None for each, want in zip(grads, wanted, strict=True)
    ]


def _needs(tensors: Sequence[Any]) -> bool:
    if torch.is_grad_enabled():
        for each in tensors:
            if each is not None and each.requires_grad:
                return True
    return False


def _below(name: str, tensors: Sequence[Any], *arguments: Any) -> Any:
    """Run an operator without its autograd rule: its kernel if nothing else would see the call, else by dispatch."""
    with dispatch.below_autograd():
        if dispatch.is_direct(*tensors):
            return getattr(kernels, name)(*arguments)
        return getattr(ops, name)(*arguments)


def linear_all_reduce(inputs: Any, weights: Any, bias: Any, op: str, group: str) -> Any:
    """Return what the operator returns, with its gradient if one is wanted."""
    tensors = (bias, *inputs, *weights)
    if _needs(tensors):
        return AllReduce.apply(op, group, bias, len(inputs), *inputs, *weights)
    return _below("linear_all_reduce", tensors, inputs, weights, bias, op, group)


def linear_reduce_scatter(inputs: Any, weights: Any, bias: Any, op: str, dim: int, group: str) -> Any:
    """As `linear_all_reduce`."""
    tensors = (bias, *inputs, *weights)
    if _needs(tensors):
        return ReduceScatter.apply(op, dim, group, bias, len(inputs), *inputs, *weights)
    return _below("linear_reduce_scatter", tensors, inputs, weights, bias, op, dim, group)


def all_gather_linear(tensor: Any, weights: Any, biases: Any, dim: int, gathered: bool, group: str) -> Any:
    """As `linear_all_reduce`."""
    tensors = (tensor, *weights, *biases)
    if _needs(tensors):
        outs = AllGather.apply(dim, group, gathered, tensor, len(weights), *weights, *biases)
        return (outs[0], list(outs[1:])) if gathered else (None, list(outs))
    return _below("all_gather_linear", tensors, tensor, weights, biases, dim, gathered, group)


def linear_of_replicated(tensor: Any, weights: Any, biases: Any, group: str) -> Any:
    """As `linear_all_reduce`."""
    tensors = (tensor, *weights, *biases)
    if _needs(tensors):
        return list(Replicated.apply(group, tensor, len(weights), *weights, *biases))
    return _below("linear_of_replicated", tensors, tensor, weights, biases, group)


def linear_gradients(grads: Any, weights: Any, tensor: Any, op: str, dim: int | None, group: str) -> Any:
    """Return what the operator returns, which has no gradient."""
    tensors = (tensor, *grads, *weights)
    if _needs(tensors):
        raise OperatorError("linear_gradients has no gradient", hint="torch.no_grad()")
    return _below("linear_gradients", tensors, grads, weights, tensor, op, dim, group)


def linear_scattered_gradients(grad: Any, weights: Any, inputs: Any, dim: int, group: str) -> Any:
    """Return what the operator returns, which has no gradient."""
    tensors = (grad, *weights, *inputs)
    if _needs(tensors):
        raise OperatorError("linear_scattered_gradients has no gradient", hint="torch.no_grad()")
    return _below("linear_scattered_gradients", tensors, grad, weights, inputs, dim, group)


def register() -> None:
    """Register the operators' autograd rules for CPU tensors."""
    library.impl("linear_all_reduce", linear_all_reduce, "AutogradCPU")
    library.impl("linear_reduce_scatter", linear_reduce_scatter, "AutogradCPU")
    library.impl("all_gather_linear", all_gather_linear, "AutogradCPU")
    library.impl("linear_of_replicated", linear_of_replicated, "AutogradCPU")
    library.impl("linear_gradients", linear_gradients, "AutogradCPU")
    library.impl("linear_scattered_gradients", linear_scattered_gradients, "AutogradCPU")
