"""mpi: the ranks of a process group on several hosts, and how MPI, which connects them, begins in their processes."""

from __future__ import annotations

import atexit
import importlib.util
import os
import secrets
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from dovetail.call.selection_rules import communicator
from dovetail.core import DovetailError, EnvironmentFault, RunError
from dovetail.run.ranks.comm import shim, world_aside
from dovetail.run.ranks.messages import Messages
from dovetail.run.ranks.together import words_of
from dovetail.run.ranks.world import World
from dovetail.run.requests import THREAD_MULTIPLE
from dovetail.run.shared.hosts import Exchange
from dovetail.torch.launchers import is_mpi_launched
from dovetail.torch.pmi import Server
from dovetail.torch.watch import Watch

FAREWELL_S = 5.0  # seconds that a process waits at its end for the other ranks; MPI is finalized if all end
VERDICT_S = 3.0  # seconds that a failed call waits to hear which rank has died
ANSWER_S = 1.5  # seconds for ranks to say how many calls they have made
MOST_TAG = 32767
ONE_JOB = 'init_process_group("dovetail") with all ranks first'


class MpiJob:
    """MPI in this process, which begins once, and the watch over its ranks."""

    def __init__(self, key: str, world: World, watch: Watch, server: Server | None) -> None:
        self.key, self.world, self.watch, self._server = key, world, watch, server
        self.groups: WeakSet[MpiRanks] = WeakSet()
        self.failed: dict[str, str] = {}  # why, by key of the group: another rank may fail before it is made here
        atexit.register(self._end)

    def on_message(self, message: Mapping[str, Any]) -> None:
        """Pass a message of the watch on to all groups."""
        if "fails" in message:
            self.failed.setdefault(message["group"], message["fails"])
        for group in list(self.groups):
            group.on_message(message)

    def _end(self) -> None:
        for group in list(self.groups):
            group.close()
        if self.watch.farewell(FAREWELL_S):  # else MPI would wait for a rank that is gone
            with suppress(RunError):
                self.world.finalize()
        if self._server is not None:
            self._server.close()
        _jobs.clear()
        del self.world  # what is native must not outlive its module


_jobs: list[MpiJob] = []  # at most one, as MPI_COMM_WORLD


def job_by_launcher() -> MpiJob:
    """Return this process's MPI, which begins unless it has: all ranks of mpiexec call it together."""
    if not _jobs:
        world = World(shim(), level="multiple")
        from mpi4py import MPI  # after the line above, so that Python's lock is free while MPI begins

        def share(text: str) -> str:
            return str(MPI.COMM_WORLD.bcast(text, 0))

        _begin(world, share(secrets.token_hex(8)), share)
    return _jobs[0]


def _job_by_store(rank: int, size: int, hosts: Sequence[str], exchange: Exchange) -> MpiJob:
    """Begin MPI in processes that torchrun started; their ranks become those of MPI."""
    key = exchange("job", secrets.token_hex(8))[0]
    if (name := os.environ.get("GLOO_SOCKET_IFNAME")) and "FI_TCP_IFACE" not in os.environ:
        os.environ["FI_TCP_IFACE"] = name
    server = Server(rank, size, f"dovetail_{key}", hosts, exchange)
    with server.environment():
        world = World(shim(), level="multiple")
    return _begin(world, key, lambda text: exchange("watch", text)[0], server)


def _begin(world: World, key: str, share: Callable[[str], str], server: Server | None = None) -> MpiJob:
    prefer = os.environ.get("MASTER_ADDR", "")
    watch = Watch(world.rank, world.size, share, _on_message, prefer)
    _jobs.append(MpiJob(key, world, watch, server))
    return _jobs[0]


def _on_message(message: Mapping[str, Any]) -> None:
    for job in _jobs:
        job.on_message(message)


def join(rank: int, size: int, hosts: Sequence[str], exchange: Exchange, limit_s: float) -> MpiRanks:
    """Return the ranks of a group on several hosts. Its ranks call it together; `hosts`: the host of each.

    Raises EnvironmentFault on all ranks if on some host MPI is missing, or does not begin under this launcher.
    """
    offers = exchange("mpi", _offer())
    if faults := [text for text in offers if text.startswith("!")]:
        what, _, hint = faults[0][1:].partition("|")
        found = f"rank {offers.index(faults[0])} of {size} ranks on {len(set(hosts))} hosts"
        raise EnvironmentFault(what, found=found, hint=hint)
    if len(set(offers)) > 1:
        raise EnvironmentFault("the ranks do not share one MPI", found="; ".join(dict.fromkeys(offers)), hint=ONE_JOB)
    if not _jobs:
        job_by_launcher() if is_mpi_launched() else _job_by_store(rank, size, hosts, exchange)
    job = _jobs[0]
    answers = exchange("member", f"{job.key} {job.world.rank} {job.world.provided}")
    keys, members, levels = zip(*(text.split() for text in answers), strict=True)
    if len(set(keys)) > 1 or len(set(members)) < size:
        hint = "start all of them by one mpiexec, or by torchrun; import mpi4py after init_process_group"
        raise EnvironmentFault("the ranks are not in one job of MPI", found=f"{len(set(keys))} jobs", hint=hint)
    if min(map(int, levels)) < THREAD_MULTIPLE:
        hint = "leave mpi4py.rc.thread_level as it is"
        raise EnvironmentFault("MPI was started for calls by one thread at a time", hint=hint)
    return MpiRanks(job, [int(each) for each in members], exchange("group", secrets.token_hex(8))[0], limit_s)


