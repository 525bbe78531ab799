"""heartbeat: each rank of a job writes a file twice a second, so that a stopped rank is noticed within seconds.

Imports nothing heavy: a rank begins with it, before NumPy and MPI.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import platform
import resource
import select
import signal
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

BEAT_S = 0.5
SILENT_S = 6.0  # seconds without a beat after which a rank counts as dead
STOPPED_S = 1.5  # the same for a process on this host that the system reports as stopped
LATE_S = 6.0  # seconds after the first beat within which all ranks must begin (and 0.25 s more for each rank)
READY_S = 60.0  # seconds after the first beat within which all must join MPI (and 0.5 s more for each rank)
ARRIVE_S = 8.0  # seconds to wait for the first beat; $DOVETAIL_ARRIVE_S if a launcher queues
MOST_FILES, FILES_ABOVE = 1 << 14, 16  # the FIFO has a number FILES_ABOVE below the limit of open files, or MOST_FILES
SLOWEST = 4.0  # the largest factor of `slowness`
RANK_NAMES = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")


class Pulse:
    """On a rank: write `alive.<rank>.<host>.<pid>` in the job's folder twice a second, from `with` to its end.

    The file has a rising number, and the text of `doing`. The rank holds the FIFO `held.…` open, by which the parent
    sees it die. When the launcher ends the job by SIGTERM, the writing thread calls `last_words` and ends the process,
    even while another thread is inside a kernel or MPI.
    """

    def __init__(self, folder: Path, rank: str | None = None) -> None:
        if rank is None:
            rank = next((os.environ[name] for name in RANK_NAMES if os.environ.get(name, "").isdigit()), "x")
        self._path = folder / f"alive.{rank}.{_host()}.{os.getpid()}"
        self._held = self._path.with_name(self._path.name.replace("alive", "held", 1))
        self._lock, self._ended = threading.Lock(), False
        self.last_words: Callable[[], None] = lambda: None
        self.doing: Callable[[], str] = lambda: "starting"

    def __enter__(self) -> Pulse:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # later threads inherit it
        with suppress(OSError):  # a file system without FIFOs: the launcher's report must suffice
            os.mkfifo(self._held)
            _hold(self._held)
        threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._lock:
            self._ended = True
            self._path.unlink(missing_ok=True)
            self._held.unlink(missing_ok=True)

    def _beat(self) -> None:
        for count in itertools.count():
            with self._lock, suppress(OSError):  # a full disk is reported by other writers
                if not self._ended:
                    self._path.write_text(f"{count} {self.doing()}")
            if _terminated(BEAT_S):
                try:
                    self.last_words()
                except Exception:  # goes to the job's output.txt
                    traceback.print_exc()
                os._exit(128 + signal.SIGTERM)


def _hold(fifo: Path) -> None:
    """Open the FIFO with a higher number than MPI's files.

    Linux closes a dead process's files from the highest number down. A rank that sees MPI's files closed may die itself
    before the next is closed.
    """
    low = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    above = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], MOST_FILES) - FILES_ABOVE
    fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, max(low, above))
    os.close(low)


def _terminated(wait_s: float) -> bool:
    """Whether SIGTERM arrives within `wait_s` seconds."""
    if hasattr(signal, "sigtimedwait"):
        return signal.sigtimedwait({signal.SIGTERM}, wait_s) is not None
    time.sleep(wait_s)
    return signal.SIGTERM in signal.sigpending()


class Watch:
    """In the parent: which ranks have started, have joined MPI, and have stopped responding."""

    def __init__(
        self, folder: Path, ranks: int, now_s: Callable[[], float] = time.monotonic, launcher: int | None = None
    ) -> None:
        self._folder, self._ranks, self._now_s, self._launcher = folder, ranks, now_s, launcher
        self._begin_s = now_s()
        self._first_s: float | None = None
        self._seen: dict[str, tuple[str, float]] = {}  # file -> its last content, and when it changed
        self._limit_s = float(os.environ.get("DOVETAIL_ARRIVE_S") or 0.0)

    def trouble(self) -> str | None:
        """Return a text that tells what is wrong with the ranks; None if nothing is."""
        now = self._now_s()
        here = self._read(now)
        if self._first_s is None:
            limit_s = self._limit_s or ARRIVE_S * slowness()
            return f"no rank has begun after {limit_s:.0f} s" if now - self._begin_s > limit_s else None
        unready = [r for r in range(self._ranks) if not (self._folder / f"ready.{r}.json").exists()]
        shared = max(1.0, min(crowding(), self._ranks / (os.cpu_count() or 1)))  # ranks that a core may serve
        patience_s = (2 * SILENT_S if unready else SILENT_S) * shared  # imports may keep a rank from beating
        quiet_s = {name: now - self._seen[name][1] for name in here}
        silent = [
            name
            for name, s in quiet_s.items()
            if s > patience_s or (s > STOPPED_S and _state(self._folder / name) == "T")
        ]
        if silent:
            _, rank, host, pid = min(silent).split(".")
            place = f"process {pid} on {host}, {self._seen[min(silent)][0].partition(' ')[2]}"
            return f"{_rank(rank)} gave no sign of life for {quiet_s[min(silent)]:.1f} s ({place}): it is stopped"
        waited_s = now - self._first_s
        if len(self._seen) < self._ranks and waited_s > STOPPED_S:
            stopped = _stopped_below(self._launcher) if self._launcher else None
            if stopped or waited_s > (LATE_S + 0.25 * self._ranks) * slowness():
                return self._late(waited_s, stopped)
        if unready and waited_s > READY_S + 0.5 * self._ranks:
            return f"rank {unready[0]} never arrived: it began, and had not joined MPI after {waited_s:.0f} s"
        return None

    def _late(self, waited_s: float, stopped: int | None) -> str:
        """Describe the ranks that never arrived."""
        begun = {name.split(".")[1] for name in self._seen}
        missing = next((str(r) for r in range(self._ranks) if str(r) not in begun), "x")
        late = f"{self._ranks - len(self._seen)} of {self._ranks} had not begun after {waited_s:.0f} s"
        return f"{_rank(missing)} never arrived: {late}{f'; process {stopped} is stopped' if stopped else ''}"

    def _read(self, now: float) -> list[str]:
        """Return names of the existing files, and update their contents."""
        here = []
        for path in self._folder.glob("alive.*"):
            try:
                text = path.read_text()
            except OSError:  # it has just ended
                continue
            here.append(path.name)
            if self._seen.get(path.name, ("", 0.0))[0] != text:
                self._seen[path.name] = text, now
        if self._first_s is None and self._seen:
            self._first_s = now
        return [name for name in here if name in self._seen]


class Deaths:
    """In the parent: which rank of this host ended first without a report.

    A launcher that sees one rank die kills all others, and may name any of them. The kernel closes the FIFO that a rank
    holds open as the rank dies, in the order of deaths. A rank that ends regularly removes its FIFO before.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._fds = folder, dict[int, Path]()
        self._ends = select.epoll() if hasattr(select, "epoll") else None  # Linux only
        self._first: str | None = None

    def look(self, wait_s: float) -> str | None:
        """Return a text that names the rank that ended first, or None. Waits for `wait_s` seconds at most."""
        if self._ends is None:
            time.sleep(wait_s)
            return None
        for path in set(self._folder.glob("held.*")) - set(self._fds.values()):
            with suppress(OSError):  # it has just ended
                fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
                self._fds[fd] = path
                self._ends.register(fd, 0)
        for fd, _ in self._ends.poll(wait_s):
            self._ends.unregister(fd)
            if self._first is None and self._fds[fd].exists():
                _, rank, host, _ = self._fds[fd].name.split(".")
                self._first = f"{_rank(rank)} on {host} died"
        return self._first

    def close(self) -> None:
        """Close and remove all FIFOs."""
        for fd, path in self._fds.items():
            os.close(fd)
            path.unlink(missing_ok=True)
        if self._ends is not None:
            self._ends.close()


