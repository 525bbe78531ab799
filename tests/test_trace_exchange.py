"""Traces of other tools: OTF2 and tlog written and read again, Chrome's and Kineto's read; bad files are refused."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
from test_trace_waits import call, collective, sent, taken
from trace_files import event, write_process

from dovetail.cli import main
from dovetail.core import DovetailError
from dovetail.report.trace_page import span_texts
from dovetail.trace import Trace, merge, open_trace
from dovetail.trace.chrome import read_chrome
from dovetail.trace.otf2_read import read_otf2
from dovetail.trace.stats import stats
from dovetail.trace.tlog import read_tlog, write_tlog


@pytest.fixture
def trace(tmp_path) -> Trace:
    first = [*call(3, 0, 4), *call(1, 4, 5, sent(1, 100)), *call(11, 5, 9, *collective())]
    second = [*call(2, 1, 6, *taken(0, 100)), *call(11, 6, 9, *collective()), event("point", 10**7, 3, 4)]
    for rank, events in enumerate((first, second)):
        write_process(tmp_path / "run", rank, {1: events})
    return merge(tmp_path / "run").read()


def spans(trace: Trace) -> list[tuple]:
    col = trace.columns
    rows = np.flatnonzero((col["part"] == 0) & ~trace.of_kind("point"))
    times = (np.rint(col[name][rows] * 1e6).astype(int).tolist() for name in ("start_s", "end_s"))
    names = [trace.names[name] for name in col["name"][rows].tolist()]
    return sorted(zip(col["rank"][rows].tolist(), names, *times, strict=True))


def test_what_a_call_is_called_from_is_not_taken_for_a_number_of_the_programs(tmp_path, capfd):
    called = [event("begin", 0, 6, 123456), event("end", 10**6, 6), event("begin", 2 * 10**6, 3, 654321)]
    write_process(tmp_path / "run", 0, {1: [*called, event("end", 3 * 10**6, 3)]}, num_ranks=1)
    found = merge(tmp_path / "run").read()
    assert span_texts(found, np.arange(2)) == ["MPI_Waitall", "work 654321"]
    assert main(["trace", "export", str(tmp_path / "run"), "--perfetto", str(tmp_path / "p.json")]) == 0
    exported = json.loads((tmp_path / "p.json").read_text())["traceEvents"]
    told = {each["name"]: each["args"] for each in exported if each["ph"] == "X"}
    assert told["work"] == {"arg": 654321}
    assert told["MPI_Waitall"]["called_from"] == hex(123456)
    capfd.readouterr()


def test_otf2_there_and_back(trace, tmp_path, capfd):
    pytest.importorskip("otf2", reason="needs otf2: no module otf2")
    assert main(["trace", "export", str(tmp_path / "run"), "--otf2", str(tmp_path / "archive")]) == 0
    assert main(["trace", "import", str(tmp_path / "archive" / "traces.otf2"), "-o", str(tmp_path / "back")]) == 0
    back = open_trace(tmp_path / "back").read()
    assert spans(back) == spans(trace)
    ours, theirs = stats(trace), stats(back)
    assert theirs.matrix_bytes.tolist() == ours.matrix_bytes.tolist() == [[0, 100], [0, 0]]
    assert [(w.state, w.name, w.count) for w in theirs.waits] == [(w.state, w.name, w.count) for w in ours.waits]
    with pytest.raises(DovetailError, match="no such file"):
        read_otf2(tmp_path / "nowhere.otf2")
    capfd.readouterr()


def test_tlog_there_and_back(trace, tmp_path):
    numbers = write_tlog(tmp_path / "trace.log", trace)
    assert set(numbers) == {"work", "MPI_Send", "MPI_Recv", "MPI_Allreduce"}
    back = read_tlog(tmp_path / "trace.log")
    times = [(rank, start, end) for rank, _, start, end in spans(trace)]
    assert sorted((rank, start, end) for rank, _, start, end in spans(back)) == sorted(times)
    assert (tmp_path / "trace.log").stat().st_size % 1024 == 0


def test_our_perfetto_export_is_read(trace, tmp_path, capfd):
    assert main(["trace", "export", str(tmp_path / "run"), "--perfetto", str(tmp_path / "p.json")]) == 0
    assert spans(read_chrome([tmp_path / "p.json"])) == spans(trace)
    capfd.readouterr()


def kineto(rank: int) -> dict:
    """What PyTorch's profiler writes for a rank: an operator, and an all-reduce of 1000 floats on a stream."""
    about = {"Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000, "dtype": "Float"}
    about |= {"Group size": 2, "Process Group Ranks": "[0, 1]"}
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    events = [
        {"ph": "M", "name": "process_name", "pid": 77, "args": {"name": "python"}},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 77, "tid": 77, "ts": 1000 + rank, "dur": 50},
        {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 1020 + 5 * rank, "dur": 40, "args": about},
        {"ph": "B", "name": "step", "pid": 77, "tid": 77, "ts": 990},
        {"ph": "E", "pid": 77, "tid": 77, "ts": 1100},
    ]
    return {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2},
        "traceEvents": events,
    }


def test_kineto_files_of_two_ranks(tmp_path):
    (tmp_path / "0.json").write_text(json.dumps(kineto(0)))
    (tmp_path / "1.json.gz").write_bytes(gzip.compress(json.dumps(kineto(1)).encode()))
    trace = read_chrome([tmp_path / "0.json", tmp_path / "1.json.gz"])
    assert trace.num_ranks == 2
    assert sorted(trace.names) == ["aten::mm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "step"]
    found = stats(trace)
    (wait,) = found.waits
    assert (wait.state, wait.count, wait.most_rank) == ("wait_at_collective", 1, 0)
    assert wait.seconds == pytest.approx(5e-6)
    rows = trace.of_kind("collective")
    assert trace.columns["num_bytes"][rows].tolist() == [4000, 4000]
    assert trace.comms[0].ranks == (0, 1)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"traceEvents": 3}', '{"a": 1}', "\x7fELF", '[{"x": 1}]'])
def test_what_is_no_trace_is_refused(tmp_path, text, capfd):
    (tmp_path / "bad.json").write_text(text)
    assert main(["trace", "import", str(tmp_path / "bad.json"), "-o", str(tmp_path / "out")]) == 2
    assert "is no trace in Chrome's format" in capfd.readouterr().err
    (tmp_path / "bad.log").write_text(text)
    with pytest.raises(DovetailError, match=r"no trace.log"):
        read_tlog(tmp_path / "bad.log")


def test_broken_events_are_counted(tmp_path):
    events = [{"ph": "X", "name": "a", "ts": 1, "dur": 2}, {"ph": "X", "name": "b"}, {"ph": "B", "name": "c", "ts": 3}]
    (tmp_path / "t.json").write_text(json.dumps(events))
    trace = read_chrome([tmp_path / "t.json"])
    assert trace.num_rows == 1
    assert trace.meta["faults"] == ["1 spans never end", "1 events are broken"]
