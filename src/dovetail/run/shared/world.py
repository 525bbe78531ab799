"""world: communicators without MPI, between the processes of one host that their launcher has started."""

from __future__ import annotations

import atexit
import os
import threading
from functools import cache
from typing import Any

from dovetail import _native
from dovetail.core import EnvironmentFault, OperatorError, RunError
from dovetail.run.ranks.comm import known
from dovetail.run.ranks.library import SharedCalls
from dovetail.run.ranks.world import World
from dovetail.run.shared.environment import place_of
from dovetail.run.shared.stores import Job, Store, wait_for

ARRIVE_S = 60.0  # seconds for all ranks to start; $DOVETAIL_ARRIVE_S if ranks wait in a queue
STALL_S = 600.0  # seconds that a call of a communicator waits for a rank
FAREWELL_S = 2.0  # seconds that rank 0 waits, if ranks cannot meet, until the others have read it
KINDS = ("anonymous", "named")  # of memory, in the order in which they are tried
NAMED_BUDGET = 4 << 20  # bytes of all rings in /dev/shm, which may be small


class Comm:
    """A communicator of processes of one host. Dovetail takes it where it takes one of mpi4py. It has those methods of
    mpi4py's that do not move arrays; `dovetail.all_reduce(array, comm)` and the other collectives move them.

    Its calls raise RunError, naming the rank, if a rank has died, has ended, or does not call within ten minutes.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self.calls = self._new_calls()
        self.world = World(self.calls, address=_native.shared_communicator(number))

    def _new_calls(self) -> SharedCalls:
        return calls()

    @property
    def rank(self) -> int:
        """This process's number."""
        return self.world.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.world.size

    def Get_rank(self) -> int:
        """Return this process's number."""
        return self.world.rank

    def Get_size(self) -> int:
        """Return the number of ranks."""
        return self.world.size

    def Is_inter(self) -> bool:
        """Return False: there are no intercommunicators."""
        return False

    def py2f(self) -> int:
        """Return the number of the communicator in this process."""
        return self._number

    def __bool__(self) -> bool:
        return self._number > 0

    def __repr__(self) -> str:
        return f"<Comm: rank {self.rank} of {self.size} on one host>" if self else "<Comm: freed>"

    def allgather(self, value: Any) -> list[Any]:
        """Return every rank's picklable value, on every rank."""
        return self._usable.allgather(value, STALL_S)

    def gather(self, value: Any, root: int = 0) -> list[Any] | None:
        """Return every rank's picklable value on the root, None on other ranks."""
        found = self.allgather(value)
        return found if self.rank == root else None

    def bcast(self, value: Any, root: int = 0) -> Any:
        """Return the root's picklable value on every rank."""
        return self.allgather(value if self.rank == root else None)[root]

    def barrier(self) -> None:
        """Wait for all ranks."""
        self._usable.barrier(STALL_S)

    Barrier = barrier

    def Split(self, color: int | None = 0, key: int = 0) -> Comm | None:
        """Return a communicator of the ranks that give the same `color`, in the order of `key`, then of their ranks.

        None if `color` is None. All ranks call it together.
        """
        asked = self.allgather((color, key))
        members = sorted((rank for rank, (its, _) in enumerate(asked) if its == color), key=lambda rank: asked[rank][1])
        number = _divide(self, members if color is not None else [])
        return Comm(number) if number else None

    def Dup(self) -> Comm:
        """Return a new communicator of the same ranks."""
        made = self.Split(0)
        assert made is not None
        return made

    def Free(self) -> None:
        """Free the communicator, and what Dovetail keeps for it. Other ranks no longer wait for this one."""
        if self._number:
            self.world.requests.drain()
            _native.shared_part(self._number)
            self._number = 0

    def limit(self, seconds: float) -> None:
        """Let collectives that Dovetail makes on it from now on fail after waiting `seconds` for a rank; 0: never."""
        _native.shared_limit(self._number, seconds)

    def rest(self, on: bool) -> None:
        """Let collectives that Dovetail makes on it sleep between polls, or no longer: for this rank computes."""
        if made := known(self):
            made.world.transport.rests = on
        _native.shared_rest(self._number, on)

    def fail(self, why: str) -> None:
        """Let collectives that Dovetail makes on it fail from now on, on all ranks: one failed, perhaps here only."""
        if made := known(self):
            made.bound.unshare()
        _native.shared_fail(self._number, why)

    @property
    def _usable(self) -> World:
        if not self._number:
            raise OperatorError("the communicator is null", hint="was it freed?")
        return self.world


@cache
def calls() -> SharedCalls:
    """Return the calls of this process. When the process ends, it tells the other ranks."""
    atexit.register(_leave)
    return SharedCalls()


def _leave() -> None:
    _world.cache_clear()
    _native.comm_let_go()
    _native.shared_leave()


def world() -> Comm:
    """Return the communicator of all ranks that this process's launcher has started on this host; no MPI is needed.

    All ranks call it. In the first call they wait for each other. Launchers: `dovetail launch`, torchrun, mpiexec,
    srun, or whoever sets $DOVETAIL_RANK, $DOVETAIL_RANKS and $DOVETAIL_STORE, a folder that only the user can write.

    Raises
    ------
    EnvironmentFault
        If no launcher has started this process, if ranks are on several hosts, or if they cannot share memory.
    RunError
        If a rank does not call it within a minute ($DOVETAIL_ARRIVE_S seconds). The error names the rank.
    """
    with _one_thread:
        return _world()


