"""launch: start a command as ranks on this host, and end them together."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dovetail.core import EnvironmentFault
from dovetail.run.shared.stores import ENDED

POLL_S = 0.01
HANG_S = 3.0  # seconds that other ranks have to end by themselves after one has failed
ENDED_S = 2.0  # seconds that they have to end after SIGTERM


class Ranks:
    """Processes that run one command, each a rank of `dovetail.world()`. Used like one process of `subprocess`.

    They are a process group of their own, without standard input. `output` receives their output. They end with
    this process, however it ends: see `_guard`.

    Attributes
    ----------
    pid : int
        Id of their process group.
    returncode : int or None
        Once all have ended: 0, or the code of the first that failed.
    first : tuple of int, optional
        The rank that failed first, and its code.
    """

    def __init__(self, command: Sequence[str], ranks: int, output: Any = None) -> None:
        self.returncode: int | None = None
        self.first: tuple[int, int] | None = None
        self._meeting = _meeting_place()
        common = {"DOVETAIL_RANKS": str(ranks), "DOVETAIL_LOCAL_RANKS": str(ranks), "DOVETAIL_STORE": self._meeting}
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._guard = _guard(self._meeting)
        self.pid = self._guard.pid
        try:
            for rank in range(ranks):
                env = os.environ | common | {"DOVETAIL_RANK": str(rank)}
                streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
                self._running[rank] = subprocess.Popen(command, env=env, process_group=self.pid, **streams)
        except OSError as error:
            self.end()
            raise EnvironmentFault(f"cannot start {command[0]}", found=error.strerror) from error

    def poll(self) -> int | None:
        """Return the exit code once all have ended; None before."""
        for rank, process in list(self._running.items()):
            if (code := process.poll()) is not None:
                del self._running[rank]
                self._tell(rank)
                if code and self.first is None:
                    self.first = rank, code
        if not self._running and self.returncode is None:
            self.returncode = self.first[1] if self.first else 0
            self._guard.kill()
            self._guard.communicate()
            shutil.rmtree(self._meeting, ignore_errors=True)
        return self.returncode

    def _tell(self, rank: int) -> None:
        """Let ranks that still wait for others know of the first that has ended."""
        place = Path(self._meeting, ENDED)
        with suppress(OSError):  # the folder is removed once all have met
            if not place.exists():
                (part := place.with_suffix(".part")).write_text(str(rank))
                part.replace(place)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until all have ended. Raises subprocess.TimeoutExpired if they have not within `timeout` seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired("ranks", timeout or 0.0)
            time.sleep(POLL_S)
        assert self.returncode is not None
        return self.returncode

    def end(self) -> None:
        """Send SIGTERM to those that still run, then SIGKILL."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.poll() is None:
                with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    os.killpg(self.pid, number)
                    self.wait(ENDED_S)


def _guard(meeting: str) -> subprocess.Popen[bytes]:
    """Start a process, in a group of its own, that ends the group once this process has ended, even by SIGKILL.

    It then removes the folder where the ranks meet. The guard reads from a pipe, which ends once no process can write
    to it. This process can, and each new child until it begins its command: by then it is in the group.
    """
    script = f"trap '' TERM INT HUP; read _; kill -TERM 0; sleep {ENDED_S:g}; rm -rf -- \"$1\"; kill -KILL 0"
    words = ["/bin/sh", "-c", script, "dovetail guard", meeting]
    quiet, pipe = subprocess.DEVNULL, subprocess.PIPE  # the guard must not keep open a pipe of the ranks' output
    try:
        return subprocess.Popen(words, stdin=pipe, stdout=quiet, stderr=quiet, process_group=0)
    except OSError as error:
        raise EnvironmentFault("ranks cannot be started", found=f"/bin/sh: {error.strerror}") from error


def _meeting_place() -> str:
    try:
        return tempfile.mkdtemp(prefix="dovetail-")
    except OSError as error:
        hint = "set TMPDIR to a folder that you can write"
        raise EnvironmentFault("ranks have no folder to meet in", found=error.strerror, hint=hint) from error


@contextmanager
def _ends_with_us() -> Iterator[None]:
    """Turn signals that would end the launcher at once into SystemExit, so that it ends its ranks first."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    numbers = (signal.SIGTERM, signal.SIGHUP) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_ranks(command: Sequence[str], ranks: int) -> tuple[int, str]:
    """Run a command as ranks to its end; return the exit code, and in words which rank failed first, if one did.

    The other ranks are ended a few seconds after one has failed.
    """
    with _ends_with_us():
        started = Ranks(command, ranks)
        try:
            while started.poll() is None and started.first is None:
                time.sleep(POLL_S)
            with suppress(subprocess.TimeoutExpired):
                started.wait(HANG_S)
        finally:
            started.end()
    if started.first is None:
        return 0, ""
    rank, code = started.first
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return code if code > 0 else 128 - code, f"rank {rank} {how}"
