"""Formats of other tools: OTF2 and tlog are written and read, Chrome's and Kineto's read; bad files are refused."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys

import numpy as np
import pytest
from trace_calls import call, collective, sent, taken
from trace_files import event, pair, write_process

from dovetail.cli import main
from dovetail.core import DovetailError
from dovetail.report import trace_perfetto
from dovetail.report.trace_page import span_texts
from dovetail.report.trace_perfetto import write_trace_perfetto
from dovetail.trace import Trace, merge, open_trace
from dovetail.trace.analysis.stats import stats
from dovetail.trace.decode import KINDS
from dovetail.trace.exchange.chrome import read_chrome
from dovetail.trace.exchange.otf2_read import read_otf2
from dovetail.trace.exchange.tlog import read_tlog, write_tlog
from dovetail.trace.process_file import REPEAT_BITS


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


def test_the_call_address_is_not_shown_as_the_programs_argument(tmp_path, capfd):
    called = [event("begin", 0, 6, 123456), event("end", 10**6, 6), event("begin", 2 * 10**6, 3, 654321)]
    write_process(tmp_path / "run", 0, {1: [*called, event("end", 3 * 10**6, 3)]}, num_ranks=1)
    found = merge(tmp_path / "run").read()
    assert span_texts(found, np.arange(2)) == ["MPI_Waitall", "work 654321"]
    assert main(["trace", "export", str(tmp_path / "run"), "--perfetto", str(tmp_path / "p.json")]) == 0
    exported = json.loads((tmp_path / "p.json").read_text())["traceEvents"]
    reported = {each["name"]: each["args"] for each in exported if each["ph"] == "X"}
    assert reported["work"] == {"arg": 654321}
    assert reported["MPI_Waitall"]["called_from"] == hex(123456)
    capfd.readouterr()


def test_otf2_export_and_import(trace, tmp_path, capfd):
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


def test_tlog_export_and_import(trace, tmp_path):
    numbers = write_tlog(tmp_path / "trace.log", trace)
    assert set(numbers) == {"work", "MPI_Send", "MPI_Recv", "MPI_Allreduce"}
    back = read_tlog(tmp_path / "trace.log")
    times = [(rank, start, end) for rank, _, start, end in spans(trace)]
    assert sorted((rank, start, end) for rank, _, start, end in spans(back)) == sorted(times)
    assert (tmp_path / "trace.log").stat().st_size % 1024 == 0


def test_a_perfetto_export_can_be_imported(trace, tmp_path, capfd):
    assert main(["trace", "export", str(tmp_path / "run"), "--perfetto", str(tmp_path / "p.json")]) == 0
    assert spans(read_chrome([tmp_path / "p.json"])) == spans(trace)
    capfd.readouterr()


MORE = {16: "MPI_Put", 17: "MPI_Get", 18: "MPI_Accumulate", 19: "MPI_Get_accumulate", 20: "MPI_Iallreduce"}
MORE |= {21: "MPI_Win_fence", 22: "on a lane"}


@pytest.fixture
def every_kind(tmp_path) -> Trace:
    """A trace with rows of every kind: merged polls, points, requests, blocking and nonblocking collectives, one-sided
    calls, a lane, and an interval that never ends."""
    notes = [{"name": number, "text": text} for number, text in MORE.items()]
    notes[-1]["lane"] = "lane"
    notes += [{"comm": 1, "size": 2, "number": 0, "window": True}]
    for rank in (0, 1):
        to = pair(1 - rank, 1)
        moved = [*call(16, 10, 11, event("put", to, 0, 8)), *call(17, 12, 13, event("get", to, 0, 24))]
        moved += [*call(18, 14, 15, event("put", to, 0, 40)), *call(21, 15, 16, event("window", pair(-1, 1)))]
        moved += call(19, 16, 17, event("put", to, 0, 56), event("get", to, 0, 56))
        begun = [event("begin", 18 * 10**6, 20), *collective(), event("end", 19 * 10**6, 20, 77)]
        over = call(6, 20, 21, event("request", 77), event("done", pair(-1, -1)))
        polls = [event("begin", 22 * 10**6, 15), event("end", 23 * 10**6, 0, 200_000 << REPEAT_BITS | 5)]
        own = [*call(22, 24, 25), event("point", 26 * 10**6, 3, -4), event("begin", 27 * 10**6, 3, 9 - rank)]
        own += [event("end", 28 * 10**6, 3), event("begin", 29 * 10**6, 2)]
        first = call(1, 4, 5, sent(1, 100)) if rank == 0 else call(2, 1, 6, *taken(0, 100))
        rows = [
            *call(3, 0, 1),
            *first,
            *call(12, 7, 8, event("root", 0), *collective()),
            *moved,
            *begun,
            *over,
            *polls,
            *own,
        ]
        write_process(tmp_path / "run", rank, {1: rows}, notes=notes)
    return merge(tmp_path / "run").read()


def in_ns(column: np.ndarray) -> list[int]:
    return np.rint(column * 1e9).astype(int).tolist()


def test_a_perfetto_export_loses_nothing(every_kind, tmp_path, capfd):
    """Every row and every column is imported again, times to the nanosecond."""
    assert len(np.unique(every_kind.columns["kind"])) == len(KINDS) - 2  # all except `request` and `comm`
    assert main(["trace", "export", str(tmp_path / "run"), "--perfetto", str(tmp_path / "p.json")]) == 0
    assert main(["trace", "import", str(tmp_path / "p.json"), "-o", str(tmp_path / "back")]) == 0
    back = open_trace(tmp_path / "back").read()
    assert (back.num_ranks, back.names, back.comms) == (every_kind.num_ranks, every_kind.names, every_kind.comms)
    assert back.meta == every_kind.meta | {"source": str(tmp_path / "p.json")}
    for name, column in every_kind.columns.items():
        both = (
            (in_ns(back.columns[name]), in_ns(column)) if name in ("start_s", "end_s") else (back.columns[name], column)
        )
        assert list(both[0]) == list(both[1]), name
    capfd.readouterr()


def test_a_changed_perfetto_export_is_refused(every_kind, tmp_path):
    path = tmp_path / "p.json"
    whole = json.loads(write_trace_perfetto(path, every_kind).read_text())
    changes = [("names", 3), ("num_ranks", 1), ("comms", [7]), ("threads", []), ("meta", []), ("schema", "x")]
    for key, value in changes:
        other = whole["otherData"]["dovetail"] | {key: value}
        path.write_text(json.dumps(whole | {"otherData": {"dovetail": other}}))
        with pytest.raises(DovetailError, match="is no trace in Chrome's format"):
            read_chrome([path])
    text = json.dumps(whole)
    for old, new in (('"part": 1', '"part": 7'), ('"pause_s": 0.0', '"pause_s": 1e999'), ('"ts": 1', '"ts": 1e30')):
        assert old in text
        path.write_text(text.replace(old, new, 1))
        with pytest.raises(DovetailError, match="is no trace in Chrome's format"):
            read_chrome([path])
    del whole["otherData"]  # as after a rewrite by another tool: spans and points remain
    path.write_text(json.dumps(whole))
    assert spans(read_chrome([path])) == spans(every_kind)


def test_otf2_carries_bytes_and_counts(every_kind, tmp_path, capfd):
    """All that `stats` counts and sums; the export leaves out which windows were synchronised."""
    pytest.importorskip("otf2", reason="needs otf2: no module otf2")
    assert main(["trace", "export", str(tmp_path / "run"), "--otf2", str(tmp_path / "archive")]) == 0
    back = read_otf2(tmp_path / "archive" / "traces.otf2")
    ours, theirs = stats(every_kind), stats(back)
    reported = [sorted((c.name, c.count, c.num_bytes) for c in found.calls) for found in (ours, theirs)]
    assert reported[0] == reported[1]
    assert theirs.matrix_bytes.tolist() == ours.matrix_bytes.tolist() == [[0, 100 + 184], [184, 0]]
    for found in (every_kind, back):
        col = found.columns
        polls = (col["name"] == found.names.index("MPI_Test")) & (col["part"] == 0)
        assert col["repeats"][polls].tolist() == [5, 5]
        assert in_ns(col["pause_s"][polls]) == [200_000] * 2
        assert col["arg"][found.of_kind("point")].tolist() == [-4, -4]
        work = found.of_kind("interval") & (col["name"] == found.names.index("work"))
        assert sorted(col["arg"][work].tolist()) == [0, 0, 8, 9]
        assert [found.comms[c].is_window for c in np.unique(col["comm"][found.of_kind("put", "get")])] == [True]
    capfd.readouterr()


def test_tlog_keeps_names_and_arguments(every_kind, tmp_path):
    """The format has room for nine names, and no bytes of calls."""
    few = every_kind.rows(
        np.isin(every_kind.columns["name"], [every_kind.names.index(n) for n in ("work", "MPI_Test")])
    )
    write_tlog(tmp_path / "trace.log", few)
    back = read_tlog(tmp_path / "trace.log")
    assert spans(back) == spans(few)
    assert sorted(back.columns["arg"].tolist()) == sorted(few.columns["arg"].tolist())
    assert not back.columns["begins"].any()
    (tmp_path / "trace.log.names").unlink()
    assert {name for _, name, _, _ in spans(read_tlog(tmp_path / "trace.log"))} == {"interval 1", "interval 2"}


def test_a_log_whose_last_block_is_not_padded_is_complete(every_kind, tmp_path):
    write_tlog(tmp_path / "trace.log", every_kind)
    data = (tmp_path / "trace.log").read_bytes()
    (tmp_path / "trace.log").write_bytes(data.rstrip(b"\0")[:-1].ljust(-(-len(data.rstrip(b"\0")) // 16) * 16, b"\0"))
    assert read_tlog(tmp_path / "trace.log").meta["faults"] == []
    (tmp_path / "trace.log").write_bytes(data[: 16 * 5])
    assert "is truncated" in read_tlog(tmp_path / "trace.log").meta["faults"][0]


def kineto(rank: int) -> dict:
    """The file of PyTorch's profiler for a rank: an operator, and an all-reduce of 1000 floats on a stream."""
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
def test_files_that_are_no_trace_are_refused(tmp_path, text, capfd):
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


