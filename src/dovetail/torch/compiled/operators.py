"""operators: the sum over ranks of products as a compiled graph has them, each with a row of its own."""

from __future__ import annotations

from typing import Any

import torch

from dovetail.torch.linear import kernels
from dovetail.torch.linear.schemas import fake_all_reduce, fake_reduce_scatter

_SCHEMA = "products_reduced(Tensor[] inputs, Tensor[] weights, Tensor? row, str op, int? dim, str group) -> Tensor"
_library = torch.library.Library("dovetail", "FRAGMENT")
_library.define(_SCHEMA, tags=[torch.Tag.needs_fixed_stride_order])
ops = torch.ops.dovetail


def products_reduced(inputs: Any, weights: Any, row: Any, op: str, dim: int | None, group: str) -> Any:
    """Return `Σ over ranks of (row + Σᵢ inputs[i] · weights[i]ᵀ)`, or this rank's part of it along `dim`.

    `row` may differ by rank, where the bias of `linear_all_reduce` is equal on all ranks and added once.
    """
    if dim is None:
        return kernels.linear_all_reduce(inputs, weights, None, op, group, row)
    return kernels.linear_reduce_scatter(inputs, weights, None, op, dim, group, row)


def _fake(inputs: Any, weights: Any, row: Any, op: str, dim: int | None, group: str) -> Any:
    if dim is None:
        return fake_all_reduce(inputs, weights, row, op, group)
    return fake_reduce_scatter(inputs, weights, row, op, dim, group)


_library.impl("products_reduced", products_reduced, "CPU")
torch.library.register_fake("dovetail::products_reduced", _fake, lib=_library)
