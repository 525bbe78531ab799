"""ended: how processes ended that did not finalize: by which signal or exit code, and in which call."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.trace.process_file import ProcessFile

ENDS = "ends.jsonl"  # file beside the processes' files: a line per process that ended badly, written by its parent
_MOST = 8  # number of ranks that are reported one by one
_TOGETHER_NS = 10**7  # ends within this time count as simultaneous: parents may notice them in any order
_OF_LAUNCHERS = (int(signal.SIGKILL), int(signal.SIGTERM))


class Ends:
    """Reads the rows of a trace, ordered by end time, to report what each rank did last."""

    def __init__(self, processes: Sequence[ProcessFile], numbers: Mapping[str, int]) -> None:
        self.processes, self.numbers = processes, numbers  # numbers: of the names in the merged trace
        self.aborting: set[int] = set()  # ranks that called MPI_Abort
        self.seen = _seen(processes)
        self.last: dict[int, int] = {}  # rank -> name of the interval that ended last
        self.open: dict[int, tuple[float, int]] = {}  # rank -> start and name of the innermost open interval

    def take(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Add rows."""
        whole = np.flatnonzero((columns["part"] == 0) & ~columns["is_open"])
        ranks, last = np.unique(columns["rank"][whole][::-1], return_index=True)
        self.last |= dict(zip(ranks.tolist(), columns["name"][whole][::-1][last].tolist(), strict=True))
        if (abort := self.numbers.get("MPI_Abort")) is not None:
            self.aborting |= set(columns["rank"][columns["name"] == abort].tolist())
        for at in np.flatnonzero((columns["part"] == 0) & columns["is_open"]).tolist():
            rank, found = int(columns["rank"][at]), (float(columns["start_s"][at]), int(columns["name"][at]))
            self.open[rank] = max(self.open.get(rank, found), found)

    def faults(self) -> list[str]:
        """Return a sentence for each rank that ended badly, the first to end first; many ranks share one sentence."""
        names = list(self.numbers)
        ended = [process for process in self.processes if self._is_bad(process, names)]
        ended = self._in_order(ended)
        reported = [f"rank {p.rank} {self._how(p)}, {self._where(p.rank, names)}" for p in ended[:_MOST]]
        rest = [str(process.rank) for process in ended[_MOST:]]
        shown = ", ".join(rest[:_MOST]) + (", …" if len(rest) > _MOST else "")
        return [*reported, *([f"{len(rest)} more ranks ended badly: {shown}"] if rest else [])]

    def _in_order(self, ended: Sequence[ProcessFile]) -> list[ProcessFile]:
        """Sort processes by likely cause: ranks that called MPI_Abort, then by time.

        Of simultaneous ends, those that the launcher probably caused come last: it ends the other ranks by a signal,
        mostly while they wait for the dead rank in a call.
        """
        times = {process.rank: float(self._note(process).get("real_ns", np.inf)) for process in ended}
        moment, before, moments = 0, -np.inf, {}
        for process in sorted(ended, key=lambda process: times[process.rank]):
            moment += times[process.rank] - before > _TOGETHER_NS
            before, moments[process.rank] = times[process.rank], moment

        def key(process: ProcessFile) -> tuple[bool, int, bool, bool, float, int]:
            rank, is_ended = process.rank, self._note(process).get("signal") in _OF_LAUNCHERS
            is_waiting = is_ended and rank in self.open
            return rank not in self.aborting, moments[rank], is_ended, is_waiting, times[rank], rank

        return sorted(ended, key=key)

    def _note(self, process: ProcessFile) -> Mapping[str, Any]:
        return self.seen.get((process.host, process.pid), {})

    def _is_bad(self, process: ProcessFile, names: Sequence[str]) -> bool:
        last = self.last.get(process.rank)
        is_over = process.finalized and process.rank not in self.open
        is_done = is_over and (last is None or names[last] == "MPI_Finalize")
        return not process.finalized or (bool(self._note(process)) and not is_done)

    def _how(self, process: ProcessFile) -> str:
        note, who = self._note(process), f"(process {process.pid} on {process.host})"
        if process.rank in self.aborting:
            return f"{who} called MPI_Abort"
        if "signal" in note:
            return f"{who} was killed by signal {_named(int(note['signal']))}"
        if "exit" in note:
            return f"{who} ended with exit code {note['exit']} and did not finalize"
        return f"{who} did not finalize"

    def _where(self, rank: int, names: Sequence[str]) -> str:
        if rank in self.open:
            return f"in {names[self.open[rank][1]]}"
        return f"after {names[self.last[rank]]}" if rank in self.last else "before its first event"


def _named(number: int) -> str:
    """Return a signal's number and name."""
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)


def _seen(processes: Sequence[ProcessFile]) -> dict[tuple[str, int], Mapping[str, Any]]:
    """Return what parents recorded about the ends of processes, by host and pid."""
    found: dict[tuple[str, int], Mapping[str, Any]] = {}
    for folder in dict.fromkeys(process.path.parent for process in processes):
        for note in _notes(folder / ENDS):
            found.setdefault((str(note.get("host")), int(note["pid"])), note)
    return found


def _notes(path: Path) -> list[Mapping[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            note = json.loads(line)
            numbers = [note[key] for key in ("pid", "signal", "exit", "real_ns") if key in note]
            if "pid" in note and all(isinstance(number, int) for number in numbers):
                found.append(note)
        except (ValueError, TypeError):
            continue  # a line truncated by a full disk
    return found