@pytest.fixture
def two_groups(tmp_path) -> Trace:
    """A message and a broadcast on a communicator whose ranks are swapped, and simultaneous events."""
    notes = [{"comm": 1, "ranks": [1, 0], "number": 0}, {"comm": 2, "ranks": [1, 0], "number": 0, "window": True}]
    rows = []
    for rank in (0, 1):
        to = pair(rank, 7)  # the other's rank in the swapped communicator
        moved = [event("send", to, 1, 100)] if rank == 0 else [event("recv", to, 1, 100), event("done", to, 1, 100)]
        both = [event("begin", 0, 3, number) for number in (1, 2, 3)]
        both += [event("end", 10**6, 3), event("end", 10**6, 3), event("end", 1_500_000, 3)]
        both += [event("point", 2 * 10**6, 3, 5), event("point", 2 * 10**6, 3, 6)]
        root = call(12, 7, 8, event("root", 0), event("collective", 8 * rank, 1, 8 - 8 * rank))
        called = [event("begin", 4 * 10**6, 1 + rank, 123456), *moved, event("end", 5 * 10**6, 1 + rank)]
        rows.append([*both, *called, *root, *call(16, 9, 10, event("put", pair(rank, 2), 0, 8))])
    for rank in (0, 1):
        write_process(tmp_path / "run", rank, {1: rows[rank]}, notes=[{"name": 16, "text": "MPI_Put"}, *notes])
    return merge(tmp_path / "run").read()


