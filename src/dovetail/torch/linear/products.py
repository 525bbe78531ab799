"""products: the operators as a program calls them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from dovetail.core import OperatorError
from dovetail.torch import dispatch
from dovetail.torch.linear import gradients
from dovetail.torch.linear.agreement import agree, check_backend, named
from dovetail.torch.linear.plans import is_warming
from dovetail.torch.linear.schemas import ops
from dovetail.torch.native import loaded

Tensors = Any  # a Tensor, or a sequence of them


def linear_all_reduce(
    input: Tensors, weight: Tensors, bias: Any = None, group: Any = None, *, op: str = "sum"
) -> torch.Tensor:
    """Return `Σ over ranks of input · weightᵀ`, plus the bias, on every rank: a row-parallel linear layer.

    The result of each tile of rows is reduced while the next tile is multiplied.

    Parameters
    ----------
    input : Tensor or sequence of Tensor
        This rank's columns, (rows, k) or (batch, rows, k). Several: their products are added up.
    weight : Tensor or sequence of Tensor
        This rank's columns, (n, k), of the weight of each input.
    bias : Tensor, optional
        (n,), equal on all ranks; added once.
    group : ProcessGroup or str, optional
        Of backend "dovetail". Default: the default group.
    op : "sum" or "avg"
        How the products of ranks are joined.

    Returns
    -------
    Tensor
        (rows, n) or (batch, rows, n), contiguous, equal on all ranks.

    Raises
    ------
    OperatorError
        On every rank, before data move, if the arguments of some rank are invalid or do not fit those of others.

    Notes
    -----
    Backward: the gradient of the result is taken to be equal on all ranks, as it is where every rank computes the same
    loss of it. So are the gradients of the bias. No data move.
    """
    if (native := _native()) is not None:
        found = native.linear_all_reduce(input, weight, bias, _default(group), op)
        if found is not None:
            return found
    inputs, weights = _several(input), _several(weight)
    name = _group(group, *inputs, *weights, bias)
    out: torch.Tensor = _door().linear_all_reduce(inputs, weights, bias, op, name)
    return out


def linear_reduce_scatter(
    input: Tensors, weight: Tensors, bias: Any = None, group: Any = None, *, dim: int = 0, op: str = "sum"
) -> torch.Tensor:
    """Return this rank's part of `Σ over ranks of input · weightᵀ`, cut along `dim`, plus the bias.

    The products that go to all ranks are sent tile by tile, while the next tile is multiplied.

    Parameters
    ----------
    input, weight, bias, group, op
        As for `linear_all_reduce`.
    dim : int
        The axis that is cut, any but the last. Its length must be a multiple of the number of ranks.

    Returns
    -------
    Tensor
        Contiguous, with `1 / ranks` of the rows along `dim`.

    Raises
    ------
    OperatorError
        As `linear_all_reduce` does.

    Notes
    -----
    Backward gathers the gradient and multiplies it part by part, by `all_gather_linear`. The bias gets its whole
    gradient on every rank.
    """
    if (native := _native()) is not None:
        found = native.linear_reduce_scatter(input, weight, bias, _default(group), op, dim)
        if found is not None:
            return found
    inputs, weights = _several(input), _several(weight)
    name = _group(group, *inputs, *weights, bias)
    out: torch.Tensor = _door().linear_reduce_scatter(inputs, weights, bias, op, dim, name)
    return out


def all_gather_linear(
    input: torch.Tensor,
    weight: Tensors,
    bias: Any = None,
    group: Any = None,
    *,
    dim: int = 0,
    gathered: bool = False,
) -> Any:
    """Return `gather(input) · weightᵀ`, plus the bias: a column-parallel linear layer of an input cut along `dim`.

    This rank's own rows are multiplied while the other ranks' arrive, and theirs tile by tile.

    Parameters
    ----------
    input : Tensor
        This rank's rows, (rows, k) or (batch, rows, k); equally many on every rank.
    weight : Tensor or sequence of Tensor
        (n, k), this rank's rows of the weight. Several share one gather.
    bias : Tensor or sequence of Tensor, optional
        (n,) for each weight, or None.
    group : ProcessGroup or str, optional
        Of backend "dovetail". Default: the default group.
    dim : int
        The axis along which the ranks' inputs are joined, any but the last.
    gathered : bool
        Whether to return the gathered input too.

    Returns
    -------
    Tensor, or list of Tensor
        One for each weight; a list if a list of weights was given. With `gathered`: (gathered input, result). Axis
        `dim` is outermost in memory.

    Raises
    ------
    OperatorError
        As `linear_all_reduce` does.

    Notes
    -----
    Backward: `linear_reduce_scatter` of the products of the results' gradients, while the weights' gradients are
    computed. The gathered input is kept for them.
    """
    is_single, made = isinstance(weight, torch.Tensor), None
    if (native := _native()) is not None:
        made = native.all_gather_linear(input, weight, bias, _default(group), dim, gathered)
    if made is None:
        weights = _several(weight)
        biases = _biases(bias, weights)
        name = _group(group, input, *weights, *biases)
        made = _door().all_gather_linear(input, weights, biases, dim, gathered, name)
    whole, outs = made
    found = outs[0] if is_single else outs
    return (whole, found) if gathered else found


def linear_of_replicated(input: torch.Tensor, weight: Tensors, bias: Any = None, group: Any = None) -> Any:
    """Return `input · weightᵀ`, plus the bias: a column-parallel linear layer of an input that every rank has.

    No data move forward. Backward adds the input's gradient up over the ranks tile by tile, as `linear_all_reduce`
    does, while further tiles and the weights' gradients are computed.

    Parameters
    ----------
    input : Tensor
        Equal on all ranks, (rows, k) or (batch, rows, k).
    weight, bias, group
        As for `all_gather_linear`.

    Returns
    -------
    Tensor, or list of Tensor
        One for each weight; a list if a list of weights was given.
    """
    weights, is_single = _several(weight), isinstance(weight, torch.Tensor)
    outs = _door().linear_of_replicated(input, weights, _biases(bias, weights), _group(group, input, *weights))
    return outs[0] if is_single else outs


def _native() -> Any:
    """Return the native operators, which make calls of known, serial plans; None if Python has to make this call."""
    return None if torch.compiler.is_dynamo_compiling() or is_warming() else loaded()


def _default(group: Any) -> Any:
    return dist.group.WORLD if group is None else group


def _door() -> Any:
    """Return where a call goes: to the autograd rules if torch's dispatcher would add nothing but time."""
    return gradients if dispatch.is_eager() else ops


def _several(tensors: Tensors) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _biases(bias: Any, weights: Sequence[Any]) -> list[Any]:
    if bias is None:
        return [None] * len(weights)
    return [bias] if isinstance(bias, torch.Tensor) else list(bias)


def _group(group: Any, *tensors: Any) -> str:
    """Return the name of a group, once every tensor is known to be one of the CPU."""
    name = group if group.__class__ is str else _name(group)
    for each in tensors:
        if each is not None and not (isinstance(each, torch.Tensor) and each.is_cpu):
            found = f"a tensor on device {each.device}" if isinstance(each, torch.Tensor) else type(each).__name__
            check_backend(named(name))
            agree(named(name), 0, str, f"these operators take CPU tensors: found {found}")
    return name


def _name(group: Any) -> str:
    group = _default(group)
    if not isinstance(group, dist.ProcessGroup):
        hint = 'init_process_group("dovetail"), on every rank of the group'
        raise OperatorError("no process group of this rank", found=type(group).__name__, hint=hint)
    name: str = group.group_name
    return name
