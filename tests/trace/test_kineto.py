"""Profiles of PyTorch on CPUs: collectives as calls of MPI, clocks aligned by them, and advice in PyTorch's words."""

import json

import numpy as np
import pytest

from dovetail.advise.advise import advise
from dovetail.cli import main
from dovetail.trace.exchange.chrome import read_chrome
from dovetail.trace.exchange.kineto import Span, offsets, shift_of

INFO = {"backend": "gloo", "world_size": 2, "pg_config": [{"pg_name": "0", "ranks": [0, 1]}]}


def event(name, start, end, cat="cpu_op", tid=1, **args):
    found = {"ph": "X", "cat": cat, "name": name, "pid": 77, "tid": tid, "ts": start, "dur": end - start}
    return found | {"args": args} if args else found


def reduced(start, end, num_bytes=4096):
    """An all_reduce of Dovetail's, from its call to its end."""
    return event(f"dovetail::all_reduce {num_bytes} B, group 0, by library", start, end, "user_annotation")


def gloo(start, end, shape=(1000,)):
    """An all_reduce of gloo's, on a thread of its own, and the operator that begins it."""
    about = {"Input Dims": [list(shape)], "Input type": ["float"]}
    its = event("gloo:all_reduce", start + 2, end, "user_annotation", tid=9, **about)
    return [event("c10d::allreduce_", start, start + 3), its]


def written(folder, *ranks):
    for rank, events in enumerate(ranks):
        document = {"distributedInfo": INFO | {"rank": rank}, "traceEvents": events}
        (folder / f"{rank}.json").write_text(json.dumps(document))
    return [folder / f"{rank}.json" for rank in range(len(ranks))]


def calls(trace):
    """(rank, name, start and end in us, bytes sent, of the others' wait the request) of the collectives."""
    col = trace.columns
    rows = np.flatnonzero(trace.of_kind("collective", "done"))
    times = [np.rint(col[name][rows] * 1e6).astype(int).tolist() for name in ("start_s", "end_s")]
    names = [trace.names[name] for name in col["name"][rows]]
    return list(zip(col["rank"][rows].tolist(), names, *times, col["num_bytes"][rows].tolist(), strict=True))


def test_a_call_without_work_beside_it_is_blocking(tmp_path):
    events = [event("aten::mm", 0, 50), *gloo(60, 90), event("aten::mm", 100, 120)]
    trace = read_chrome(written(tmp_path, events, events))
    assert calls(trace) == [(rank, "MPI_Allreduce", 60, 90, 4000) for rank in (0, 1)]
    assert trace.comms[0].ranks == (0, 1)
    assert "c10d::allreduce_" not in trace.names
    assert "aten::mm" in trace.names


def test_a_call_beside_work_is_begun_and_awaited(tmp_path):
    events = [
        event("step", 0, 200, "user_annotation"),
        *gloo(60, 190),
        event("aten::mm", 70, 150),
        reduced(195, 199, 8),
    ]
    trace = read_chrome(written(tmp_path, events, events))
    assert [it for it in calls(trace) if it[0] == 0] == [
        (0, "MPI_Iallreduce", 60, 60, 4000),
        (0, "MPI_Wait", 150, 190, 0),
        (0, "MPI_Allreduce", 195, 199, 8),
    ]
    col = trace.columns
    assert sorted(zip(col["request"].tolist(), col["begins"].tolist(), strict=True))[-4:] == [
        *((0, False), (0, True), (1, False), (1, True)),
    ]


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "broadcast", "barrier", "all_to_all"])
def test_other_kinds(tmp_path, kind):
    events = [event(f"dovetail::{kind} 4096 B, group 0, by library", 5, 9, "user_annotation")]
    trace = read_chrome(written(tmp_path, events, events))
    sent, got = (trace.columns[name][0] for name in ("num_bytes", "received_bytes"))
    wanted = {"all_gather": (2048, 4096), "reduce_scatter": (4096, 2048)}.get(kind, (4096, 4096))
    assert (sent, got) == wanted
    assert trace.names[0].startswith("MPI_")