def records(otf2, path) -> tuple[list[list[tuple]], list[tuple]]:
    """The events of each location as (type, ns, further fields); then the locations and the clock."""
    with otf2.reader.open(str(path)) as archive:
        made = archive.definitions
        found = {location: [] for location in made.locations}
        for location, one in archive.events:
            more = {a.name: value for a, value in (one.attributes or {}).items()}
            fields = [getattr(v, "name", v) for k, v in vars(one).items() if k not in ("time", "attributes")]
            found[location].append((type(one).__name__, one.time, *fields, *more.items()))
        about = [(it.name, it.number_of_events, it.group.system_tree_parent.name) for it in made.locations]
        clock = made.clock_properties
        return list(found.values()), [*about, (clock.global_offset, clock.trace_length), made.rma_wins[0].comm.name]


def test_otf2_records_are_complete_and_in_order(two_groups, tmp_path, monkeypatch):
    otf2 = pytest.importorskip("otf2", reason="needs otf2: no module otf2")
    from dovetail.report import otf2_events, trace_otf2

    monkeypatch.setattr(otf2_events, "CHUNK", 3)
    found, about = records(otf2, trace_otf2.write_trace_otf2(tmp_path / "archive", two_groups))
    ms = 10**6
    bcast = ("MpiCollectiveEnd", 8 * ms, otf2.CollectiveOp.BCAST, "communicator 1", 0)
    nested = [("Enter", 0, "work", ("arg", number)) for number in (1, 2, 3)]
    nested += [("Leave", ms, "work"), ("Leave", ms, "work"), ("Leave", 1_500_000, "work")]
    points = [("Enter", 2 * ms, "work", ("is_point", 1), ("arg", 5)), ("Leave", 2 * ms, "work")]
    points += [("Enter", 2 * ms, "work", ("is_point", 1), ("arg", 6)), ("Leave", 2 * ms, "work")]
    for rank, (name, moved) in enumerate(
        (
            ("MPI_Send", ("MpiSend", 4 * ms, 0, "communicator 1", 7, 100)),
            ("MPI_Recv", ("MpiRecv", 5 * ms, 1, "communicator 1", 7, 100)),
        )
    ):
        sizes = (8, 0) if rank == 0 else (0, 8)
        call_of = [("Enter", 4 * ms, name), moved, ("Leave", 5 * ms, name)]
        root = [("Enter", 7 * ms, "MPI_Bcast"), ("MpiCollectiveBegin", 7 * ms), (*bcast, *sizes)]
        root += [("Leave", 8 * ms, "MPI_Bcast")]
        put = [e for e in found[rank] if e[0] == "RmaPut"]
        assert [e for e in found[rank] if e[0] != "RmaPut"][:-2] == [*nested, *points, *call_of, *root]
        assert [e[1:5] for e in put] == [(9 * ms, "window 2", rank, 8)]
    assert about == [("main", len(each), "host") for each in found] + [(0, 10 * ms), "communicator 2"]


