"""backend: register the name "dovetail" with torch.distributed, and make the process group behind it."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from dovetail.torch.devices import beside, of_devices
from dovetail.torch.group import DovetailGroup
from dovetail.torch.launchers import fill_in
from dovetail.torch.native import native_group
from dovetail.torch.private import before_env_rendezvous, has_backend, new_backends
from dovetail.torch.rendezvous import fill_in_address

NAME = "dovetail"


def register() -> None:
    """Let `init_process_group("dovetail")` and `new_group(backend="dovetail")` make groups of CPU tensors."""
    if not has_backend(NAME):
        fill_in()
        before_env_rendezvous(fill_in_address)
        dist.Backend.register_backend(NAME, _make, extended_api=True, devices=["cpu"])


class PythonGroup(DovetailGroup, dist.ProcessGroup):  # type: ignore[misc]
    """The process group where PyTorch's headers cannot be compiled."""

    turn = 0


def _make(options: Any, more: Any) -> DovetailGroup:
    kind: Any = native_group() or PythonGroup
    if names := beside(NAME):
        others, backends = new_backends(names, options, more)  # before ranks share memory: it may fail
        kind = of_devices(kind)
    found: DovetailGroup = kind(
        options.store, options.group_rank, options.group_size, options.timeout, options.global_ranks_in_group
    )
    if names:
        found.others, found.backends = others, backends  # type: ignore[attr-defined]
    return found