def _offer() -> str:
    """Return a text on the MPI of this process, equal on ranks that can have one job; or "!", a fault, "|", a hint."""
    if _jobs:
        return f"job {_jobs[0].key}"
    if importlib.util.find_spec("mpi4py") is None:
        return "!ranks on several hosts need MPI, and there is no mpi4py|pip install 'dovetail[mpi]' on all hosts"
    try:
        library = shim().library
    except DovetailError as error:
        return f"!{error.what}|{error.hint or ''}"
    if is_mpi_launched():
        return library
    if "Open MPI" in library:
        what = "Open MPI does not begin in processes that torchrun has started"
        return f"!{what}|mpiexec -n RANKS python PROGRAM, without torchrun; or MPICH: pip install mpich"
    if "mpi4py.MPI" in sys.modules and sys.modules["mpi4py.MPI"].Is_initialized():
        return "!MPI has begun in this process alone|import mpi4py.MPI after init_process_group"
    return library


class MpiRanks:
    """The ranks of one group, of `members` of a job of MPI. They create it together.

    Attributes
    ----------
    made : Communicator
        For collectives.
    count : callable
        Returns how many collectives this rank has called, for errors of ranks that wait for it.
    where : str
        What connects the ranks, and the number of each one's host.
    """

    where = ""

    def __init__(self, job: MpiJob, members: Sequence[int], key: str, limit_s: float) -> None:
        from mpi4py import MPI

        self._job, self._members, self._key = job, list(members), key
        self.count: Callable[[], int] = lambda: 0
        self._answers: dict[int, int] = {}  # by rank, the calls it has made
        group = MPI.COMM_WORLD.Get_group().Incl(self._members)
        self._comm = MPI.COMM_WORLD.Create_group(group, zlib.crc32(key.encode()) % MOST_TAG)
        self._aside = self._comm.Dup()  # for messages, which another thread moves
        self.made = communicator(self._comm)
        self._world = world_aside(self._aside)
        self.messages = Messages(self._world)
        transport = self.made.world.transport
        transport.polls, transport.limit_s = True, limit_s
        self._is_open = True
        job.groups.add(self)
        for rank, why in list(job.watch.gone.items()):
            self._lose(rank, why)
        if key in job.failed:
            transport.fail(job.failed[key])

    def on_message(self, message: Mapping[str, Any]) -> None:
        """Hear a message of the watch."""
        if not self._is_open:
            return
        if "gone" in message:
            self._lose(message["gone"], message["why"])
        elif message.get("group") != self._key:
            return
        elif "fails" in message:
            self.made.world.transport.fail(message["fails"])
        elif "asks" in message:
            self._job.watch.send(group=self._key, rank=self.made.rank, calls=self.count())
        elif "calls" in message:
            self._answers[message["rank"]] = message["calls"]

    def _lose(self, member: int, why: str) -> None:
        if member in self._members and self._is_open:
            text = f"rank {self._members.index(member)} {why}"
            self.made.world.transport.fail(text)
            self.messages.lose(self._members.index(member), RunError(text))

    def rest(self, on: bool) -> None:
        """Let collectives sleep between polls, or no longer: the program computes meanwhile."""
        self.made.world.transport.rests = on

    def door(self) -> int:
        """Return the address of the collectives as C functions (native/run/door.h)."""
        return int(self.made.bound.door())

    def fail(self, why: str) -> None:
        """Let collectives fail from now on, on all ranks."""
        self.made.world.transport.fail(why)
        self._job.watch.send(group=self._key, fails=why)

    def refuse(self, error: Exception) -> None:
        """Let the other ranks fail for an error of this rank's arguments: they may be in a call that it cannot join."""
        self.fail(f"rank {self.made.rank} refuses its arguments: {words_of(error)}")

    def explained(self, error: RunError) -> RunError:
        """Return the error of a failed call, with the rank that has caused it if that can be found out."""
        if "timeout after" in error.what:
            late = self._late()
            text = f"waiting for rank{'s' if len(late) > 1 else ''} {', '.join(map(str, late))}"
            return RunError(f"{error.what}, {text}" if late else error.what)
        until = time.monotonic() + VERDICT_S
        while "MPI" in error.what and not self._gone() and time.monotonic() < until:
            time.sleep(0.02)
        return RunError(gone) if (gone := self._gone()) else error

    def _gone(self) -> str:
        gone = self._job.watch.gone
        return next((f"rank {rank} {gone[its]}" for rank, its in enumerate(self._members) if its in gone), "")

    def _late(self) -> list[int]:
        """Return the ranks that have made fewer calls than this one, or do not answer."""
        self._answers = {}
        self._job.watch.send(group=self._key, asks=self.made.rank)
        until, own = time.monotonic() + ANSWER_S, self.count()
        while len(self._answers) < self.made.size and time.monotonic() < until:
            time.sleep(0.02)
        return [rank for rank in range(self.made.size) if self._answers.get(rank, -1) < own and rank != self.made.rank]

    def close(self) -> None:
        """Free the communicators, unless a rank has died: MPI might wait for it."""
        if self._is_open:
            self._is_open = False
            self.messages.close()
            if not self._job.watch.gone:
                self._aside.Free()
                self._comm.Free()
