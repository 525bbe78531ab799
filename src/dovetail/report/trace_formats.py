"""trace_formats: Dovetail's own trace formats (see `trace.formats`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dovetail.trace import Trace, TraceFile
from dovetail.trace.formats import TraceFormat, Written


class Perfetto(TraceFormat):
    """Chrome's trace format; the default for files whose name matches no other format."""

    help = "Chrome's trace format, for Perfetto."
    suffixes = (".json", ".json.gz", "")
    by_rank = True  # PyTorch's profiler writes a file for each rank

    def write(self, path: Path, trace: TraceFile) -> Written:
        from dovetail.report.trace_perfetto import write_trace_perfetto

        return Written(write_trace_perfetto(path, trace))

    def read(self, paths: Sequence[Path]) -> Trace:
        from dovetail.trace.exchange.chrome import read_chrome

        return read_chrome(paths)


class Tlog(TraceFormat):
    """The file `trace.log` of tlog."""

    help = "The trace.log of tlog, shown by tlogview."
    suffixes = (".log",)

    def write(self, path: Path, trace: TraceFile) -> Written:
        from dovetail.trace.exchange.tlog import write_tlog

        numbers = write_tlog(path, trace.read())
        return Written(path, [f"event {number}: {name}" for name, number in numbers.items()])

    def read(self, paths: Sequence[Path]) -> Trace:
        from dovetail.trace.exchange.tlog import read_tlog

        return read_tlog(paths[0])


class Otf2(TraceFormat):
    """An OTF2 archive."""

    help = "A folder with an OTF2 archive."
    suffixes = (".otf2",)

    def write(self, path: Path, trace: TraceFile) -> Written:
        from dovetail.report.trace_otf2 import write_trace_otf2

        return Written(write_trace_otf2(path, trace.read()))

    def read(self, paths: Sequence[Path]) -> Trace:
        from dovetail.trace.exchange.otf2_read import read_otf2

        return read_otf2(paths[0])
