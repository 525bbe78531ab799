"""The picture of a long trace: its sums equal those of the calls, however many, and no spans overlap."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.report import trace_page
from dovetail.report.span_classes import MPI_GROUPS
from dovetail.report.trace_page import write_trace_page
from dovetail.trace import Trace, TraceFile, save_trace
from dovetail.trace.analysis.aggregate import MOST_SPANS, aggregate
from dovetail.trace.analysis.call_classes import CLASSES, OUTSIDE, RECEIVE, SEND, WAIT
from dovetail.trace.trace import COLUMNS

KINDS_OF = (SEND, RECEIVE, WAIT)


def many(folder, count: int, ranks: int = 3) -> TraceFile:
    """Consecutive calls of random lengths: most are short, a few as long as a thousand others."""
    rng = np.random.default_rng(1)
    columns = {name: np.zeros(count, dtype) for name, dtype in COLUMNS.items()}
    length = rng.exponential(1.0, count) * np.where(rng.random(count) < 0.001, 1000.0, 1.0)
    gap = rng.exponential(0.5, count)
    rank = np.arange(count) % ranks
    start = np.zeros(count)
    for r in range(ranks):
        mine = rank == r
        ends = np.cumsum((length + gap)[mine])
        start[mine] = ends - length[mine]
    columns |= {"rank": rank.astype("i4"), "name": rng.integers(0, 3, count).astype("i4"), "start_s": start}
    columns |= {"end_s": start + length, "request": np.full(count, -1), "comm": np.full(count, -1, "i4")}
    order = np.argsort(columns["end_s"], kind="stable")
    columns = {name: column[order] for name, column in columns.items()}
    return save_trace(folder / "trace", Trace(ranks, ("MPI_Send", "MPI_Recv", "MPI_Wait"), (), columns))


def test_sums_equal_those_of_the_calls(tmp_path):
    file = many(tmp_path, 200_000)
    found, col = aggregate(file), file.read().columns
    spans = found.timeline.columns
    assert found.timeline.num_spans < MOST_SPANS
    assert found.num_calls == 200_000
    for rank in range(3):
        for name, kind in enumerate(KINDS_OF):
            calls = (col["rank"] == rank) & (col["name"] == name)
            mine = (spans["rank"] == rank) & (found.classes == kind)
            traced_s = (col["end_s"] - col["start_s"])[calls].sum()
            assert (spans["end_s"] - spans["start_s"])[mine].sum() == pytest.approx(traced_s, rel=1e-3)
            assert found.calls[mine].sum() == np.count_nonzero(calls)
        mine = np.flatnonzero(spans["rank"] == rank)
        mine = mine[np.argsort(spans["start_s"][mine])]
        assert (spans["start_s"][mine][1:] >= spans["end_s"][mine][:-1] - 1e-6 * found.bin_s).all()
    assert OUTSIDE not in found.classes


def test_a_page_of_a_long_trace_says_that_it_shows_sums(tmp_path, monkeypatch):
    file = many(tmp_path, 5000)
    whole = write_trace_page(tmp_path / "whole.html", [file], ["whole"]).read_text()
    monkeypatch.setattr(trace_page, "MOST_ROWS", 1000)
    page = write_trace_page(tmp_path / "sums.html", [file], ["sums"]).read_text()
    assert "sums of 5000 calls" in page
    assert "shows sums" not in whole


def test_a_page_has_a_group_for_each_class_of_call():
    assert [group.name for group in MPI_GROUPS] == list(CLASSES)
