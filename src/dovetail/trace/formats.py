"""formats: the file formats of other tools that traces are written in and made of, by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

from dovetail.core import DovetailError, Registry
from dovetail.trace.store import TraceFile
from dovetail.trace.trace import Trace


class Written(NamedTuple):
    """What an export wrote: the file to open, and sentences for the user."""

    path: Path
    notes: Sequence[str] = ()


class TraceFormat(Protocol):
    """A file format of another tool; a class that derives from this one defines `write`, `read` or both.

    `help`: what `trace export --NAME` writes; empty if it cannot export. `suffixes`: endings of the files that `trace
    import` reads; none if it cannot import. `by_rank`: whether a trace may be several files, one per rank.
    """

    help: ClassVar[str] = ""
    suffixes: ClassVar[tuple[str, ...]] = ()
    by_rank: ClassVar[bool] = False

    def write(self, path: Path, trace: TraceFile) -> Written:
        """Write a trace to a file or a new folder. Raises EnvironmentFault if it cannot be written."""
        raise NotImplementedError

    def read(self, paths: Sequence[Path]) -> Trace:
        """Return the trace in these files. Raises DovetailError for a file of another format."""
        raise NotImplementedError


FORMATS = Registry[type[TraceFormat]](
    "dovetail.formats",
    "a trace format",
    {
        "perfetto": "dovetail.report.trace_formats:Perfetto",
        "tlog": "dovetail.report.trace_formats:Tlog",
        "otf2": "dovetail.report.trace_formats:Otf2",
    },
    ("help", "suffixes", "by_rank", "write", "read"),
)


def read_foreign(paths: Sequence[Path]) -> Trace:
    """Return the trace in files of another tool; the longest suffix of a format that the first name ends in decides."""
    known = [(suffix, FORMATS[name]) for name in FORMATS.usable for suffix in FORMATS[name].suffixes]
    suffix, kind = max(((s, kind) for s, kind in known if paths[0].name.endswith(s)), key=lambda each: len(each[0]))
    if len(paths) > 1 and not kind.by_rank:
        raise DovetailError(f"{suffix} files hold all ranks", hint="give one of them")
    return kind().read(paths)
