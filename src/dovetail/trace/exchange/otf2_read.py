"""otf2_read: read OTF2 archives (Score-P and others) with the `otf2` package: regions, messages, collectives, RMA."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dovetail.core import DovetailError, EnvironmentFault
from dovetail.trace.exchange.imported import Events, pair, trace_of
from dovetail.trace.process_file import REPEAT_BITS, EventKind
from dovetail.trace.trace import Comm, Trace

OURS = frozenset(("calls", "pause_ns", "is_point", "arg"))  # attributes of regions in archives that Dovetail writes

_UNREADABLE: tuple[type[Exception], ...] = (RuntimeError, ValueError, KeyError, AttributeError, IndexError)


def otf2_package() -> Any:
    """Import the otf2 package with its reader and writer. Raise EnvironmentFault if it is not installed."""
    try:
        import otf2
        import otf2.events
        import otf2.reader
        import otf2.writer
    except ImportError as error:
        raise EnvironmentFault("the package otf2 is not installed", hint="pip install 'dovetail[otf2]'") from error
    return otf2


def otf2_errors() -> tuple[type[Exception], ...]:
    """Return the errors that the package raises: its own, and those of the C library."""
    import _otf2
    import otf2.error

    return otf2.error.Error, _otf2.Error


def read_otf2(path: str | Path) -> Trace:
    """Return the trace in an archive, given its `.otf2` file. Raise DovetailError if it cannot be read."""
    package = otf2_package()
    if not Path(path).is_file():
        raise DovetailError(f"cannot read the archive {path}", found="no such file", hint="give the file traces.otf2")
    try:
        with package.reader.open(str(path)) as archive:
            return _Reader(archive, package.RmaAtomicType.ACCUMULATE).trace(str(path))
    except _UNREADABLE + otf2_errors() as error:
        found, hint = f"{type(error).__name__}: {error}", "it is damaged or truncated: export or measure it again"
        raise DovetailError(f"cannot read the archive {path}", found=found, hint=hint) from error


class _Reader:
    def __init__(self, archive: Any, accumulates: Any) -> None:
        self.archive, self.accumulates = archive, accumulates  # accumulates: the kind of RMA atomic without a result
        definitions = archive.definitions
        processes = list(dict.fromkeys(location.group for location in definitions.locations))
        self.rank = {group: rank for rank, group in enumerate(processes)}
        self.threads: dict[Any, tuple[int, int]] = {}
        for location in definitions.locations:
            rank = self.rank[location.group]
            self.threads[location] = (rank, sum(1 for r, _ in self.threads.values() if r == rank))
        self.names: dict[str, int] = {}
        self.comms = {comm: i for i, comm in enumerate(definitions.comms)}
        self.windows = {window: self.comms[window.comm] for window in definitions.rma_wins}
        self.found_comms = [self._comm(comm, number) for number, comm in enumerate(definitions.comms)]
        self.open: dict[Any, list[tuple[int, int, int]]] = {}  # by location: calls, pause and kind of entered regions
        self.asked: dict[tuple[int, int], tuple[Events, int]] = {}  # (rank, request) -> place of its collective's call
        self.late: list[tuple[Events, int, Any]] = []  # place and completion of non-blocking collectives

    def _comm(self, comm: Any, number: int) -> Comm:
        members = getattr(getattr(comm, "group", None), "members", ())
        ranks = tuple(self.threads[m][0] for m in members if m in self.threads)
        return Comm(ranks, number, is_window=number in self.windows.values())

    def trace(self, source: str) -> Trace:
        found = {at: Events() for at in self.threads.values()}
        clock = self.archive.definitions.clock_properties
        scale = 1e9 / clock.timer_resolution
        for location, event in self.archive.events:
            if location in self.threads:
                time_ns = max(round((event.time - clock.global_offset) * scale), 0)
                self._take(found[self.threads[location]], location, event, time_ns)
        for into, at, event in sorted(self.late, key=lambda late: -late[1]):
            into.insert(at, *self._collective(event))
        return trace_of(found, tuple(self.names), self.found_comms, {"source": source, "faults": []})

    def _take(self, into: Events, location: Any, event: Any, time_ns: int) -> None:
        kind = type(event).__name__
        if kind in ("Enter", "Leave"):
            self._region(into, location, event, kind == "Enter", time_ns)
        elif kind in ("MpiSend", "MpiIsend"):
            into.add(
                EventKind.send, pair(event.receiver, event.msg_tag), self.comms[event.communicator], event.msg_length
            )
        elif kind in ("MpiRecv", "MpiIrecv"):
            at = pair(event.sender, event.msg_tag)
            into.add(EventKind.recv, at, self.comms[event.communicator], event.msg_length)
            into.add(EventKind.done, at, 0, event.msg_length)
        elif kind == "MpiCollectiveEnd":
            for one in self._collective(event):
                into.add(*one)
        elif kind == "NonBlockingCollectiveRequest":
            self.asked[self.threads[location][0], event.request_id] = into, len(into.words)
        elif kind == "NonBlockingCollectiveComplete":
            begun = self.asked.pop((self.threads[location][0], event.request_id), None)
            self.late += [(*begun, event)] if begun else []
        elif kind.startswith("Rma"):
            self._one_sided(into, kind, event)

    def _region(self, into: Events, location: Any, event: Any, is_enter: bool, time_ns: int) -> None:
        """Read a region. In Dovetail's exports it may stand for a point, or for several unsuccessful polls."""
        number, open_ = (
            self.names.setdefault(event.region.name, len(self.names)) + 1,
            self.open.setdefault(location, []),
        )
        values = {
            attribute.name: int(value)
            for attribute, value in (event.attributes or {}).items()
            if attribute.name in OURS
        }
        arg = values.get("arg", 0)
        if not is_enter:
            calls, pause_ns, is_point = open_.pop() if open_ else (1, 0, 0)
            if not is_point:
                into.add(EventKind.end, time_ns, 0 if calls > 1 else number, _repeated(calls, pause_ns))
            return
        open_.append((values.get("calls", 1), values.get("pause_ns", 0), values.get("is_point", 0)))
        into.add(EventKind.point if "is_point" in values else EventKind.begin, time_ns, number, arg)

    def _collective(self, event: Any) -> list[tuple[EventKind, int, int, int]]:
        """Return the events that describe a collective's root and bytes."""
        names = ("root", "size_received", "size_sent")
        root, received, sent = (getattr(event, name) for name in names)
        known = isinstance(root, int) and 0 <= root < 1 << 31
        moved = (EventKind.collective, received, self.comms[event.communicator], sent)
        return [*([(EventKind.root, root, 0, 0)] if known else []), moved]

    def _one_sided(self, into: Events, kind: str, event: Any) -> None:
        """Read puts, gets and accumulates. An accumulate counts as a put; if it fetches, as a get, too."""
        if kind not in ("RmaPut", "RmaGet", "RmaAtomic"):
            return
        at = pair(event.remote, self.windows[event.win])
        if kind == "RmaAtomic":
            into.add(EventKind.put, at, 0, event.bytes_sent)
            if event.type != self.accumulates:
                into.add(EventKind.get, at, 0, event.bytes_received)
        else:
            into.add(EventKind.put if kind == "RmaPut" else EventKind.get, at, 0, event.bytes)


def _repeated(calls: int, pause_ns: int) -> int:
    """Return the argument of an interval's end, if the interval stands for several calls; else 0."""
    return min(pause_ns, (1 << 27) - 1) << REPEAT_BITS | min(calls - 1, (1 << REPEAT_BITS) - 1) if calls > 1 else 0
