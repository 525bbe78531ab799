"""formats: the registry of other tools' file formats, for `trace export`, `trace import` and `simulate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

from dovetail.core import DovetailError, Registry
from dovetail.trace.schedules.dag import Replay
from dovetail.trace.store import TraceFile
from dovetail.trace.trace import Trace


class Written(NamedTuple):
    """What an export wrote: the file to open, and sentences for the user."""

    path: Path
    notes: Sequence[str] = ()


class TraceFormat(Protocol):
    """A file format of another tool. A subclass defines `write`, `read` or `replay`, or several.

    `help`: help text of `trace export --NAME`; empty: the format cannot be written. `suffixes`: endings of file names
    that `trace import` reads; empty: the format cannot be read. `by_rank`: a trace may be several files, one per rank.
    `schedules`: endings of file names that `simulate` replays.
    """

    help: ClassVar[str] = ""
    suffixes: ClassVar[tuple[str, ...]] = ()
    by_rank: ClassVar[bool] = False
    schedules: ClassVar[tuple[str, ...]] = ()

    def write(self, path: Path, trace: TraceFile) -> Written:
        """Write a trace to a file or a new folder. Raise EnvironmentFault if it cannot be written."""
        raise NotImplementedError

    def read(self, paths: Sequence[Path]) -> Trace:
        """Return the trace in these files. Raise DovetailError for a file of another format."""
        raise NotImplementedError

    def replay(self, paths: Sequence[Path]) -> Replay:
        """Return what the ranks do by these files. Raise DovetailError for a file of another format."""
        raise NotImplementedError


FORMATS = Registry[type[TraceFormat]](
    "dovetail.formats",
    "a trace format",
    {
        "perfetto": "dovetail.report.trace_formats:Perfetto",
        "tlog": "dovetail.report.trace_formats:Tlog",
        "otf2": "dovetail.report.trace_formats:Otf2",
        "goal": "dovetail.trace.schedules.formats:Goal",
        "chakra": "dovetail.trace.schedules.formats:Chakra",
    },
    ("help", "suffixes", "by_rank", "write", "read"),
)


def read_foreign(paths: Sequence[Path]) -> Trace:
    """Return the trace in files of another tool. The format is the one with the longest matching suffix."""
    known = [(suffix, FORMATS[name]) for name in FORMATS.usable for suffix in FORMATS[name].suffixes]
    suffix, kind = max(((s, kind) for s, kind in known if paths[0].name.endswith(s)), key=lambda each: len(each[0]))
    if len(paths) > 1 and not kind.by_rank:
        raise DovetailError(f"{suffix} files hold all ranks", hint="give one of them")
    return kind().read(paths)


def replayed(path: Path) -> Replay | None:
    """Return what the ranks do by a file of another tool; None if its name ends like no such file."""
    for name in FORMATS.usable:
        if path.name.endswith(getattr(FORMATS[name], "schedules", ()) or ("\0",)):
            return FORMATS[name]().replay([path])
    return None
