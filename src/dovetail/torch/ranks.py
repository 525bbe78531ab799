"""ranks: the ranks of a process group, which meet in torch's store: on one host, or on several."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from dovetail.call.selection_rules import communicator
from dovetail.core import DovetailError, EnvironmentFault, RunError
from dovetail.run.faults import report
from dovetail.run.ranks.messages import Messages
from dovetail.run.ranks.together import words_of
from dovetail.run.shared.hosts import Exchange, join_hosts
from dovetail.run.shared.stores import Job, wait_for
from dovetail.run.shared.world import Comm, join
from dovetail.torch import mpi
from dovetail.torch.launchers import is_mpi_launched
from dovetail.torch.mpi import MpiRanks

TRANSPORTS = ("sockets", "mpi")


class TorchStore:
    """The keys of a `torch.distributed.Store`, as the ranks of a shared world need them."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def set(self, key: str, value: str) -> None:
        """Set a key."""
        self._store.set(key, value)

    def get(self, key: str) -> str | None:
        """Return the value of a key; None while it is not set."""
        if not self._store.check([key]):
            return None
        text: str = self._store.get(key).decode()
        return text

    def close(self) -> None:
        """Do nothing: the store is torch's."""


class SharedRanks:
    """The ranks of one group without MPI. They create it together.

    Attributes
    ----------
    made : Communicator
        For collectives.
    count : callable
        Returns how many collectives this rank has called.
    where : str
        What connects the ranks, and the number of each one's host.
    """

    where = ""

    def __init__(self, comm: Comm, limit_s: float) -> None:
        self._comm = comm
        self.count: Callable[[], int] = lambda: 0
        self.made = communicator(comm)
        comm.limit(limit_s)

    @cached_property
    def messages(self) -> Messages:
        """Sends and receives between them."""
        return Messages(self._comm.world)

    def rest(self, on: bool) -> None:
        """Let collectives sleep between polls, or no longer: the program computes meanwhile."""
        self._comm.rest(on)

    def door(self) -> int:
        """Return the address of the collectives as C functions (native/run/door.h)."""
        return int(self.made.bound.door(self._comm.py2f()))

    def fail(self, why: str) -> None:
        """Let collectives fail from now on, on all ranks."""
        self._comm.fail(why)

    def refuse(self, error: Exception) -> None:
        """Let the other ranks raise an error of this rank's arguments, in place of their call."""
        report(self.made, error)

    def explained(self, error: RunError) -> RunError:
        """Return the error of a failed call, which names the rank that has caused it."""
        is_plain = error.what.endswith("failed in test") and (error.found or "").startswith("rank ")
        return RunError(str(error.found)) if is_plain else error

    def close(self) -> None:
        """Give back the memory. Other ranks no longer wait for this one."""
        self.close_messages()
        with suppress(DovetailError):
            self._comm.Free()

    def close_messages(self) -> None:
        """End sends and receives: their thread must not outlive native code."""
        if "messages" in vars(self):
            self.messages.close()


class HostRanks(SharedRanks):
    """The ranks of one group on several hosts, connected by sockets. They create it together."""

    def refuse(self, error: Exception) -> None:
        """Let the other ranks fail for an error of this rank's arguments: they may be in a call that it cannot join."""
        self.fail(f"rank {self.made.rank} refuses its arguments: {words_of(error)}")


def meet(store: Any, rank: int, size: int, limit_s: float) -> SharedRanks | MpiRanks:
    """Return the ranks that meet in a torch store within `limit_s` seconds: of one host, or of several. Collective.

    Raises
    ------
    EnvironmentFault
        On every rank, if ranks cannot share memory, or cannot be connected.
    RunError
        If a rank does not come in time. The error names the rank.
    """
    job = Job(TorchStore(store), rank, size, 2 * limit_s)
    exchange = partial(_exchange, job, rank, size, limit_s)
    hosts = exchange("host", host())
    if len(set(hosts)) == 1:
        return SharedRanks(Comm(join(job, rank, size, limit_s)), limit_s)
    found: MpiRanks | HostRanks
    if (transport := _transport(exchange)) == "mpi":
        found = mpi.join(rank, size, hosts, exchange, limit_s)
    else:
        prefer = os.environ.get("MASTER_ADDR", "")
        found = HostRanks(join_hosts(job, exchange, rank, hosts, limit_s, prefer), limit_s)
    found.where = f"{transport}, hosts {[hosts.index(each) for each in hosts]}"
    return found


def _transport(exchange: Exchange) -> str:
    """Return what connects ranks of several hosts: sockets; or MPI, if its launcher has started them on fast networks.

    $DOVETAIL_TORCH_TRANSPORT says otherwise.
    """
    usual = "mpi" if is_mpi_launched() and _has_fast_network() else "sockets"
    asked = exchange("transport", os.environ.get("DOVETAIL_TORCH_TRANSPORT", ""))
    if not any(asked):
        found = exchange("network", usual)
        return "mpi" if set(found) == {"mpi"} else "sockets"
    if len(set(asked)) > 1 or asked[0] not in TRANSPORTS:
        raise EnvironmentFault(
            "the ranks do not agree how hosts are connected" if len(set(asked)) > 1 else f"no transport '{asked[0]}'",
            found=", ".join(f"rank {rank}: '{each}'" for rank, each in enumerate(asked)),
            hint=f"DOVETAIL_TORCH_TRANSPORT={' or '.join(TRANSPORTS)} on all ranks, or nowhere",
        )
    return asked[0]


def _has_fast_network() -> bool:
    """Return whether this host has InfiniBand or the like, which MPI uses without the kernel."""
    return any(any(Path("/sys/class", name).glob("*")) for name in ("infiniband", "cxi"))


def host() -> str:
    """Return the name of this host, its latest start, and its network: hosts, and containers, may have equal names."""
    found = [platform.node()]
    with suppress(OSError):
        found.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with suppress(OSError):
        found.append(os.readlink("/proc/self/ns/net"))
    return " ".join(found)


def _exchange(job: Job, rank: int, size: int, limit_s: float, name: str, own: str) -> list[str]:
    """Return the texts of all ranks. Rank 0 gathers them. Raises RunError on all ranks if one does not come in time."""
    job.set(f"{name}.{rank}", own)
    if rank == 0:
        found = wait_for(job, [f"{name}.{each}" for each in range(size)], limit_s)
        missing = [str(each) for each, text in enumerate(found) if text is None]
        said = f"ranks {', '.join(missing)} of {size} did not come within {limit_s:.0f} s" if missing else ""
        job.set(name, json.dumps([said, found]))
    (answer,) = wait_for(job, [name], 2 * limit_s)
    if answer is None:
        raise RunError(f"rank 0 did not come within {2 * limit_s:.0f} s", hint="look at its output")
    said, texts = json.loads(answer)
    if said:
        raise RunError(said, hint="look at their output")
    return list(texts)
