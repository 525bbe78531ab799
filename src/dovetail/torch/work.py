"""work: collectives of one group, done one after the other: by the caller, or by a thread of the group."""

from __future__ import annotations

import threading
import time
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

import torch
import torch.distributed as dist

from dovetail.core import RunError

NO_LIMIT_S = -1.0
SHORT_BYTES = 1 << 16  # a call of so few bytes takes about as long as waking a thread
NAP_S, LINGER_S = 1e-4, 2e-2  # between two looks for calls; how long the thread looks after its last call


class GroupError(RunError, RuntimeError):
    """A collective or message of a process group that failed: a rank died, ended, stalled or gave other sizes."""


class Ended(dist.Work):  # type: ignore[misc]
    """Work that was done before the call returned."""

    def __init__(self, results: Sequence[Any] = ()) -> None:
        super().__init__()
        self._results = list(results)

    def wait(self, timeout: Any = None) -> bool:
        """Return True."""
        return True

    def is_completed(self) -> bool:
        """Return True."""
        return True

    def is_success(self) -> bool:
        """Return True."""
        return True

    def exception(self) -> Any:
        """Return None."""
        return None

    def result(self) -> list[Any]:
        """Return the tensors with the results."""
        return self._results

    def synchronize(self) -> None:
        """Do nothing."""

    def get_future(self) -> Any:
        """Return a future that has the results."""
        future = torch.futures.Future()
        future.set_result(self._results)
        return future


class Work(dist.Work):  # type: ignore[misc]
    """Work of another thread. `results`: tensors, valid once it has ended.

    `wait` raises the error of the collective. So does the future. `worker`: does it, if that is a
    collective.
    """

    def __init__(self, results: Sequence[Any], worker: Worker | None = None) -> None:
        super().__init__()
        self._results = list(results)
        self._worker = worker
        self._error: BaseException | None = None
        self._is_done = False
        self._latch = allocate_lock()  # released when it has ended
        self._latch.acquire()
        self._changes = allocate_lock()  # of `_future` and `_is_done`, by several threads
        self._future: Any = None

    def finish(self, error: BaseException | None = None) -> None:
        """Mark it as ended, with the error that it raised."""
        with self._changes:
            self._error, self._is_done = error, True
            future = self._future
        self._latch.release()
        if future is not None:
            future.set_result(self._results)

    def wait(self, timeout: Any = None) -> bool:
        """Wait until it has ended, at most for `timeout` if that is given. Raise its error, if it has one."""
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        if not self._is_done:
            self._await(seconds if seconds > 0 else NO_LIMIT_S)
        if self._error is not None:
            raise self._error
        return True

    def _await(self, limit_s: float) -> None:
        if self._worker is not None:
            self._worker.hasten(self, helps=limit_s < 0)
        if not self._latch.acquire(timeout=limit_s):
            raise GroupError(f"the collective did not end within {limit_s:g} s")
        self._latch.release()  # for other threads that wait

    def is_completed(self) -> bool:
        """Return whether it has ended."""
        return self._is_done

    def is_success(self) -> bool:
        """Return whether it has ended without an error."""
        return self._is_done and self._error is None

    def exception(self) -> BaseException | None:
        """Return its error; None if it has none, or has not ended."""
        return self._error

    def result(self) -> list[Any]:
        """Wait, and return the tensors with the results."""
        self.wait()
        return self._results

    def synchronize(self) -> None:
        """Wait until it has ended."""
        self.wait()

    def get_future(self) -> Any:
        """Return a future of the tensors with the results."""
        with self._changes:
            is_new = self._future is None
            if is_new:
                self._future = torch.futures.Future()
            has_ended = self._is_done
        if is_new and has_ended:
            self._future.set_result(self._results)
        elif is_new and self._worker is not None:
            self._worker.wake()
        return self._future.then(self._value)

    def _value(self, future: Any) -> Any:
        if self._error is not None:
            raise self._error
        return future.value()


def _is_short(results: Sequence[Any]) -> bool:
    """Return whether these are the results of a call that does not wake the thread."""
    return bool(sum(each.nbytes for each in results) <= SHORT_BYTES)


class Worker:
    """Does the calls of one group, in the order in which they come: on its thread, or on one that waits for them.

    A call that is waited for is done by its caller, unless it is under way: handing it to the thread and back takes
    longer than a short collective. Nor does a call wake the thread if it moves few bytes and has no future: the thread
    looks for such calls by itself, and ends its rest when none have come for a while. `rest` gets whether a call
    sleeps between polls: on the thread it does, until somebody waits for it.
    """

    def __init__(self, name: str, rest: Callable[[bool], None] = lambda _: None) -> None:
        self._name, self._rest = name, rest
        self._turn = allocate_lock()  # held by the thread that does a call
        self._calls: deque[tuple[Callable[[], Any], Work]] = deque()  # those that have not begun
        self._bell: SimpleQueue[bool] = SimpleQueue()  # wakes the thread; False: it ends
        self._looks = False  # whether the thread looks for calls without being woken
        self._thread: threading.Thread | None = None
        self._giving = allocate_lock()

    def now(self, call: Callable[[], Any]) -> Any:
        """Do a call after all earlier ones, and return its result."""
        if self._turn.acquire(False):
            try:
                if not self._calls:
                    return call()
            finally:
                self._turn.release()
        found: list[Any] = []
        self.later(lambda: found.append(call()), ()).wait()
        return found[0]

    def later(self, call: Callable[[], Any], results: Sequence[Any], title: str = "") -> Work:
        """Let the thread do a call after all earlier ones. Return at once. Profiles do not show it."""
        work = Work(results, self)
        is_short = _is_short(results)
        with self._giving:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._calls.append((call, work))
            if not is_short or not self._looks:
                self._looks = True
                self.wake()
        return work

    def wake(self) -> None:
        """Let the thread do now what it would do a little later."""
        self._bell.put(True)

    def close(self, limit_s: float) -> None:
        """End the thread after the calls that it has, or leave it after `limit_s` seconds."""
        if self._thread is not None:
            self._bell.put(False)
            self._thread.join(limit_s)
            self._thread = None

    def _run(self) -> None:
        goes_on, worked_s = True, time.monotonic()
        while goes_on or self._calls:
            if self._calls:
                with self._turn:
                    self._rest(True)  # the program computes, until it waits
                    is_short = self._do_next()
                    self._rest(False)
                if is_short:
                    worked_s = time.monotonic()
                continue
            with self._giving:
                self._looks = bool(self._calls) or time.monotonic() - worked_s < LINGER_S
            with suppress(Empty):
                goes_on = self._bell.get(timeout=NAP_S if self._looks else None)

    def hasten(self, work: Work, *, helps: bool) -> None:
        """Do the calls up to that of `work`, unless the thread does. If so, it no longer sleeps between polls."""
        self._rest(False)
        while helps and not work.is_completed() and self._turn.acquire(False):
            try:
                self._do_next()
            finally:
                self._turn.release()

    def _do_next(self) -> bool:
        """Do the first call, if there is one; return whether it is short. The turn is this thread's."""
        if not self._calls:
            return False
        call, work = self._calls.popleft()
        error = None
        try:
            call()
        except BaseException as raised:
            error = raised
        work.finish(error)
        return _is_short(work._results)