def steps(ahead, work, count=20):
    """Steps of which rank 1's work is twice as long; `ahead`: of this rank's clock."""
    found = []
    for step in range(count):
        begin = 1000 * step + ahead
        found += [event("aten::mm", begin, begin + work), reduced(begin + work, begin + 820)]
    return found


@pytest.mark.parametrize("ahead", [0, 5_000_000, -300_000])
def test_clocks_are_aligned_by_what_ranks_do_together(tmp_path, ahead):
    trace = read_chrome(written(tmp_path, steps(10**7, 400), steps(10**7 + ahead, 800)))
    start = {rank: trace.columns["start_s"][trace.columns["rank"] == rank].min() for rank in (0, 1)}
    assert abs(start[1] - start[0]) < 0.5e-3  # the shortest span is 20 us, of the rank that comes last; the other's 420
    assert trace.meta["faults"] == []


def test_a_clock_that_drifts_is_reported():
    first = [Span("barrier", at, at + 10.0, 0, 0, (0, 1), 1) for at in (0.0, 1e6)]
    second = [Span("barrier", at, at + 10.0, 0, 0, (0, 1), 1) for at in (0.0, 1e6 + 500)]
    assert offsets({0: first, 1: second})[1] == ["the clock of rank 1 drifts by 480 us"]
    apart = [Span("barrier", 0.0, 1.0, 0, 0, (1, 2), 1)]
    assert "ranks 1 are not compared" in offsets({0: first, 1: apart})[1][0]


def test_files_that_begin_apart(tmp_path):
    late = steps(10**7, 400)[6:]
    trace = read_chrome(written(tmp_path, steps(10**7, 400), late))
    assert len([it for it in calls(trace) if it[0] == 0]) == 20  # equal calls: nothing shows which are missing
    spans = [Span("all_reduce", float(i), i + 0.5, num_bytes, 8, (0, 1), 1) for i, num_bytes in enumerate(range(9))]
    assert shift_of(spans, spans[3:]) == 3
    assert shift_of(spans[2:], spans) == -2
    ours = [
        e
        for size in range(1, 9)
        for e in [event("aten::mm", 9 * size, 9 * size + 4), reduced(9 * size + 4, 9 * size + 8, size)]
    ]
    trace = read_chrome(written(tmp_path, ours, ours[6:]))
    assert len([it for it in calls(trace) if it[0] == 0]) == len([it for it in calls(trace) if it[0] == 1]) == 5
    assert trace.names.count("all_reduce") == 1


def test_advice_names_the_late_rank_in_pytorchs_words(tmp_path, capfd):
    profiler = event("PyTorch Profiler (0)", 10**7, 10**7 + 20000, "Trace", "PyTorch Profiler")
    files = written(tmp_path, [*steps(10**7, 200), profiler], steps(10**7, 800))
    first = advise(read_chrome(files)).findings[0]
    assert (first.kind, first.root[0]) == ("imbalance", 1), first
    assert "MPI_" not in f"{first.where} {first.action} {first.evidence} {first.root[1]}"
    assert main(["trace", "import", *map(str, files), "-o", str(tmp_path / "t.dovetail")]) == 0
    assert main(["trace", "advise", str(tmp_path / "t.dovetail")]) == 0
    assert main(["trace", "stats", str(tmp_path / "t.dovetail")]) == 0
    assert main(["trace", "causes", str(tmp_path / "t.dovetail")]) == 0
    assert main(["trace", "view", str(tmp_path / "t.dovetail"), "-o", str(tmp_path / "page.html")]) == 0
    said = capfd.readouterr().out
    assert "all_reduce" in said
    page = (tmp_path / "page.html").read_text()
    assert "in collectives" in page
    assert "Profiler" not in said
    assert "MPI" not in said + page[page.index('class="notes"') :]
    even = written(tmp_path, steps(10**7, 800), steps(10**7, 800))
    assert not [it for it in advise(read_chrome(even)).findings if it.kind == "imbalance"]
