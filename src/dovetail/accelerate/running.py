"""running: run the command of a user: as it is, or with counters and knobs in the environment of its processes."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from dovetail.accelerate.counter import COUNTER, build_counter, build_counter_gate
from dovetail.accelerate.counts import Counts, read_counts
from dovetail.accelerate.remembered import answer_item, recall_answer, remembered, save_answer
from dovetail.core import DovetailError, EnvironmentFault, cache_dir
from dovetail.trace.recorder.launch import (
    Library,
    environment,
    executable,
    forwarded,
    is_open_mpis,
    library_of,
    linked,
    settings_of,
    used_by,
)

Knobs = Mapping[str, str]
REPLACE_VARIABLE, START_VARIABLE, KNOBS_VARIABLE = (f"{COUNTER.prefix}{name}" for name in ("REPLACE", "START", "KNOBS"))


@dataclass(frozen=True)
class Ran:
    """One run: its exit code, wall seconds, and the counts of its jobs, the longest first."""

    code: int
    seconds: float
    counts: tuple[Counts, ...] = ()


@dataclass(frozen=True)
class Command:
    """A command whose ranks can be counted. Made by `prepared`.

    Attributes
    ----------
    words : tuple of str
        The command line.
    gate : path or None
        The library that processes preload; None: the command runs as it is.
    settings : mapping
        The gate's environment variables.
    why_not : str
        Why there is no gate.
    replace : str
        Value of the variable REPLACE_VARIABLE: "" (off), "exact", or "reorder" (also where sums change their order).
    by_x : bool or None
        Whether the launcher passes variables on by `-x`; None: unknown.
    library : Library or None
        The MPI library of its programs, if it is known.
    """

    words: tuple[str, ...]
    gate: Path | None = None
    settings: Knobs = field(default_factory=dict)
    why_not: str = ""
    replace: str = ""
    start: tuple[str, ...] = ()
    by_x: bool | None = None
    library: Library | None = None

    def run(self, knobs: Knobs | None = None, *, counted: bool = True, shown: bool = True) -> Ran:
        """Run the command once.

        Parameters
        ----------
        knobs : mapping, optional
            Environment variables that are set for its processes.
        counted : bool
            Load the counters.
        shown : bool
            Connect the command to this process's input and output; otherwise discard its output.

        Raises
        ------
        EnvironmentFault
            If the command cannot be started.
        """
        if self.gate is None or not counted:
            return Ran(*_timed(self.words, os.environ | dict(knobs or {}), shown))
        with tempfile.TemporaryDirectory(prefix="counts-", dir=cache_dir()) as place:  # where all hosts find it
            ours = {REPLACE_VARIABLE: self.replace, KNOBS_VARIABLE: ",".join(knobs or {})}
            ours[START_VARIABLE] = ",".join(self.start)
            settings = {**_wrappers(self.words), **self.settings, **ours, **(knobs or {})}
            env = environment(self.gate, Path(place), gate=COUNTER) | settings
            words = forwarded(self.words, list(settings), COUNTER, by_x=self.by_x)
            ran = Ran(*_timed(words, env, shown), tuple(read_counts(Path(place))))
            _keep_wrappers(self.words, Path(place))
            return ran

    def without_replacing(self) -> Command:
        """Return the command with its counters, but none of its collectives replaced."""
        return replace(self, replace="", start=())


def prepared(words: Sequence[str], mpi: str | None = None, replace: str = "") -> Command:
    """Return the command with its counters compiled; if they cannot be, with the reason, so that it runs as it is.

    `mpi`: count only programs of this library (see `trace.recorder.launch.run_traced`). `replace`: see `Command`.
    """
    try:
        found = remembered(f"counted, {mpi}", words, lambda: _found(words, mpi))
    except DovetailError as error:
        return Command(tuple(words), why_not=error.what + (f" ({error.found})" if error.found else ""))
    kind, folder = found["library"] or ("", "")
    library = Library(kind, Path(folder) if folder else None) if kind else None
    gate, settings = Path(found["gate"]), found["settings"]
    return Command(tuple(words), gate, settings, "", replace, by_x=found["by_x"], library=library)


def _found(words: Sequence[str], mpi: str | None) -> tuple[dict[str, Any], list[Path]]:
    """Compile what counts a command's calls; return where it is, and the files that this depends on."""
    gate, settings = build_counter_gate(), settings_of(COUNTER, words, mpi, build_counter)
    try:
        library: Library | None = library_of(words)
    except EnvironmentFault:
        library = None
    named = [library.kind, str(library.folder or "")] if library else None
    found = {"gate": str(gate), "settings": settings, "by_x": is_open_mpis(words[0]), "library": named}
    files = [gate, *(Path(text) for text in settings.values() if os.path.isabs(text))]
    compiler = executable(mpi) if mpi else None
    return found, [*files, *([compiler] if compiler else []), *_files_of(library)]


