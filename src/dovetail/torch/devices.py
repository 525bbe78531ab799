"""devices: groups that leave other devices to other backends, as "cpu:dovetail,cuda:nccl" asks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import torch

from dovetail.core import EnvironmentFault
from dovetail.torch import private
from dovetail.torch.native import HERE

ROUTED = (
    *("allreduce", "allreduce_coalesced", "broadcast", "reduce", "send", "recv", "recv_anysource"),
    *("allgather", "allgather_coalesced", "all_gather_single", "all_gather_single_coalesced", "_allgather_base"),
    *("gather", "scatter", "reduce_scatter", "reduce_scatter_single", "reduce_scatter_single_coalesced"),
    *("_reduce_scatter_base", "alltoall", "all_to_all_single", "alltoall_base"),
    *("allgather_into_tensor_coalesced", "reduce_scatter_tensor_coalesced"),
)


def beside(name: str) -> dict[str, str]:
    """Return the backend of each other device of the group that torch is making.

    Raises EnvironmentFault if backend `name` is asked to take tensors of another device than the CPU.
    """
    asked = private.devices_of_new_group()
    wrong = [device for device, backend in asked.items() if backend == name and device != "cpu"]
    if wrong:
        found = ",".join(f"{device}:{backend}" for device, backend in asked.items())
        raise EnvironmentFault(
            f'backend "{name}" takes CPU tensors', found=found, hint=f'"cpu:{name},{wrong[0]}:BACKEND", such as nccl'
        )
    return {device: backend for device, backend in asked.items() if backend != name}


class OfDevices:
    """What the class of a group has that passes tensors of other devices on to their backends."""

    others: Any  # the ProcessGroup that has these backends
    backends: Mapping[str, Any]  # of each other device

    def _get_backend(self, device: Any) -> Any:
        found = self.backends.get(torch.device(device).type)
        return super()._get_backend(device) if found is None else found  # type: ignore[misc]

    @property
    def _device_types(self) -> list[Any]:
        return [torch.device(device) for device in ("cpu", *self.backends)]

    def shutdown(self) -> None:
        """End the other backends, then the group."""
        if self.others is not None:
            self.others.shutdown()
        self.others, self.backends = None, {}
        super().shutdown()  # type: ignore[misc]


@cache
def of_devices(kind: type) -> type:
    """Return the class of groups like `kind` that are given `others` and `backends`, and pass calls on to them."""
    native = HERE if hasattr(kind, "slow_allreduce") else ()
    routed = {}
    for name in ROUTED:
        if name not in native:
            routed[name] = _routed(name, getattr(kind, name))
        elif hasattr(kind, f"slow_{name}"):  # what native code calls for tensors that are not of the CPU
            routed[f"slow_{name}"] = _routed(name, getattr(kind, f"slow_{name}"))
    return type(f"{kind.__name__}OfDevices", (OfDevices, kind), routed)


def _routed(name: str, inner: Any) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _device_of(args) not in self.backends:
            return inner(self, *args, **kwargs)
        return getattr(self.others, name)(*args, **kwargs)

    call.__name__, call.__doc__ = name, inner.__doc__
    return call


def _device_of(values: Iterable[Any]) -> str:
    """Return the type of the first tensor's device; empty if there is no tensor."""
    for value in values:
        if isinstance(value, torch.Tensor):
            return str(value.device.type)
        if isinstance(value, list | tuple) and (found := _device_of(value)):
            return found
    return ""
