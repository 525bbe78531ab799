"""world: the ranks of one communicator, and control messages between them with time limits."""

from __future__ import annotations

import ctypes
import pickle
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from dovetail import _native
from dovetail.core import RunError
from dovetail.run.options import LEVELS, Level
from dovetail.run.ranks.library import ON_COMM, Calls
from dovetail.run.ranks.together import Fault, OtherRankFailed, Unanswered, common, fault_of, first_of
from dovetail.run.requests import RequestQueue

if TYPE_CHECKING:
    from dovetail.trace.clocks import Meeting

CONTROL_TAG = 20000
MOST_SHARED = 1 << 30  # bytes that channels may take; only pages that messages have touched are allocated
ANSWER_S = 600.0  # a rank that sends nothing for this long inside `together` counts as failed
_ANYHOW = 0  # a send may end before its receive is posted


class World:
    """The ranks of one communicator, and small control messages between them.

    Either all ranks of this MPI job (initialises MPI at `level` unless it is), or those of `bound`, a user's
    communicator, or those of the native communicator at `address`. Ranks are numbered as in that communicator, also in
    errors. `provided`: the level that MPI has, as an index of `run.options.LEVELS`.
    """

    def __init__(
        self, calls: Calls, bound: _native.Communicator | None = None, address: int = 0, *, level: Level = "funneled"
    ) -> None:
        self._calls, self._bound = calls, bound  # the duplicate lives as long as this reference
        reduce = _native.mpi_reduce_function()
        if bound is None and not address:
            self._comm, provided = ctypes.c_void_p(), ctypes.c_int(LEVELS.index(level))
            self._call("init", ctypes.byref(provided), ctypes.c_void_p(reduce), ctypes.byref(self._comm))
            self.provided = provided.value
        else:
            self._comm = ctypes.c_void_p(bound.address if bound is not None else address)
            self.provided, _ = _native.comm_setup(calls.address, reduce)
        made = bound.transport if bound is not None else None
        self.transport = made or _native.mpi_transport(calls.address, self._comm.value or 0)
        self.rank, self.size = self._call("rank"), self._call("size")
        self.requests = RequestQueue(self.transport, self.provided, self.abort, bound)
        self._faults: dict[int, Fault] = {}
        self._is_together = False

    @property
    def has_all(self) -> bool:
        """Whether these are all ranks of the job, and not those of a user's communicator."""
        return self._bound is None

    @property
    def bound(self) -> _native.Communicator | None:
        """The user's communicator that was adopted, if these are its ranks."""
        return self._bound

    @property
    def freed(self) -> bool:
        """Whether the user has freed the communicator; nothing can run on it then."""
        return self._bound is not None and bool(self._bound.freed)

    @cached_property
    def neighbours(self) -> _native.Neighbours | None:
        """Channels between all ranks in memory of their host; None if they share none. Collective at first use."""
        if self._bound is not None:
            found: _native.Neighbours | None = self._bound.neighbours
            return found
        memory = None
        if self.rank == 0:
            with suppress(RuntimeError):
                memory = _native.Segment.make(_native.neighbours_bytes(self.size, MOST_SHARED))
        name, made = self.share(memory.name if memory is not None else ""), None
        with suppress(RuntimeError):
            made = _native.Neighbours(_native.Segment.open(name), self.rank, self.size)
        return made if self.share(all(self.gather(made is not None))) else None

    @property
    def executor(self) -> str:
        """Name of the executor that runs jobs on such ranks."""
        return self._calls.executor

    @property
    def lends(self) -> bool:
        """Whether a message may stay where it lies, in memory that all ranks map, until its receiver has read it."""
        return self._calls.lends and self.size > 1

    def lend(self, region: _native.Region) -> None:
        """Let the other ranks read messages where they lie in `region`. All ranks call it together."""
        region.lend(self._comm.value or 0)

    @property
    def library(self) -> str:
        """Name and version of the library."""
        return self._calls.library

    @property
    def what(self) -> str:
        """What connects the ranks, as errors name it."""
        return self._calls.what

    def abort(self, code: int) -> None:
        """End all processes of the job with this exit code."""
        self._call("abort", code)

    def finalize(self) -> None:
        """Finalize the library, if that was not done."""
        self._call("finalize")

    def send(self, payload: Any, dst: int, limit_s: float = 60.0) -> None:
        """Send a picklable object; control traffic only."""
        data = pickle.dumps(payload)
        size = np.array([len(data)], np.int64)
        self._finish(self._start("isend", size.ctypes.data, 8, dst), limit_s, dst)
        self._finish(self._start("isend", data, len(data), dst), limit_s, dst)

    def recv(self, src: int, limit_s: float = 60.0) -> Any:
        """Receive an object from `src`. Raises RunError if none arrives in time; a later call may still receive it."""
        size = np.zeros(1, np.int64)
        self._take(size.ctypes.data, 8, src, limit_s)
        data = ctypes.create_string_buffer(int(size[0]))
        self._take(data, len(data), src, limit_s)
        return pickle.loads(data.raw)

    def gather(self, payload: Any, limit_s: float = 60.0) -> list[Any]:
        """Return every rank's payload on rank 0, an empty list elsewhere. Collective."""
        if self.rank:
            self.send(payload, 0, limit_s)
            return []
        return [payload, *(self._heard(src, limit_s) for src in range(1, self.size))]

    def share(self, payload: Any, limit_s: float = 60.0) -> Any:
        """Return rank 0's payload on every rank. Collective."""
        if self.rank:
            return self._heard(0, limit_s)
        for dst in range(1, self.size):
            self.send(payload, dst, limit_s)
        return payload

    def allgather(self, payload: Any, limit_s: float = 60.0) -> list[Any]:
        """Return every rank's payload on every rank. Collective."""
        found: list[Any] = self.share(self.gather(payload, limit_s), limit_s)
        return found

    @contextmanager
    def together(self) -> Iterator[None]:
        """Make all ranks reach the end of the block, or make all raise. Collective.

        A rank that failed raises its own error, the others that of the lowest rank that failed. Inside the block ranks
        may communicate by `gather` and `share` only. At its end each rank reports success. A nested block
        is part of the outer one.
        """
        self.requests.drain()
        if self._is_together:
            yield
            return
        self._is_together = True
        self._faults.clear()
        try:
            yield
            self.share(self.gather(None, ANSWER_S)[:1], ANSWER_S)
        except Unanswered:
            raise
        except OtherRankFailed:
            self._exchange_faults(Fault(self.rank))
            raise common(first_of(self._faults).raised()) from None
        except BaseException as error:
            self._exchange_faults(fault_of(self.rank, error))
            common(error)
            raise
        finally:
            self._is_together = False

    def _exchange_faults(self, own: Fault) -> None:
        """Send one fault as the last message, to rank 0 and from there to all; drop earlier messages of the others."""
        if self.rank == 0 and own.text:
            self._faults[0] = own
        others = range(1, self.size) if self.rank == 0 else (0,)
        last = own if self.rank else first_of(self._faults)
        for other in others:
            self.send(last, other, ANSWER_S)
        for other in others:
            while other not in self._faults:
                found = self.recv(other, ANSWER_S)
                if isinstance(found, Fault):
                    self._faults[other] = found

    def _heard(self, src: int, limit_s: float) -> Any:
        found = self.recv(src, limit_s)
        if isinstance(found, Fault):
            self._faults[src] = found
            raise OtherRankFailed(found)
        return found

    def barrier(self, limit_s: float = 60.0) -> None:
        """Wait for all ranks. Raises RunError if a rank does not arrive within the limit."""
        handle = ctypes.c_int()
        self._call("icollective", 5, None, None, ctypes.c_longlong(0), 2, 0, 0, -1, ctypes.byref(handle))
        self._finish(handle.value, limit_s, None)

    def sum(self, array: np.ndarray[Any, Any], limit_s: float = 120.0) -> np.ndarray[Any, Any]:
        """Return the float64 sum over ranks of an array that has the same shape on all."""
        source, result = np.ascontiguousarray(array, np.float64), np.empty(array.shape)
        handle, count = ctypes.c_int(), ctypes.c_longlong(source.size)
        data = (ctypes.c_void_p(source.ctypes.data), ctypes.c_void_p(result.ctypes.data))
        self._call("icollective", 0, *data, count, 3, 0, 0, -1, ctypes.byref(handle))
        self._finish(handle.value, limit_s, None)
        return result

    def meet(self, limit_s: float = 60.0) -> list[Meeting]:
        """Compare clocks along a tree, on all ranks together. Return the meeting with this rank's parent, if any."""
        from dovetail.trace.clocks import Meeting  # imported only by those who compare clocks

        try:
            found = Meeting(*_native.meet(self.transport, CONTROL_TAG, limit_s))
        except RuntimeError as error:
            raise RunError(str(error), hint="look at that rank's output") from error
        return [found] if self.rank else []

    def begin(self, name: str, data: Any, num_bytes: int, peer: int, tag: int) -> int:
        """Begin an "isend" or "irecv" of bytes at `data`, a pointer. Return its number, for `test` and `cancel`."""
        handle, how = ctypes.c_int(), (_ANYHOW,) if name == "isend" else ()
        self._call(name, data, ctypes.c_longlong(num_bytes), peer, tag, *how, ctypes.byref(handle))
        return handle.value

    def test(self, handle: int) -> bool:
        """Return whether a send or receive has ended. Raise RunError if it failed. After either it is no more."""
        done = ctypes.c_int()
        self._call("test", handle, ctypes.byref(done))
        return bool(done.value)

    def cancel(self, handle: int) -> None:
        """Cancel a send or receive that has not ended."""
        self._call("cancel", handle)

    def _start(self, name: str, data: Any, num_bytes: int, peer: int) -> int:
        pointer = data if not isinstance(data, int) else ctypes.c_void_p(data)
        return self.begin(name, pointer, num_bytes, peer, CONTROL_TAG)

    def _take(self, data: Any, num_bytes: int, src: int, limit_s: float) -> None:
        handle = self._start("irecv", data, num_bytes, src)
        try:
            self._finish(handle, limit_s, src)
        except BaseException:
            self.cancel(handle)  # a late message would overwrite memory that is reused by then
            raise

    def _finish(self, handle: int, limit_s: float, peer: int | None) -> None:
        begin = time.monotonic()
        while not self.test(handle):
            waited_s = time.monotonic() - begin
            if waited_s > limit_s:
                who = f"rank {peer}" if peer is not None else "some rank"
                raise Unanswered(
                    f"{who} did not answer rank {self.rank} within {limit_s:.0f} s", hint="look at that rank's output"
                )
            if waited_s > 2e-4:
                time.sleep(2e-5)

    def _call(self, name: str, *arguments: Any) -> int:
        return self._calls.call(name, *([self._comm] if name in ON_COMM else []), *arguments)
