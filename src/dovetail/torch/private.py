"""private: names of torch that are not public. Only this module takes them; all exist in torch 2.13."""

import sys
from collections.abc import Callable
from typing import Any

from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ProcessGroupGloo,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)
from torch.distributed import Backend
from torch.distributed import rendezvous as _  # noqa: F401  (loads the module of that name)

rendezvous: Any = sys.modules["torch.distributed.rendezvous"]  # the package has a function of that name

__all__ = [
    "AllToAllOptions",
    "AllgatherOptions",
    "AllreduceCoalescedOptions",
    "AllreduceOptions",
    "BarrierOptions",
    "BroadcastOptions",
    "GatherOptions",
    "ProcessGroupGloo",
    "ReduceOptions",
    "ReduceScatterOptions",
    "ScatterOptions",
    "before_env_rendezvous",
    "has_backend",
]


def before_env_rendezvous(act: Callable[[], None]) -> None:
    """Call `act` before torch reads RANK, MASTER_ADDR and the other variables of `env://`, each time."""
    handlers = rendezvous._rendezvous_handlers
    read = handlers["env"]

    def handler(*args: Any, **kwargs: Any) -> Any:
        act()
        return read(*args, **kwargs)

    handlers["env"] = handler


def has_backend(name: str) -> bool:
    """Return whether a backend was registered under this name."""
    return name.upper() in Backend._plugins
