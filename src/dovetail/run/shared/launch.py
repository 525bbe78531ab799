"""launch: start a command as ranks of this host, and end them together."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from dovetail.core import EnvironmentFault

POLL_S = 0.01
HANG_S = 3.0  # seconds that other ranks have to end by themselves after one has failed
ENDED_S = 2.0  # seconds that they have after SIGTERM


class Ranks:
    """Processes that run one command, each a rank of `dovetail.world()`; together like one process of `subprocess`.

    They are a process group of their own, without standard input. `output` takes what they print.

    Attributes
    ----------
    pid : int
        Number of their process group.
    returncode : int or None
        Once all have ended: 0, or the code of the first that failed.
    first : tuple of int, optional
        The rank that failed first, and its code.
    """

    def __init__(self, command: Sequence[str], ranks: int, output: Any = None) -> None:
        self.returncode: int | None = None
        self.first: tuple[int, int] | None = None
        self._meeting = tempfile.mkdtemp(prefix="dovetail-")
        common = {"DOVETAIL_RANKS": str(ranks), "DOVETAIL_LOCAL_RANKS": str(ranks), "DOVETAIL_STORE": self._meeting}
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self.pid = 0
        try:
            for rank in range(ranks):
                env = os.environ | common | {"DOVETAIL_RANK": str(rank)}
                streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
                self._running[rank] = subprocess.Popen(command, env=env, process_group=self.pid, **streams)
                self.pid = self.pid or self._running[rank].pid
        except OSError as error:
            self.end()
            raise EnvironmentFault(f"cannot start {command[0]}", found=error.strerror) from error

    def poll(self) -> int | None:
        """Return the exit code once all have ended; None before."""
        for rank, process in list(self._running.items()):
            if (code := process.poll()) is not None:
                del self._running[rank]
                if code and self.first is None:
                    self.first = rank, code
        if not self._running and self.returncode is None:
            self.returncode = self.first[1] if self.first else 0
            shutil.rmtree(self._meeting, ignore_errors=True)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until all have ended; subprocess.TimeoutExpired where they have not within `timeout` seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired("ranks", timeout or 0.0)
            time.sleep(POLL_S)
        assert self.returncode is not None
        return self.returncode

    def end(self) -> None:
        """Terminate those that run, then kill them."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.poll() is None:
                with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    os.killpg(self.pid, number)
                    self.wait(ENDED_S)


def run_ranks(command: Sequence[str], ranks: int) -> tuple[int, str]:
    """Run a command as ranks to its end; return the exit code, and in words which rank failed first, if one did.

    The other ranks are ended a few seconds after one has failed.
    """
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