_one_thread = threading.Lock()


@cache
def _world() -> Comm:
    place = place_of()
    limit_s = float(os.environ.get("DOVETAIL_ARRIVE_S") or ARRIVE_S)
    return Comm(join(Job(place.store, place.rank, place.size, 2 * limit_s), place.rank, place.size, limit_s))


def join(store: Store, rank: int, size: int, limit_s: float = ARRIVE_S) -> int:
    """Share memory among the ranks that meet in `store`, and return the number of their communicator.

    Memory without a name is tried first. If some rank cannot open it, as in another PID namespace, it has a name in
    /dev/shm until all ranks have opened it. Raises the errors of `world`.
    """
    faults: list[str] = []
    for kind in KINDS:
        number, faults = _join_by(store, kind, rank, size, limit_s)
        if number:
            return number
    _give_up(store, rank, size)
    raise EnvironmentFault("the ranks cannot share memory", found="; ".join(dict.fromkeys(faults)))


def _join_by(store: Store, kind: str, rank: int, size: int, limit_s: float) -> tuple[int, list[str]]:
    """Share memory of one kind; return the number of the communicator, or 0 and the reasons, the same on all ranks."""
    number, fault = 0, ""
    try:
        memory = _made(store, kind, size) if rank == 0 else _opened(store, kind, limit_s)
        number = _native.shared_join(memory, rank, size)
    except RuntimeError as error:
        fault = f"rank {rank}: {error}"
    store.set(f"{kind}.{rank}", fault or "joined")
    if rank == 0:
        said = wait_for(store, [f"{kind}.{each}" for each in range(size)], limit_s)
        missing = [str(each) for each, text in enumerate(said) if text is None]
        faults = [text for text in said if text not in (None, "joined")]
        agreed = f"missing {', '.join(missing)}" if missing else "\n".join(map(str, faults)) or "joined"
        if number:
            _native.shared_hide(number)
        store.set(kind, agreed)
    else:
        agreed = _heard(store, kind, limit_s)
    if agreed == "joined":
        _end_meeting(store, number, rank, size, limit_s)
        return number, []
    if number:
        _native.shared_part(number)
    if agreed.startswith("missing "):
        _give_up(store, rank, size)
        which = agreed.removeprefix("missing ")
        plural = "ranks" if "," in which else "rank"
        raise RunError(f"{plural} {which} of {size} did not come within {limit_s:.0f} s", hint="look at their output")
    return 0, agreed.splitlines()


def _give_up(store: Store, rank: int, size: int) -> None:
    """Let rank 0 close the store once the other ranks that have started have read it."""
    store.set(f"heard.{rank}", "")
    if rank == 0:
        wait_for(store, [f"heard.{each}" for each in range(size)], FAREWELL_S)
        store.close()


def _made(store: Store, kind: str, size: int) -> _native.Segment:
    """Make the memory on rank 0, and put its name into the store; an empty name if it cannot be made."""
    try:
        memory = _memory(kind, size)
    except RuntimeError:
        store.set(f"{kind}.memory", "")
        raise
    store.set(f"{kind}.memory", memory.name)
    return memory


def _memory(kind: str, size: int) -> _native.Segment:
    named = kind == "named"
    num_bytes = _native.shared_bytes(size, NAMED_BUDGET) if named else _native.shared_bytes(size)
    return _native.Segment.make(num_bytes, named)


def _opened(store: Store, kind: str, limit_s: float) -> _native.Segment:
    name = _heard(store, f"{kind}.memory", limit_s)
    if not name:
        raise RuntimeError("rank 0 could not make any")
    return _native.Segment.open(name)


def _heard(store: Store, key: str, limit_s: float) -> str:
    """Return the value that rank 0 sets for a key."""
    (found,) = wait_for(store, [key], 2 * limit_s)  # it waits for others itself
    if found is None:
        raise RunError(f"rank 0 did not come within {2 * limit_s:.0f} s", hint="look at its output")
    return found


def _end_meeting(store: Store, number: int, rank: int, size: int, limit_s: float) -> None:
    """Let rank 0 close the store once all ranks have read it. Until then none goes on: the next job may meet there."""
    ranks = World(calls(), address=_native.shared_communicator(number))
    ranks.barrier(limit_s)
    if rank == 0:
        store.close()
    ranks.barrier(limit_s)


def _divide(parent: Comm, members: list[int]) -> int:
    """Share memory among `members`, ranks of `parent`. Return the number of their communicator; 0 if there are none.

    All ranks of `parent` call it. They exchange messages through `parent`: its errors name a rank that dies meanwhile.
    """
    number = 0
    for kind in KINDS:
        memory, name, fault = None, "", None
        waits = bool(members) and not number
        try:
            if waits and members[0] == parent.rank:
                memory = _memory(kind, len(members))
                name = memory.name
        except RuntimeError as error:
            fault = f"rank {parent.rank}: {error}"
        names = parent.allgather(name)
        try:
            if waits and not fault:
                memory = memory or _native.Segment.open(names[members[0]])
                number = _native.shared_join(memory, members.index(parent.rank), len(members))
        except RuntimeError as error:
            fault = f"rank {parent.rank}: {error}"
        faults = parent.allgather(fault)
        if number:
            _native.shared_hide(number)
        own = [faults[member] for member in members if faults[member]]
        if own and number:
            _native.shared_part(number)
            number = 0
        if not any(faults):
            return number
    if members and not number:
        raise EnvironmentFault("the ranks cannot share memory", found="; ".join(own))
    return number
