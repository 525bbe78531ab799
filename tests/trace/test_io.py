"""I/O of traced programs: intervals of its own, neither work nor waits; the kernel's counters are in the trace."""

from __future__ import annotations

import json

import needs
import numpy as np
import pytest
from late_ranks import Program
from trace_files import NAMES, event, write_process
from traced_programs import compiled, traced

from dovetail.advise.advise import advise
from dovetail.advise.causes import causes
from dovetail.core import DovetailError
from dovetail.report.trace_tables import tables
from dovetail.trace import merge, open_trace
from dovetail.trace.analysis.call_classes import CLASSES, IO, class_of
from dovetail.trace.analysis.stats import stats
from dovetail.trace.load import COLUMNS, is_load
from dovetail.trace.store import save_trace


@pytest.fixture
def write(monkeypatch):
    """The number of a name: the C library's write."""
    monkeypatch.setitem(NAMES, 20, "libc write")
    return 20


def writing_root(folder, write, io_ms=3.0, work_ms=6.0):
    """Rank 0 writes a file in each step, within work that all ranks have."""
    program = Program(2)
    for _ in range(10):
        for rank in range(2):
            program.work(rank, work_ms / 2)
            if rank == 0:
                program.io(rank, write, io_ms)
            program.work(rank, work_ms / 2)
        program.all_reduce()
    return program.trace(folder)


def test_io_is_the_cause_and_does_not_divide_the_work_around_it(tmp_path, write):
    found = causes(writing_root(tmp_path, write))
    (cause,) = found.causes
    assert (cause.activity.kind, cause.rank) == ("io", 0)
    assert "libc write" in cause.activity.place
    assert cause.seconds == pytest.approx(10 * 3e-3, rel=0.05)
    assert "rank 0 reads or writes files longer" in cause.pattern.words


def test_a_finding_names_io_as_its_cause(tmp_path, write):
    first = advise(writing_root(tmp_path, write)).findings[0]
    assert (first.cause, first.root[0]) == ("io", 0)


def test_io_of_the_c_library_is_no_time_in_mpi(tmp_path, write):
    trace = writing_root(tmp_path, write)
    found = stats(trace)
    assert {call.name: call.count for call in found.calls}["libc write"] == 10
    assert found.ranks[0].mpi_s < 1e-3
    assert CLASSES[class_of("libc write")] == CLASSES[class_of("MPI_File_write_all")] == CLASSES[IO] == "I/O"


def test_an_interval_counts_as_the_calls_that_it_stands_for(tmp_path, write):
    """Rank 0 writes 100 times in each of 10 steps. The recorder makes one interval of such calls."""
    program = Program(2)
    for _ in range(10):
        program.io(0, write, 3)
        program.events[0][-1] = event("end", program.events[0][-1][0], 0, 99)
        program.all_reduce()
    trace = program.trace(tmp_path)
    assert "1000 calls of libc write" in advise(trace).findings[0].evidence
    assert {call.name: call.count for call in stats(trace).calls}["libc write"] == 1000


def test_bytes_of_io_of_the_c_library_are_not_shown_since_they_are_unknown(tmp_path, write):
    calls = tables(stats(writing_root(tmp_path, write)))[0]
    at = calls.headers.index("bytes")
    assert {row[0]: row[at] for row in calls.rows} == {"libc write": "", "MPI_Allreduce": "176 B"}


@pytest.mark.mpi
def test_every_way_to_read_and_write_is_recorded(mpi, tmp_path):
    """Also MPI's own; no I/O of the library or the tracer, within MPI_Init, MPI_Finalize or other calls, is."""
    program = compiled(mpi, needs.RANKS / "trace_io.c", tmp_path / "program")
    code, trace = traced(mpi, tmp_path / "out", 2, program, tmp_path / "data")
    assert code == 0
    calls = stats(trace).ranks[1].calls
    found = {call.name: call.count for call in calls}
    reported = {"libc open": 2, "libc close": 2, "libc read": 7, "libc write": 8, "libc sync": 2}
    assert {name: count for name, count in found.items() if name.startswith("libc")} == reported
    files = ("open", "set_view", "write_at", "write_all", "read_at_all", "iwrite_at", "sync", "close")
    assert {name: count for name, count in found.items() if "_File_" in name} == {f"MPI_File_{it}": 1 for it in files}
    moved = {call.name: call.num_bytes for call in calls if "_File_" in call.name and call.num_bytes}
    assert moved == dict.fromkeys(
        ("MPI_File_write_at", "MPI_File_write_all", "MPI_File_read_at_all", "MPI_File_iwrite_at"), 64
    )


@pytest.mark.mpi
def test_a_trace_has_the_kernels_counters(mpi, tmp_path):
    program = compiled(mpi, needs.RANKS / "trace_io.c", tmp_path / "program")
    _, trace = traced(mpi, tmp_path / "out", 2, program, tmp_path / "data")
    for about in trace.meta["ranks"]:
        assert about["has_io"]
        load = about["load"]
        assert is_load(load)
        assert len(load["time_s"]) >= 2
        for name in COLUMNS:
            column = load[name]
            assert None in column or np.all(np.diff(column) >= 0), name
        assert load["cpus"]
    assert open_trace(save_trace(tmp_path / "again", trace).path).read().meta["ranks"] == trace.meta["ranks"]


@pytest.mark.parametrize("note", [{"load": [1, 2]}, {"load": ["x"] * 8}, {"booted_ns": -1, "cpus": []}, {"load": 5}])
def test_damaged_counters_are_left_out_with_a_warning(tmp_path, write, note):
    write_process(tmp_path, 0, {1: []}, num_ranks=1, notes=[note])
    trace = merge(tmp_path)
    assert "load" not in trace.meta["ranks"][0]
    assert any("broken lines" in fault for fault in trace.meta["faults"])


def test_damaged_counters_of_a_trace_are_refused(tmp_path, write):
    trace = writing_root(tmp_path, write)
    trace.meta["ranks"][0]["load"] = json.loads('{"time_s": [1]}')
    with pytest.raises(DovetailError, match="broken index"):
        save_trace(tmp_path / "bad", trace)
