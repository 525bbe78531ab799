"""Counts of a trace: equal to a plain reading of its rows; skew is what passes before the last rank's begin."""

from __future__ import annotations

import random
from collections import defaultdict

import numpy as np
import pytest

from dovetail.accelerate.traced import counts_of_trace, level_of
from dovetail.core import DovetailError
from dovetail.trace import Trace
from dovetail.trace.decode import KINDS
from dovetail.trace.trace import COLUMNS, Comm

NAMES = ("MPI_Init", "MPI_Allreduce", "MPI_Allreduce_c", "MPI_Send", "MPI_Test", "MPI_Bcast", "work", "MPI_Finalize")
REDUCTIONS = ("MPI_Allreduce", "MPI_Allreduce_c")
KIND = {"MPI_Allreduce": "collective", "MPI_Allreduce_c": "collective", "MPI_Bcast": "collective", "MPI_Send": "send"}
META = {
    "ranks": [{"rank": r, "host": "a", "library": "MPICH Version: 5.0.2", "thread_level": "multiple"} for r in (0, 1)]
}


def trace_of(rows: list[tuple]) -> Trace:
    """Make a trace of rows (rank, name, start, end, bytes, repeats)."""
    rows = sorted(rows, key=lambda row: row[3])
    columns = {column: np.zeros(len(rows), kind) for column, kind in COLUMNS.items()}
    for i, (rank, name, start, end, num_bytes, repeats) in enumerate(rows):
        kind = KIND.get(name, "call" if "call" in KINDS else KINDS[0])
        values = {"rank": rank, "name": NAMES.index(name), "start_s": start, "end_s": end, "num_bytes": num_bytes}
        values |= {
            "repeats": repeats,
            "kind": KINDS.index(kind),
            "request": -1,
            "peer": -1 if name != "MPI_Bcast" else 0,
        }
        values |= {"comm": 0 if kind == "collective" else -1}
        for column, value in values.items():
            columns[column][i] = value
    return Trace(2, NAMES, (Comm((0, 1)),), columns, META)


def drawn(seed: int) -> list[tuple]:
    draw = random.Random(seed)
    rows, now = [], [1.0, 1.0]
    for rank in (0, 1):
        rows.append((rank, "MPI_Init", 0.0, 1.0, 0, 0))
    for _ in range(60):
        name = draw.choice(NAMES[1:-1])
        num_bytes = draw.choice((1, 8, 9, 1024)) if name in KIND else 0
        begun = [t + draw.random() for t in now]
        over = max(begun) + draw.random() if KIND.get(name) == "collective" else 0
        for rank in (0, 1):
            end = over + 0.1 * rank if over else begun[rank] + draw.random()
            repeats = draw.randrange(4) if name == "MPI_Test" else 0
            rows.append((rank, name, begun[rank], end, num_bytes, repeats))
            now[rank] = end
    return [*rows, (0, "MPI_Finalize", now[0] + 2, 99.0, 0, 0), (1, "MPI_Finalize", now[1] + 1, 99.0, 0, 0)]


@pytest.mark.parametrize("seed", range(5))
def test_counts_equal_a_plain_reading(seed):
    rows = drawn(seed)
    found = counts_of_trace(trace_of(rows))
    calls, seconds, waited = defaultdict(int), defaultdict(float), defaultdict(float)
    reductions = {rank: [row for row in rows if row[0] == rank and row[1] in REDUCTIONS] for rank in (0, 1)}
    for _, name, start, end, num_bytes, repeats in rows:
        if name in NAMES[1:-2]:
            key = name.removeprefix("MPI_"), 2 * (KIND.get(name) == "collective"), num_bytes.bit_length() - 1
            calls[key] += 1 + repeats
            seconds[key] += end - start
    for mine, theirs in zip(*reductions.values(), strict=True):
        for a, b in ((mine, theirs), (theirs, mine)):
            waited[a[1].removeprefix("MPI_"), 2, a[4].bit_length() - 1] += max(b[2] - a[2], 0.0)
    assert {bucket[:3]: bucket.calls for bucket in found.buckets} == calls
    assert {bucket[:3]: bucket.seconds for bucket in found.buckets} == pytest.approx(seconds)
    assert {bucket[:3]: bucket.waited_s for bucket in found.buckets if bucket.sampled} == pytest.approx(waited)
    ends = [next(row[2] for row in rows if row[:2] == (rank, "MPI_Finalize")) - 1.0 for rank in (0, 1)]
    assert (found.elapsed_s, found.rank_s) == pytest.approx((max(ends), sum(ends)))
    assert (found.ranks, found.hosts, found.library) == (2, ("a",), "MPICH Version: 5.0.2")
    assert level_of(trace_of(rows)) == "multiple"


def test_a_trace_of_no_mpi_program_is_refused():
    trace = trace_of([(0, "work", 0.0, 1.0, 0, 0)])
    with pytest.raises(DovetailError, match="no rank of an MPI program"):
        counts_of_trace(Trace(2, NAMES, (), trace.columns, {"ranks": [{"rank": 0, "host": "a"}]}))
