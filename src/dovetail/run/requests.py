"""requests: non-blocking calls. A thread runs them in order while the caller computes.

All ranks begin the same calls in the same order, and a blocking call runs after all calls begun before it: so every
rank of a communicator makes the same calls in the same order, whenever it waits. While the caller computes, the
thread sleeps between polls of MPI, because it may share the caller's core; while the caller waits, it spins.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from dovetail import _native
from dovetail.run.options import LEVELS
from dovetail.run.ranks.together import common, words_of

R = TypeVar("R")
THREAD_MULTIPLE = LEVELS.index("multiple")  # as MPICH and Open MPI number it
IDLE_S = 1.0  # seconds without calls after which the thread ends
SAID_S = 2.0  # seconds after which a process that waits at its end prints why
EXIT_S = 600.0  # seconds that a process waits at its end for begun calls; then it ends the job
READ_S = 0.5  # seconds in which the launcher can read what was printed: it drops the rest when the job ends


class Request(Generic[R]):
    """A non-blocking call: `dovetail.begin_all_reduce`, other `begin_…` functions and `Bound.begin` return it.

    Until the call has ended, the request refers to its arrays; do not write them or read its results. A request
    that is dropped still runs; if it fails, the next call on its communicator raises the error.
    """

    def __init__(self, queue: RequestQueue, call: Callable[[], R]) -> None:
        self._queue = queue
        self._call: Callable[[], R] | None = call
        self._result: R | None = None
        self._error: BaseException | None = None

    def wait(self) -> R:
        """Wait until the call has ended, and return its result: that of the blocking call. Repeatable.

        Requests may be waited for in any order. Ctrl-C ends the wait, not the call: wait again.

        Raises
        ------
        DovetailError
            The error of the blocking call, on every rank. Calls that were begun before an error is raised, and come
            after the failed one, fail with the same error and transfer nothing. Calls begun later run.
        """
        self._queue.finish(self)
        if self._error is not None:
            self._queue.take_error(self._error)
            raise self._error
        return self._result  # type: ignore[return-value]  # without an error there is one

    def test(self) -> bool:
        """Return whether the call has ended, in a result or an error; `wait` then returns or raises at once.

        Returns at once, unless MPI was started for calls by one thread at a time: then it runs the call, as `wait`
        does, because no other thread may.
        """
        if not self._queue.overlaps:
            self._queue.finish(self)
        return self._call is None

    def __repr__(self) -> str:
        state = "under way" if self._call is not None else "ended" if self._error is None else "failed"
        return f"<Request: {state}>"

    def run(self) -> tuple[R | None, BaseException | None]:
        """Run the call. Return its result and its error; one of them is None."""
        assert self._call is not None
        try:
            return self._call(), None
        except BaseException as error:  # whatever it is, `wait` raises it
            return None, common(error)

    def end(self, result: R | None, error: BaseException | None) -> None:
        """Store the result or the error, and release the arrays of the call."""
        self._result, self._error, self._call = result, error, None


class RequestQueue:
    """The begun calls of one communicator, which run one at a time in the order of their beginning.

    Attributes
    ----------
    overlaps : bool
        Whether a thread runs them; otherwise, below MPI_THREAD_MULTIPLE, they run in `Request.wait`.
    """

    def __init__(
        self,
        transport: _native.Transport,
        provided: int,
        abort: Callable[[int], None],
        bound: _native.Communicator | None = None,
    ) -> None:
        self.overlaps = provided >= THREAD_MULTIPLE
        self._transport, self._bound, self._abort = transport, bound, abort
        self._requests: deque[Request[Any]] = deque()  # those that have not ended
        self._error: BaseException | None = None  # of a begun call that failed; not raised yet
        self._changed = threading.Condition()
        self._waiting = 0  # threads of the caller that wait here
        self._thread: threading.Thread | None = None
        self._runs_in: int | None = None  # the thread that is running a begun call
        self._ends = False

    def begin(self, call: Callable[[], R]) -> Request[R]:
        """Append a call to those begun before, and return its request."""
        request = Request(self, call)
        _watch_exit()
        if not self.overlaps:
            what = "MPI was started for calls by one thread at a time: calls that are begun run in wait()"
            warnings.warn(f"{what}; mpi4py.rc.thread_level = 'multiple' lets them overlap", RuntimeWarning, 3)
        with self._changed:
            if self._error is not None:
                request.end(None, self._error)
                return request
            _queues.add(self)
            self._requests.append(request)
            self._note()
            self._changed.notify_all()
            if self.overlaps and self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="dovetail requests", daemon=True)
                self._thread.start()
        return request

    def finish(self, last: Request[Any] | None = None, limit_s: float | None = None) -> bool:
        """Wait for a request and those before it; default: for all. Return whether they have ended in time."""
        if not self._is_under_way(last):
            return True
        with self._changed:
            self._waiting += 1
            self._note()
        try:
            if not self.overlaps:
                while self._is_under_way(last):
                    self._run_first()
            with self._changed:
                return self._changed.wait_for(lambda: not self._is_under_way(last), limit_s)
        finally:
            with self._changed:
                self._waiting -= 1
                self._note()

    def drain(self) -> None:
        """Wait for all begun calls before a blocking call. Raise the error of one that failed, if no `wait` has."""
        if (not self._requests and self._error is None) or self._runs_in == threading.get_ident():
            return
        self.finish_others()
        if error := self.take_error():
            raise error

    def finish_others(self) -> None:
        """Wait for all begun calls, unless this thread is running one of them."""
        if self._runs_in != threading.get_ident():
            self.finish()

    def take_error(self, error: BaseException | None = None) -> BaseException | None:
        """Return, and forget, the error that was not raised yet, or None. `error`: only if it is this one."""
        with self._changed:
            if error is not None and error is not self._error:
                return None
            error, self._error = self._error, None
            self._note()
        return error

    def end(self) -> None:
        """Finish all calls before the communicator is freed. Ctrl-C is raised after they have ended."""
        interrupt = None
        while self._requests:
            try:
                self.finish()
            except KeyboardInterrupt as error:
                interrupt = error
        self._print_error()
        if interrupt:
            raise interrupt

    def end_with_process(self) -> None:
        """Finish all calls at the end of the process. If other ranks do not reach them in time, end the job."""
        failed = getattr(sys, "last_value", None) is not None
        try:
            if (self.overlaps or not failed) and not self.finish(None, SAID_S):
                count = len(self._requests)
                _print(f"{count} calls that were begun have not ended: this process waits for other ranks")
                self.finish(None, 0.0 if failed else EXIT_S)
        finally:
            if self._requests:
                _print("it ends with calls that were begun, and with it the job")
                time.sleep(READ_S)
                self._abort(1)
        self._print_error()
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        if thread := self._thread:
            thread.join(IDLE_S)

    def _print_error(self) -> None:
        if error := self.take_error():
            _print(f"a call that was begun failed, and nobody waited for it: {words_of(error)}")

    def _is_under_way(self, last: Request[Any] | None) -> bool:
        return bool(self._requests) if last is None else last._call is not None

    def _note(self) -> None:
        """Set native flags: whether the caller computes meanwhile, and whether blocking calls must `drain` first."""
        self._transport.rests = bool(self._requests) and not self._waiting
        if self._bound is not None:
            self._bound.has_begun = bool(self._requests) or self._error is not None

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._requests or self._ends, IDLE_S)
                if not self._requests:
                    self._thread = None
                    return
            self._run_first()

    def _run_first(self) -> None:
        request = self._requests[0]
        self._runs_in, self._transport.begun = threading.get_ident(), True
        result, error = request.run()
        self._runs_in, self._transport.begun = None, False
        with self._changed:
            self._requests.popleft().end(result, error)
            if error is not None:  # ranks may have failed at different calls: none runs those that follow
                self._error = error
                while self._requests:
                    self._requests.popleft().end(None, error)
            self._note()
            self._changed.notify_all()


_queues: WeakSet[RequestQueue] = WeakSet()  # those with begun calls


@cache
def _watch_exit() -> None:
    atexit.register(_end_all)


def _end_all() -> None:
    for queue in list(_queues):
        queue.end_with_process()


def _print(text: str) -> None:
    print(f"dovetail: {text}", file=sys.stderr, flush=True)  # noqa: T201
