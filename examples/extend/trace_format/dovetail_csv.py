"""csv: a trace format of another package; a line for each interval: rank, thread, name, start and end in seconds."""

import csv

import numpy as np

from dovetail.core import DovetailError, EnvironmentFault
from dovetail.trace import Trace
from dovetail.trace.formats import TraceFormat, Written
from dovetail.trace.trace import COLUMNS

HEAD = ["rank", "thread", "name", "start_s", "end_s"]


class Csv(TraceFormat):
    """A table of all calls and intervals; messages and communicators have no column."""

    help = "A table of calls and intervals (.csv)."
    suffixes = (".csv",)

    def write(self, path, trace):
        try:
            with path.open("w", newline="", encoding="utf-8") as file:
                table = csv.writer(file)
                table.writerow(HEAD)
                for part in trace.parts():
                    part = part.rows(part.columns["part"] == 0)  # further rows of an interval say what it moved
                    columns = [part.columns[name].tolist() for name in HEAD]
                    for rank, thread, name, start_s, end_s in zip(*columns, strict=True):
                        table.writerow([rank, thread, part.names[name], repr(start_s), repr(end_s)])
        except OSError as error:
            raise EnvironmentFault(f"cannot write {path}", found=error.strerror) from error
        return Written(path)

    def read(self, paths):
        try:
            with paths[0].open(newline="", encoding="utf-8") as file:
                head, *lines = csv.reader(file)
                if head != HEAD:
                    raise ValueError(f"columns {', '.join(head)}")
                rows = [(int(r), int(t), name, float(a), float(z)) for r, t, name, a, z in lines]
        except (OSError, ValueError) as error:
            raise DovetailError(f"{paths[0]} is no table of intervals", found=str(error)) from error
        rows.sort(key=lambda row: row[4])
        names = {name: number for number, name in enumerate(dict.fromkeys(row[2] for row in rows))}
        columns = {name: np.zeros(len(rows), dtype) for name, dtype in COLUMNS.items()}
        for name, values in zip(HEAD, zip(*rows, strict=True), strict=False):
            columns[name][:] = [names[value] for value in values] if name == "name" else values
        for name in ("peer", "comm", "request"):
            columns[name][:] = -1
        return Trace(
            max((row[0] for row in rows), default=-1) + 1, tuple(names), (), columns, {"source": str(paths[0])}
        )
