"""comm: collectives on a user's MPI communicator, by the library's call or by a Program."""

from __future__ import annotations

import atexit
import platform
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail import _native
from dovetail.core import EnvironmentFault, OperatorError, RunError
from dovetail.ir.collectives import COLLECTIVES
from dovetail.machine import even_nodes
from dovetail.run.arrays import Array
from dovetail.run.engine import DTYPES
from dovetail.run.options import LEVELS
from dovetail.run.ranks.library import Calls, HostCalls, SharedCalls, Shim, build_shim
from dovetail.run.ranks.together import common, of_all
from dovetail.run.ranks.world import MOST_SHARED, World
from dovetail.run.reduce import REDUCE_OPS

KINDS = tuple(COLLECTIVES)  # their indices are the numbers of mpi_table.h
REDUCED = (*DTYPES, "complex64", "complex128")  # only the library reduces the last two
Rules = Mapping[str, Sequence[tuple[int, Any]]]  # collective -> (least bytes, Choice or None: the library's call)
call = _native.comm_call  # (number of kind, comm, array, out, op, root): False if it cannot do the call
_ALL_GATHER = KINDS.index("all_gather")
_MOST_NAMED = 1 << 24  # bytes; all of them are allocated, and a container's /dev/shm may have 64 MiB
_SERIALIZED = LEVELS.index("serialized")  # as MPICH and Open MPI number it


class CollectiveCall(NamedTuple):
    """One rank's request. `elements`: of its part if the whole is cut among ranks; `counts`: of a v-variant.

    Addresses are 0 if this rank has no such array. `dtype`: one of REDUCED; data that is only moved has any dtype of
    the same size. `num_bytes`: of the larger of a rank's input and output, equal on every rank.
    """

    kind: str
    src: int
    dst: int
    elements: int
    dtype: str
    num_bytes: int
    op: str = "sum"
    root: int = 0
    counts: NDArray[np.int64] | None = None  # by rank; for an all_to_all_v by source, then destination


class Service(NamedTuple):
    """A bound engine or script (neither: the library's call serves), and rows of its Program's buffers: input and
    output (-1: empty on this rank), and scratch buffers with their bytes."""

    engine: _native.Engine | None
    options: _native.EngineOptions
    in_place: bool = False
    input: int = -1
    output: int = -1
    scratch: Sequence[tuple[int, int]] = ()
    script: _native.Script | None = None