def slowness() -> float:
    """Return the factor, 1 to 4, by which a program may start or end later than on an idle machine."""
    return min(crowding(), SLOWEST)


def crowding() -> float:
    """Return runnable threads per core, now or over the last minute; at least 1.

    >>> crowding() >= 1.0
    True
    """
    try:
        words = Path("/proc/loadavg").read_text().split()
        return max(1.0, max(float(words[0]), float(words[3].partition("/")[0]) - 1) / (os.cpu_count() or 1))
    except (OSError, ValueError, IndexError):
        return 1.0


def terminate_ranks(folder: Path) -> None:
    """End the job's ranks on this host by SIGTERM, stopped ones too. They save their results first."""
    for path in folder.glob("alive.*"):
        if _state(path):
            with suppress(ProcessLookupError):
                pid = int(path.name.split(".")[3])
                os.kill(pid, signal.SIGTERM)
                os.kill(pid, signal.SIGCONT)


def _stopped_below(launcher: int) -> int | None:
    """Return a stopped process among the descendants of a launcher, if any."""
    found: dict[int, tuple[str, int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):  # it has just ended
            state, parent, *_ = path.read_text().rpartition(")")[2].split(maxsplit=2)
            found[int(path.parent.name)] = state, int(parent)
    for pid in (pid for pid, (state, _) in found.items() if state == "T"):
        above = pid
        while above in found and above != launcher:
            above = found[above][1]
        if above == launcher:
            return pid
    return None


def _state(alive: Path) -> str:
    """Return Linux's state letter of the process that wrote this file; empty if it is not on this host."""
    _, _, host, pid = alive.name.split(".")
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
    return state if host == _host() and os.fsencode(alive.parent) in command else ""


def _host() -> str:
    return platform.node().replace(".", "-")


def _rank(number: str) -> str:
    return "a rank" if number == "x" else f"rank {number}"
