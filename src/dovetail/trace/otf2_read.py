"""Archives of OTF2 (Score-P's and others') read through the `otf2` package: regions, messages, collectives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dovetail.core import DovetailError, EnvironmentFault
from dovetail.trace.imported import Events, pair, trace_of
from dovetail.trace.process_file import EventKind
from dovetail.trace.trace import Comm, Trace


def otf2_package() -> Any:
    """The package with its reader and writer, or an EnvironmentFault that says how to get it."""
    try:
        import otf2
        import otf2.events
        import otf2.reader
        import otf2.writer
    except ImportError as error:
        raise EnvironmentFault("the package otf2 is not installed", hint="pip install 'dovetail[otf2]'") from error
    return otf2


def read_otf2(path: str | Path) -> Trace:
    """The trace in an archive, named by its `.otf2` file. Raises DovetailError for one that cannot be read."""
    package = otf2_package()
    if not Path(path).is_file():
        raise DovetailError(f"cannot read the archive {path}", found="no such file", hint="give the file traces.otf2")
    try:
        with package.reader.open(str(path)) as archive:
            return _Reader(archive).trace(str(path))
    except (RuntimeError, ValueError) as error:
        raise DovetailError(f"cannot read the archive {path}", found=str(error)) from error


class _Reader:
    def __init__(self, archive: Any) -> None:
        self.archive = archive
        definitions = archive.definitions
        processes = list(dict.fromkeys(location.group for location in definitions.locations))
        self.rank = {group: rank for rank, group in enumerate(processes)}
        self.threads: dict[Any, tuple[int, int]] = {}
        for location in definitions.locations:
            rank = self.rank[location.group]
            self.threads[location] = (rank, sum(1 for r, _ in self.threads.values() if r == rank))
        self.names: dict[str, int] = {}
        self.comms = {comm: i for i, comm in enumerate(definitions.comms)}
        self.told = [self._comm(comm, number) for number, comm in enumerate(definitions.comms)]

    def _comm(self, comm: Any, number: int) -> Comm:
        members = getattr(getattr(comm, "group", None), "members", ())
        return Comm(tuple(self.threads[m][0] for m in members if m in self.threads), number)

    def trace(self, source: str) -> Trace:
        found = {at: Events() for at in self.threads.values()}
        clock = self.archive.definitions.clock_properties
        scale = 1e9 / clock.timer_resolution
        for location, event in self.archive.events:
            if location in self.threads:
                self._take(found[self.threads[location]], event, round((event.time - clock.global_offset) * scale))
        return trace_of(found, tuple(self.names), self.told, {"source": source, "faults": []})

    def _take(self, into: Events, event: Any, time_ns: int) -> None:
        kind = type(event).__name__
        if kind in ("Enter", "Leave"):
            number = self.names.setdefault(event.region.name, len(self.names))
            into.add(EventKind.begin if kind == "Enter" else EventKind.end, max(time_ns, 0), number)
        elif kind in ("MpiSend", "MpiIsend"):
            into.add(
                EventKind.send, pair(event.receiver, event.msg_tag), self.comms[event.communicator], event.msg_length
            )
        elif kind in ("MpiRecv", "MpiIrecv"):
            at = pair(event.sender, event.msg_tag)
            into.add(EventKind.recv, at, self.comms[event.communicator], event.msg_length)
            into.add(EventKind.done, at, 0, event.msg_length)
        elif kind == "MpiCollectiveEnd":
            root = event.root if isinstance(event.root, int) and event.root < 1 << 31 else -1
            if root >= 0:
                into.add(EventKind.root, root)
            into.add(EventKind.collective, event.size_received, self.comms[event.communicator], event.size_sent)
