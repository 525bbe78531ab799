"""private: names of torch that are not public. Only this module takes them; all exist in torch 2.13."""

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
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
from torch.distributed import Backend, distributed_c10d
from torch.distributed import rendezvous as _rendezvous  # noqa: F401  (loads the module of that name)

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
    "devices_of_new_group",
    "has_backend",
    "let_gloo_rest",
    "new_backends",
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


def devices_of_new_group() -> dict[str, str]:
    """Return the backend of each device of the group that torch is making: a creator of groups is not given them."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_new_process_group_helper":
        frame = frame.f_back
    return dict(frame.f_locals["backend_config"].get_device_backend_map()) if frame is not None else {}


def new_backends(names: Mapping[str, str], options: Any, more: Any) -> tuple[Any, dict[str, Any]]:
    """Return a process group with a backend for each of these devices, and the backends.

    `options`, `more`: what the creator of a group is given. The group is not among those that torch has by name.
    """
    asked = ",".join(f"{device}:{name}" for device, name in names.items())
    name, ranks = f"{options.group_id}.others", options.global_ranks_in_group
    about = options.group_size, options.group_rank, ranks, asked, options.store, name, more
    group, _ = distributed_c10d._new_process_group_helper(*about, timeout=options.timeout)
    world = distributed_c10d._world
    for each in (world.pg_map, world.pg_names, world.pg_backend_config):
        each.pop(group)
    tag = world.pg_to_tag.pop(group)
    for groups in (world.tags_to_pg[tag], world.tags_to_pg.get("", [])):
        if group in groups:
            groups.remove(group)
    distributed_c10d._unregister_process_group(name)
    return group, {device: group._get_backend(torch.device(device)) for device in names}


def let_gloo_rest(limit_s: float) -> None:
    """Wait, at most for `limit_s` seconds, until no thread of a gloo group of this process has anything to do.

    Such a thread drops the tensors of a call after it has said that the call is done, and takes Python's lock for it.
    If Python ends meanwhile, torch 2.13 aborts the process (pytorch/pytorch#190489).
    """
    tasks = Path("/proc/self/task")
    threads = [each for each in tasks.iterdir() if _read(each / "comm").startswith("pt_gloo")] if tasks.exists() else []
    until, num_quiet = time.monotonic() + limit_s, 0
    while threads and num_quiet < 3 and time.monotonic() < until:
        time.sleep(0.001)  # here a thread may get Python's lock
        states = [_read(each / "stat").rpartition(")")[2][:2] for each in threads]
        num_quiet = 0 if " R" in states else num_quiet + 1


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the thread has ended
        return ""
