"""dispatch: names of torch's dispatcher that are not public, beside those of `private`. All exist in torch 2.13."""

from typing import Any

import torch
from torch._C._distributed_c10d import _resolve_process_group as resolve_process_group
from torch.distributed import distributed_c10d

__all__ = [
    "below_autograd",
    "groups",
    "has_cpu_kernel",
    "is_direct",
    "is_eager",
    "resolve_process_group",
    "symmetric_memory_ops",
    "without_autocast",
]

_KINDS = (torch.Tensor, torch.nn.Parameter)
_modes = torch._C._len_torch_dispatch_stack


def below_autograd() -> Any:
    """Return a context in which operators are dispatched without their autograd rules."""
    return torch._C._AutoDispatchBelowAutograd()


def without_autocast() -> Any:
    """Return a context in which operators are dispatched without autocast's rules for CPUs."""
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU))


def is_direct(*tensors: Any) -> bool:
    """Return whether nothing else than kernels would see an operator's call: no mode, and no subclass of Tensor."""
    return not _modes() and all(each is None or each.__class__ in _KINDS for each in tensors)


def is_eager() -> bool:
    """Return whether an operator's call may go straight to its autograd rule: the dispatcher would add nothing.

    It would if the call is compiled, traced, profiled, transformed, autocast, or seen by a mode.
    """
    return not (
        torch.compiler.is_compiling()
        or _modes()
        or torch._C._len_torch_function_stack()
        or torch._C._are_functorch_transforms_active()
        or torch.is_autocast_enabled("cpu")
        or torch.autograd.profiler._is_profiler_enabled
        or torch._C._get_tracing_state() is not None
    )


def symmetric_memory_ops() -> Any:
    """Return `torch.ops.symm_mem`, once torch has defined its operators."""
    from torch.distributed import _symmetric_memory  # noqa: F401 - defines them

    return torch.ops.symm_mem


def has_cpu_kernel(name: str) -> bool:
    """Return whether torch's registry has a kernel for CPU tensors of the operator of this name."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU"))


def groups() -> list[tuple[str, str, int]]:
    """Return the name, the backend and the size of every process group."""
    return sorted((name, group.name(), group.size()) for group, name in distributed_c10d._world.pg_names.items())