class Communicator:
    """A native communicator on a duplicate of the user's MPI communicator. Collective: all ranks make it together.

    It caches the engines of its latest calls, and ends when the user frees theirs.
    """

    def __init__(self, bound: _native.Communicator, hosts: Sequence[str], calls: Calls) -> None:
        self.bound, self.rank, self.size, self.calls = bound, bound.rank, bound.size, calls
        self.prepare: Prepare | None = None
        self.hosts = tuple(hosts)
        self.nodes = even_nodes(self.hosts)
        self.has_rules = False
        self._choices: list[Any] = []

    @cached_property
    def world(self) -> World:
        """The ranks, for runs of whole Programs."""
        return World(self.calls, self.bound)

    def set_rules(self, rules: Rules, dtypes: Mapping[str, str] | None = None) -> None:
        """Set which choice serves which size. Collective, with equal rules on all ranks.

        `dtypes`: by collective, the only dtype for which its rules hold, if any; other dtypes use the library.
        """
        self.bound.clear()
        self.has_rules, self._choices = True, []
        for number, kind in enumerate(KINDS):
            found = []
            for least, choice in rules.get(kind, ()):
                found.append((least, -1 if choice is None else len(self._choices)))
                self._choices += [] if choice is None else [choice]
            only = (dtypes or {}).get(kind)
            self.bound.set_rules(number, found, REDUCED.index(only) if only else -1)

    def choice(self, kind: str, num_bytes: int, dtype: str | None = None) -> Any:
        """Return the Choice for a collective of that size; None for the library's call."""
        row = self.bound.choice(KINDS.index(kind), num_bytes, REDUCED.index(dtype) if dtype else -1)
        return self._choices[row] if row >= 0 else None

    def run(self, request: CollectiveCall) -> None:
        """Execute a request. Raises RunError if MPI fails, or if a rank makes no progress within its `stall_s`."""
        words = self._words(request)
        while not self.bound.run(*words):
            choice = self.choice(request.kind, request.num_bytes, request.dtype)
            assert self.prepare is not None
            service: tuple[Any, ...] = self.prepare(request, choice, self)
            self.bound.add(*words, *service)

    def agree(self, request: CollectiveCall | None) -> None:
        """Raise OperatorError on all ranks if their arguments differ, or if one refuses its own (`request` None)."""
        names = ("collective", "counts", "op", "root", "dtype", "elements", "bytes", "begun")
        transport = self.world.transport
        begun, transport.begun = transport.begun, False  # so that nonblocking ranks match blocking ones
        asked = [*_numbers(request), int(begun)] if request else [-1] * len(names)
        try:
            everyone = self.gather(np.array(asked, np.int64))
        finally:
            transport.begun = begun
        for rank, theirs in enumerate(everyone):
            if request and theirs[0] < 0:
                what = f"rank {rank} refuses its arguments of {request.kind}"
                raise common(OperatorError(what, found="its own error gives the reason"))
            differ = np.flatnonzero(theirs != everyone[0])
            if request and len(differ) and everyone[0, 0] >= 0:
                what = names[differ[0]]
                values = (_said(what, int(row[differ[0]])) for row in (everyone[0], theirs))
                found = "{} {} on rank 0, {} on rank {}".format(what, *values, rank)
                found = f"counts on rank {rank} are not those on rank 0" if what == "counts" else found
                raise common(OperatorError(f"ranks call {request.kind} with different arguments", found=found))

    def gather(self, words: Array) -> Array:
        """Return every rank's `words`, one row each, by the library's call."""
        out = np.empty((self.size, *words.shape), words.dtype)
        self.bound.library(_ALL_GATHER, words.ctypes.data, out.ctypes.data, words.nbytes)
        return out

    def gather_number(self, number: int) -> bytes:
        """Return every rank's number, 8 bytes each: a fast `gather`."""
        own, everyone, own_place, place = self._places_of_numbers
        own[0] = number
        self.bound.library(_ALL_GATHER, own_place, place, own.nbytes)
        return everyone.tobytes()

    @cached_property
    def _places_of_numbers(self) -> tuple[Array, Array, int, int]:
        """Arrays for a number of this rank and of every rank, and their addresses."""
        own, everyone = np.empty(1, np.int64), np.empty(self.size, np.int64)
        return own, everyone, own.ctypes.data, everyone.ctypes.data

    def _words(self, request: CollectiveCall) -> tuple[Any, ...]:
        sides, all_counts = [], b""
        if request.counts is not None:
            sides, all_counts = request.counts.tolist(), request.counts.tobytes()
            if COLLECTIVES[request.kind].exchanges:
                sides = [*sides[self.rank], *(row[self.rank] for row in sides)]
        kind, _, op, root, dtype, elements, num_bytes = _numbers(request)
        return kind, request.src, request.dst, elements, dtype, op, root, num_bytes, sides, all_counts


# (request, its choice by the rules, communicator) -> what serves such requests from now on.
Prepare = Callable[[CollectiveCall, Any, Communicator], Service]
_known: dict[int, Communicator] = {}  # by key of the native one


def communicator_of(
    comm: Any, prepare: Prepare, begin: Callable[[Communicator], None], *, remember: bool = True
) -> Communicator:
    """Return Dovetail's communicator for the user's. On a new one all ranks call `begin` together, which sets rules.

    `prepare` is called once for each new kind of request that the rules do not leave to the library. `remember`: `call`
    serves `comm` from now on. Raises OperatorError if `comm` is no communicator of this program.
    """
    found = adopted(comm)
    if not found.has_rules:
        found.prepare = prepare
        begin(found)
    if remember:
        _native.comm_remember(comm, found.bound)
    return found


def world_of(comm: Any) -> World:
    """Return the ranks of the user's communicator, on the duplicate that its collectives use."""
    return adopted(comm).world


def world_aside(comm: Any) -> World:
    """Return the ranks of the user's MPI communicator on a duplicate that nothing else uses. All of them call it."""
    return World(shim(), _native.comm_adopt(shim().address, _fortran(comm)))


def end_begun(bound: _native.Communicator) -> None:
    """Finish the calls that were begun on a communicator, before its ranks free it."""
    if made := known_by(bound):
        made.world.requests.end()


def adopted(comm: Any, *, begins: bool = False) -> Communicator:
    """Return Dovetail's communicator for the user's. The first time, all ranks create it together, as a duplicate.

    Calls that were begun end first, unless the caller `begins` another one.
    """
    fortran, calls, bound, fault = _fortran(comm), None, None, None
    try:
        calls = _calls(comm)
        bound = _native.comm_find(calls.address, fortran)
    except EnvironmentFault as error:  # for example no compiler on one host: its ranks know no communicator yet
        fault = error
    if bound is not None and bound.key in _known:
        made = _known[bound.key]
        if bound.has_begun and not begins:
            made.world.requests.drain()
        return made
    memory = _SharedMemory(comm)
    try:
        hosts, names = zip(*of_all(comm, lambda: (platform.node(), memory.made()), fault), strict=True)
        one_host = len(set(hosts)) == 1 and comm.Get_size() > 1 and not isinstance(calls, HostCalls)
        assert calls is not None
        bound = _native.comm_adopt(calls.address, fortran) if bound is None else bound
        try:
            opened = of_all(comm, lambda: memory.share(_remember(bound, hosts, calls), names[0] if one_host else ""))
            if one_host and not all(opened):
                names = tuple(of_all(comm, lambda: memory.made(named=True)))
                opened = of_all(comm, lambda: memory.share(bound, names[0]))
        except BaseException:
            _known.pop(bound.key, None)  # on all ranks, which start over the next time
            raise
        if not all(opened):
            bound.unshare()
    finally:
        memory.hide()
    return _known[bound.key]