_WRAPPERS = "wrappers that its processes asked for"


def _wrappers(words: Sequence[str]) -> dict[str, str]:
    """Return the gate's variables for the wrappers that a command's processes asked for in an earlier run.

    They ask where the command does not show its MPI, as a script's, and start a Python for it, which takes 0.2 s.
    """
    found = recall_answer(answer_item(_WRAPPERS, words)).value
    return dict(found["answer"]) if found else {}


def _keep_wrappers(words: Sequence[str], folder: Path) -> None:
    """Remember what processes asked for: the gate notes it in the folder of a run, by MPI and host."""
    notes = {note.name.split("-")[1]: Path(note.read_text(encoding="utf-8")) for note in folder.glob(".wrappers-*")}
    made = {f"{COUNTER.prefix}{kind.upper()}": path for kind, path in notes.items() if path.is_absolute()}
    if made:
        answer = {name: str(path) for name, path in made.items()}
        save_answer(answer_item(_WRAPPERS, words), f"{_WRAPPERS}: {' '.join(words)[:80]}", answer, made.values())


def _files_of(library: Library | None) -> list[Path]:
    """Return the files of an MPI library that wrappers depend on."""
    if library is None or library.folder is None:
        return []
    compilers = [library.folder.parent / "bin" / name for name in ("mpicc", "mpicc_abi")]
    return [*sorted(library.folder.glob("libmpi*.so*")), *compilers, library.folder.parent / "include" / "mpi.h"]


def why_uncounted(words: Sequence[str], code: int) -> str:
    """Return why a run may have left no counts."""
    for path in filter(None, map(executable, words)):
        try:
            calls_mpi = b"MPI_Init" in path.read_bytes() and used_by(path) is None
        except OSError:
            continue
        other = _other_mpi(path) if calls_mpi else None
        if other:
            return f"{path} uses {other}, which is no known MPI library: --mpi names the one that it is compatible with"
        if calls_mpi:
            return f"{path} is linked statically with MPI, where no library can be loaded in front of it"
    if code:
        return f"the command ended with exit code {code} before a rank of it called MPI_Finalize"
    return "no process of the command called MPI_Init and MPI_Finalize of a known MPI library"


def _other_mpi(path: Path) -> Path | None:
    """Return the shared library that defines MPI for a program, whatever its name; None if there is none."""
    for library in linked(path):
        try:
            if b"MPI_Init" in library.read_bytes():
                return library
        except OSError:
            continue
    return None


def can_repeat() -> bool:
    """Return whether further runs of the command see the input that the first one saw: none, or a terminal."""
    try:
        return stat.S_ISCHR(os.fstat(0).st_mode)
    except OSError:
        return True


def _timed(words: Sequence[str], env: Mapping[str, str], shown: bool) -> tuple[int, float]:
    """Return the exit code, as a shell reports it, and the wall seconds."""
    discarded: dict[str, IO[Any] | int] = (
        {} if shown else dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    )
    begun = time.perf_counter()
    try:
        code = subprocess.run(list(words), env=env, check=False, **discarded).returncode  # type: ignore[call-overload]
    except OSError as error:
        raise EnvironmentFault(f"cannot run {words[0]}", found=error.strerror) from error
    return (code if code >= 0 else 128 - code), time.perf_counter() - begun
