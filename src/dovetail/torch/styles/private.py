"""private: names of torch's DTensor that are not public. All exist in torch 2.13."""

from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor, all_gather_tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.distributed.tensor.placement_types import Replicate

__all__ = ["AsyncCollectiveTensor", "all_gather_tensor", "empty_shell", "plain_torch_function", "replicated"]

plain_torch_function = torch._C._disabled_torch_function_impl


def empty_shell(kind: type, shape: Any, like: Any) -> Any:
    """Return a tensor of a subclass, without data, of the dtype and device of `like`."""
    return torch.Tensor._make_wrapper_subclass(kind, shape, dtype=like.dtype, device=like.device)


def replicated(local: Any, source: Any) -> Any:
    """Return a replicated DTensor of the shape of `source`, with this local tensor."""
    spec = DTensorSpec(source.device_mesh, (Replicate(),), tensor_meta=source._spec.tensor_meta)
    return DTensor(local, spec, requires_grad=source.requires_grad)