def known(comm: Any) -> Communicator | None:
    """Return Dovetail's communicator for the user's; None if there is none yet, or MPI cannot be asked."""
    try:
        fortran = _fortran(comm)  # first, because MPI may not run if `comm` is none of its communicators
        bound = _native.comm_find(_calls(comm).address, fortran)
    except Exception:
        return None
    return _known.get(bound.key) if bound is not None else None


def known_by(bound: _native.Communicator) -> Communicator | None:
    """Return Dovetail's communicator for a native one, which may have been freed."""
    return _known.get(bound.key)


class _SharedMemory:
    """Memory of one host: rank 0 creates it, all ranks open it, and then its name is removed."""

    def __init__(self, comm: Any) -> None:
        self._size, self._makes = comm.Get_size(), comm.Get_rank() == 0
        self._made: _native.Segment | None = None
        self._bound: _native.Communicator | None = None

    def made(self, named: bool = False) -> str:
        """Create the memory on rank 0, and return its name; "" on other ranks, if that fails, or for a single rank."""
        self.hide()
        if self._makes and self._size > 1:
            with suppress(RuntimeError):
                most = _MOST_NAMED if named else MOST_SHARED
                self._made = _native.Segment.make(_native.comm_shared_bytes(self._size, most), named)
        return self._made.name if self._made is not None else ""

    def share(self, bound: _native.Communicator, name: str) -> bool:
        """Return whether it was opened under this name, for the communicator.

        Rank 0 has it open, and does not open it again: a process loses its locks on a file when it closes any copy.
        """
        if not name:
            return False
        try:
            bound.share(self._made if self._made is not None else _native.Segment.open(name))
        except RuntimeError:
            return False
        self._made, self._bound = None, bound
        return True

    def hide(self) -> None:
        if self._bound is not None:
            self._bound.hide()
        self._made = self._bound = None


def _remember(bound: _native.Communicator, hosts: Sequence[str], calls: Calls) -> _native.Communicator:
    """Register a new communicator, and return `bound`."""
    for key in [key for key, old in list(_known.items()) if old.bound.freed]:
        _known.pop(key, None)
    made = Communicator(bound, hosts, calls)
    assert made.world.size == len(made._places_of_numbers[1])  # created here, where all ranks raise errors
    _known[bound.key] = made
    return bound


def _numbers(request: CollectiveCall) -> list[int]:
    counts = 0 if request.counts is None else zlib.crc32(request.counts.tobytes())
    codes = REDUCE_OPS.index(request.op), request.root, REDUCED.index(request.dtype)
    return [KINDS.index(request.kind), counts, *codes, request.elements, request.num_bytes]


def _said(name: str, number: int) -> object:
    words: dict[str, Sequence[str]] = {"collective": KINDS, "dtype": REDUCED, "op": REDUCE_OPS}
    return words[name][number] if name in words else number


def _fortran(comm: Any) -> int:
    if not hasattr(comm, "py2f"):
        hint = "dovetail.world(), or mpi4py.MPI.COMM_WORLD"
        raise OperatorError(f"no communicator, but {type(comm).__name__}", hint=hint)
    if not comm:
        raise OperatorError("the communicator is null", hint="was it freed, or is this rank not in it?")
    if comm.Is_inter():
        raise OperatorError("an intercommunicator has no such collectives", hint="comm.Merge()")
    return int(comm.py2f())


@cache
def shim() -> Shim:
    """Load the MPI of this process."""
    atexit.register(_native.comm_let_go)
    return Shim(build_shim())


def _calls(comm: Any) -> Calls:
    """The calls that serve a communicator, set up for this process. Raises RunError if this thread may not call MPI."""
    if isinstance(own := getattr(comm, "calls", None), SharedCalls):
        return own
    level, is_main = _native.comm_setup(shim().address, _native.mpi_reduce_function())
    if level < _SERIALIZED and not is_main:
        raise RunError("MPI was started for calls by the main thread only", hint="mpi4py.rc.thread_level = 'multiple'")
    return shim()
