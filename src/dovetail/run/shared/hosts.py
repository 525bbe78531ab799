"""hosts: communicators of ranks on several hosts without MPI: by sockets, and in shared memory on each host."""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from dovetail import _native
from dovetail.core import DovetailError, EnvironmentFault, RunError
from dovetail.run.ranks.library import HostCalls, SharedCalls
from dovetail.run.ranks.lines import listener, own_addresses, rank_at, reached
from dovetail.run.shared.stores import Store
from dovetail.run.shared.world import Comm, calls, join

ACCEPT_S = 60.0  # seconds for all ranks to connect, once all have come
Exchange = Callable[[str, str], list[str]]  # (name of the exchange, own text) -> all ranks' texts; collective


class HostComm(Comm):
    """A communicator of ranks on several hosts. See `Comm`; `Split` and `Dup` are for one host only."""

    def _new_calls(self) -> SharedCalls:
        calls()  # so that other ranks hear of the end of this process
        return _host_calls()

    def __repr__(self) -> str:
        return f"<HostComm: rank {self.rank} of {self.size} on several hosts>" if self else "<HostComm: freed>"


@cache
def _host_calls() -> HostCalls:
    return HostCalls()


class _Part:
    """The keys of a store that begin with a prefix."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._store, self._prefix = store, prefix

    def set(self, key: str, value: str) -> None:
        self._store.set(f"{self._prefix}.{key}", value)

    def get(self, key: str) -> str | None:
        return self._store.get(f"{self._prefix}.{key}")

    def close(self) -> None:
        """Do nothing: others use the store."""


def join_hosts(
    store: Store, exchange: Exchange, rank: int, hosts: Sequence[str], limit_s: float, prefer: str = ""
) -> HostComm:
    """Return the communicator of ranks that meet in `store`, all together.

    Parameters
    ----------
    store : Store
        Where ranks of one host tell each other of their memory.
    exchange : callable
        Returns the texts of all ranks.
    rank : int
        Of this process.
    hosts : sequence of str
        The host of each rank, by a name that no other host has.
    limit_s : float
        Seconds that a rank waits for another one.
    prefer : str
        An address of rank 0 that the others try first, or after that of the network that $GLOO_SOCKET_IFNAME names.

    Raises
    ------
    EnvironmentFault
        On all ranks, if some rank cannot reach another, or cannot share memory with those of its host.
    """
    found: list[int] = []
    near: list[int] = []
    fault = ""
    with listener(len(hosts)) as listens:
        offer = json.dumps([secrets.token_hex(16), listens.getsockname()[1], own_addresses()])
        offers = [json.loads(text) for text in exchange("sockets", offer)]
        if prefer:
            offers[0][2].insert(bool(os.environ.get("GLOO_SOCKET_IFNAME")), prefer)
        try:
            found = _connections(listens, offers, rank, limit_s)
            near = [_near(store, hosts, rank, turn, limit_s) for turn in range(2)]
        except (DovetailError, OSError) as error:
            fault = error.what if isinstance(error, DovetailError) else str(error)
    faults = [text for text in exchange("connected", fault) if text]
    if faults:
        for number in near:
            _native.shared_part(number)
        for file in found:
            os.close(file) if file >= 0 else None
        raise EnvironmentFault("the hosts cannot be connected", found="; ".join(dict.fromkeys(faults)))
    here = [each for each, host in enumerate(hosts) if host == hosts[rank]]
    return HostComm(_native.hosts_join(near[0], near[1], here, rank, found))


def _connections(listens: socket.socket, offers: Sequence[Any], rank: int, limit_s: float) -> list[int]:
    """Return a descriptor for each rank, -1 for this one. A rank connects to lower ranks and awaits higher ones."""
    lines: dict[int, socket.socket] = {}
    for other in range(rank):
        token, port, addresses = offers[other]
        if (line := reached(addresses, port, token, rank)) is None:
            tried = ", ".join(addresses) or "no address"
            raise RunError(f"rank {rank} does not reach rank {other}: tried {tried}, port {port}")
        lines[other] = line[0]
    until = time.monotonic() + min(limit_s, ACCEPT_S)
    while missing := set(range(rank + 1, len(offers))) - set(lines):
        listens.settimeout(max(until - time.monotonic(), 0.01))
        try:
            line_in, _ = listens.accept()
        except TimeoutError:
            raise RunError(f"rank {min(missing)} does not reach rank {rank}") from None
        if (other_rank := rank_at(line_in, offers[rank][0])) is not None:
            lines[other_rank] = line_in
    return [lines[each].detach() if each in lines else -1 for each in range(len(offers))]


def _near(store: Store, hosts: Sequence[str], rank: int, turn: int, limit_s: float) -> int:
    """Return the number of a communicator of this host's ranks."""
    here = [each for each, host in enumerate(hosts) if host == hosts[rank]]
    if len(here) == 1:
        number = _native.shared_join(_native.Segment.make(_native.shared_bytes(1), False), 0, 1)
        _native.shared_hide(number)
        return number
    return join(_Part(store, f"near.{here[0]}.{turn}"), here.index(rank), len(here), limit_s)