FULL = """
import resource
from dovetail.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
for words in {!r}:
    print(main(["trace", *words]), flush=True)
"""


def test_a_full_disk_leaves_no_partial_file(every_kind, tmp_path):
    """Each command prints an error, exits with code 2, and leaves no file that could pass for a complete one."""
    pytest.importorskip("otf2", reason="needs otf2: no module otf2")
    out = tmp_path / "out"
    out.mkdir()
    verbs = [["merge", "run", "-o", "out/x"], ["view", "run", "-o", "out/x"]]
    verbs += [["export", "run", f"--{form}", "out/x"] for form in ("perfetto", "tlog", "otf2")]
    done = subprocess.run([sys.executable, "-c", FULL.format(verbs)], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split() == ["2"] * len(verbs), done.stderr
    assert done.stderr.count("cannot write out/x") == done.stderr.count("too large\n") == len(verbs), done.stderr
    assert done.stderr.count("  try ") == len(verbs)
    assert not list(out.iterdir())


def test_perfetto_shows_names_tags_and_arrows(every_kind, tmp_path):
    """Fields that the viewer needs and our import does not."""
    shown = every_kind.rows(slice(None))
    shown.columns["tag"] = 0 * shown.columns["tag"]  # as in most rows; the message is shown nevertheless
    events = json.loads(write_trace_perfetto(tmp_path / "p.json", shown).read_text())["traceEvents"]
    named = [(e["name"], e["args"]["name"]) for e in events if e["ph"] == "M" and e["name"] != "dovetail"]
    assert sorted(named) == [
        *[("process_name", "rank 0 on host"), ("process_name", "rank 1 on host")],
        *([("thread_name", "lane")] * 2 + [("thread_name", "main")] * 2),
    ]
    (send,) = (e for e in events if e["name"] == "MPI_Send")
    (recv,) = (e for e in events if e["name"] == "MPI_Recv" and "is_open" not in e["args"])
    assert send["args"]["tag"] == 0
    left, came = (e for e in events if e["name"] == "message")
    assert (left["ph"], left["pid"], left["tid"], left["ts"]) == ("s", 1, send["tid"], send["ts"])
    end = recv["ts"] + recv["dur"]
    assert (came["ph"], came["pid"], came["tid"], came["ts"]) == ("f", 2, recv["tid"], round(end - 1e-3, 3))
    assert left["id"] == came["id"]
    assert {e["s"] for e in events if e["ph"] == "i"} == {"t"}, "a point belongs to its thread"


def test_perfetto_arrows_have_unique_numbers_across_batches(tmp_path, monkeypatch):
    first, second = ([each for i in range(5) for each in make(2 * i)] for make in (
        lambda at: call(1, at, at + 1, sent(1, 100)), lambda at: call(2, at, at + 1, *taken(0, 100))))  # fmt: skip
    for rank, events in enumerate((first, second)):
        write_process(tmp_path / "run", rank, {1: events})
    monkeypatch.setattr(trace_perfetto, "_BATCH", 2)
    path = write_trace_perfetto(tmp_path / "p.json", merge(tmp_path / "run").read())
    arrows = [e for e in json.loads(path.read_text())["traceEvents"] if e["name"] == "message"]
    assert sorted((e["id"], e["ph"]) for e in arrows) == [(i, ph) for i in range(1, 6) for ph in "fs"]


def test_tlog_keeps_the_nine_most_important_names(tmp_path):
    """The intervals with the most time and the most frequent points; arguments have 32 bits, names one line."""
    names = [{"name": 30 + i, "text": f"in\nterval {i}" if i == 11 else f"interval {i}"} for i in range(12)]
    names += [{"name": 50 + i, "text": f"point {i}"} for i in range(12)]
    rows, at = [], 0
    for i in range(12):
        rows += [event("begin", at, 30 + i, 1 << 20), event("end", at + 1000 * (i + 1), 30 + i)]
        rows += [event("point", at + 1000 * (i + 1), 50 + i) for _ in range(i + 1)]
        at += 10**5
    write_process(tmp_path / "run", 0, {1: rows}, num_ranks=1, notes=names)
    write_tlog(tmp_path / "trace.log", merge(tmp_path / "run").read())
    back = read_tlog(tmp_path / "trace.log")
    found = {back.names[name] for name in back.columns["name"].tolist()}
    assert found == {*(f"interval {i}" for i in range(3, 11)), "in terval 11", *(f"point {i}" for i in range(3, 12))}
    assert set(back.columns["arg"][back.of_kind("interval")].tolist()) == {1 << 20}
