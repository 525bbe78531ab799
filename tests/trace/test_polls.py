"""Polling: one interval stands for many unsuccessful calls in a row, and counts and times take that into account."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import needs
import numpy as np
import pytest
from trace_calls import MS, call, sent, traced
from trace_files import NAMES, event, pair, write_process
from traced_programs import compiled

from dovetail.advise.replay import makespan_s
from dovetail.cli import main
from dovetail.report.trace_page import span_texts
from dovetail.trace import Trace, merge, open_trace
from dovetail.trace.analysis.model_of_trace import model_of
from dovetail.trace.analysis.stats import stats
from dovetail.trace.process_file import REPEAT_BITS
from dovetail.trace.store import save_trace
from dovetail.trace.trace import COLUMNS

PROGRAM = needs.RANKS / "trace_polls.c"
MANY, FEW = 3000, 20  # as in that program
PAUSE_NS = 5000  # as in native/trace/writer.c
POLLS = """
import ctypes, pathlib, sys, time
from dovetail.trace.recorder.launch import trace_folder
lib = ctypes.CDLL(str(trace_folder() / "libdovetail_trace.so"))
lib.dovetail_trace_clock.restype, lib.dovetail_trace_found.restype = ctypes.c_uint64, ctypes.c_int64
for call in (lib.dovetail_trace_vain, lib.dovetail_trace_found):
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_uint64)
lib.dovetail_trace_end.argtypes = (ctypes.c_int, ctypes.c_int64)
lib.dovetail_trace_init(sys.argv[1].encode())
test, probe, mark = (lib.dovetail_trace_name(text) for text in (b"MPI_Test", b"MPI_Iprobe", b"mark"))
vain, clock = lib.dovetail_trace_vain, lib.dovetail_trace_clock

def found(name):
    many = lib.dovetail_trace_found(name, 5, clock())
    lib.dovetail_trace_end(0 if many else name, many)
"""


def polled(folder: Path, code: str) -> Trace:
    """The trace of a program that calls the recorder as the MPI wrappers do."""
    return printed_by(folder, code)[1]


def printed_by(folder: Path, code: str) -> tuple[str, Trace]:
    """What such a program prints, and its trace."""
    command = [sys.executable, "-c", POLLS + code, str(folder)]
    done = subprocess.run(command, check=True, env=os.environ, stdout=subprocess.PIPE, text=True)
    return done.stdout, merge(folder).read()


def counts(trace: Trace) -> dict[str, int]:
    return {call.name: call.count for call in stats(trace).calls}


def test_unsuccessful_polls_are_one_interval(tmp_path, monkeypatch):
    """Except after delays between polls. A successful call ends the interval, and the next begins a new one.

    Each poll ends between two readings of the clock. So the program tells how many polls certainly came, and how many
    may have come, more than 5 us after the one before, however slow the machine is.
    """
    monkeypatch.setenv("DOVETAIL_TRACE_CLOCK", "system")
    code = (
        "for i in range(1000): begun = clock(); vain(test, 5, begun); print(begun, clock())\nfound(test); found(test)"
    )
    printed, trace = printed_by(tmp_path, code)
    begun, over = np.array(printed.split(), "i8").reshape(-1, 2).T
    surely, perhaps = (int(np.count_nonzero(begun[1:] - ends > PAUSE_NS)) for ends in (over[:-1], begun[:-1]))
    assert counts(trace) == {"MPI_Test": 1002}
    assert trace.num_events == 1002
    assert surely + 2 <= trace.num_rows <= perhaps + 3
    col = trace.columns
    assert col["repeats"][-1] == 0
    assert np.all(col["start_s"][1:] >= col["end_s"][:-1])
    assert np.all(col["pause_s"] <= (col["end_s"] - col["start_s"]) * (1 + 1e-6))
    assert set(col["arg"].tolist()) == {5}
    assert not col["begins"].any()


@pytest.mark.parametrize(
    "between", ["lib.dovetail_trace_point(mark, 1)", "vain(probe, 5, clock())", "time.sleep(1e-3)"]
)
def test_other_events_or_pauses_end_an_interval_of_polls(tmp_path, between):
    """Between two polls comes another event, a call of another kind, or 1 ms."""
    trace = polled(tmp_path, f"for i in range(50):\n    vain(test, 5, clock())\n    {between}")
    assert counts(trace)["MPI_Test"] == 50
    assert not trace.columns["repeats"].any()


def test_a_full_segment_ends_an_interval_of_polls(tmp_path, monkeypatch):
    """Polls in the other segment of a ring buffer stay unchanged."""
    monkeypatch.setenv("DOVETAIL_TRACE_BUFFER", "4096")
    fill = "for i in range(300):\n    lib.dovetail_trace_point(mark, 1); vain(test, 5, clock()); vain(test, 5, clock())"
    trace = polled(tmp_path, fill)
    assert counts(trace) == {"MPI_Test": 600}
    assert trace.meta["lost"] == trace.meta["ends_without_begin"] == 0


def many(start: float, end: float, repeats: int, pause: float = 0.0, *details) -> list[tuple[int, int]]:
    """The events of 1 + `repeats` calls of MPI_Test from `start` to `end` ms, with `pause` ms between them in all."""
    reported = round(pause * MS) << REPEAT_BITS | repeats
    return [event("begin", round(start * MS), 15, 77), *details, event("end", round(end * MS), 0, reported)]


def test_pauses_between_polls_are_no_time_in_mpi(tmp_path):
    """1 + 99 calls from 2 to 6 ms, with pauses of 1 ms in all."""
    found = traced(tmp_path, [*call(3, 0, 2), *many(2, 6, 99, 1.0)])
    (test,) = (each for each in found.calls if each.name == "MPI_Test")
    assert (test.count, round(test.seconds * 1e3, 6)) == (100, 3.0)
    (rank,) = found.ranks
    assert round(rank.mpi_s * 1e3, 6) == 3.0
    assert round(rank.under_way_s * 1e3, 6) == 3.0
    assert rank.hidden_s == pytest.approx(0.0, abs=1e-9)


def test_pauses_between_polls_hide_requests_in_flight(tmp_path):
    """A receive is posted from 1 to 2 ms and polled from 2 to 6 ms, with pauses of 1 ms; then it is complete."""
    over = [event("request", 70, 0), event("done", pair(1, 1), 0, 8)]
    posted = call(5, 1, 2, event("recv", pair(1, 1), 0, 8), made=70)
    found = traced(tmp_path, [*posted, *many(2, 6, 99, 1.0, *over)], [*call(3, 0, 4), *call(1, 5, 5.5, sent(0))])
    rank = found.ranks[0]
    assert [round(s * 1e3, 6) for s in (rank.under_way_s, rank.hidden_s)] == [5.0, 1.0]
    (wait,) = found.waits  # polling counts as waiting from the first poll
    assert (wait.state, wait.name, round(wait.seconds * 1e3, 6)) == ("late_sender", "MPI_Test", 3.0)


def test_a_replay_treats_pauses_as_work(tmp_path):
    write_process(tmp_path, 0, {1: [*call(1, 0, 1), *many(1, 5, 99, 1.0), *call(1, 6, 7)]}, num_ranks=1)
    (step,) = model_of(merge(tmp_path).read()).steps[0]
    assert [round(s * 1e3, 6) for s in (step.seconds, step.within_s)] == [7.0, 5.0]


@pytest.mark.parametrize("how", ["MPI_Mprobe", "MPI_Probe", "MPI_Iprobe"])
def test_probing_is_waiting(tmp_path, monkeypatch, how):
    """Rank 1 probes from 1 ms on, once or repeatedly, for the message that rank 0 sends at 5 ms. In a replay in which
    rank 0 works half as long, it waits half as long."""
    monkeypatch.setitem(NAMES, 15, how)
    posted, over = event("recv", pair(0, 1), 0, 8), event("done", pair(0, 1), 0, 8)
    if how == "MPI_Mprobe":
        received = [*call(15, 1, 5.02, posted, made=70), *call(10, 5.02, 5.05, event("request", 70, 0), over)]
    else:
        probes = many(1, 5.02, 99, 1.0) if how == "MPI_Iprobe" else call(15, 1, 5.02)
        received = [*probes, *call(2, 5.02, 5.05, posted, over)]
    for rank, events in enumerate((call(1, 5, 5.01, sent(1)), received)):
        write_process(tmp_path, rank, {1: events})
    model = model_of(merge(tmp_path).read())
    assert makespan_s(model) == pytest.approx(4.05e-3, abs=1e-5)
    work, *rest = model.steps[0]
    sooner = [(work._replace(seconds=work.seconds / 2), *rest), model.steps[1]]
    assert makespan_s(model.with_steps(sooner)) == pytest.approx(2.05e-3, abs=1e-5)


def test_all_exports_have_the_number_of_polls(tmp_path, capfd):
    otf2 = pytest.importorskip("otf2", reason="needs otf2: no module otf2")
    write_process(tmp_path / "run", 0, {1: many(1, 5, 99, 1.0)}, num_ranks=1)
    trace = merge(tmp_path / "run").read()
    assert span_texts(trace, np.arange(1)) == ["MPI_Test, 100 times"]
    targets = ["--perfetto", str(tmp_path / "p.json"), "--otf2", str(tmp_path / "archive")]
    assert main(["trace", "export", str(tmp_path / "run"), *targets]) == 0
    (span,) = (e for e in json.loads((tmp_path / "p.json").read_text())["traceEvents"] if e["ph"] == "X")
    assert span["args"]["calls"] == 100
    with otf2.reader.open(str(tmp_path / "archive" / "traces.otf2")) as archive:
        reported = [event.attributes for _, event in archive.events if event.attributes]
    assert [list(each.values()) for each in reported] == [[100, 10**6]]  # the number of calls, and the pauses in ns
    capfd.readouterr()


def test_traces_without_columns_for_polls_are_read(tmp_path, monkeypatch):
    write_process(tmp_path, 0, {1: [*call(1, 0, 1), *call(3, 1, 2)]}, num_ranks=1)
    trace = merge(tmp_path).read()
    before = {name: kind for name, kind in COLUMNS.items() if name not in ("repeats", "pause_s")}
    monkeypatch.setattr("dovetail.trace.store.COLUMNS", before)
    save_trace(tmp_path / "old", trace)
    monkeypatch.undo()
    assert open_trace(tmp_path / "old").read().to_json() == trace.to_json()


@pytest.mark.mpi
def test_a_program_that_polls(mpi, tmp_path):
    """The trace is small, and has as many calls as the program counts itself."""
    program = compiled(mpi, PROGRAM, tmp_path / "program")
    words = ["trace", "run", "-o", str(tmp_path / "out"), "--", *mpi.mpiexec(1), str(program)]
    python = [str(needs.MPIS["mpich"].python), "-m", "dovetail", *words]
    done = subprocess.run(python, env=mpi.env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    reported = json.loads(done.stdout.splitlines()[0])
    trace = open_trace(tmp_path / "out" / "trace.dovetail").read()
    found = counts(trace)
    assert {name: found[name] for name in reported} == reported
    assert sum(reported.values()) > 3 * MANY
    assert (
        3 * FEW + 5 <= np.count_nonzero(np.isin(trace.columns["name"], [trace.names.index(n) for n in reported])) < MANY
    )
    assert found["MPI_Irecv"] == 41
    assert trace.meta["clocks"] | {"earliest_s": 0} == {
        "messages": 43, "without_partner": 0, "received_before_sent": 0, "earliest_s": 0
    }  # fmt: skip
    both = trace.columns["name"] == trace.names.index("MPI_Sendrecv")
    sizes = trace.columns["num_bytes"][trace.of_kind("send") & both]
    assert sizes.tolist() == [12, 20], "the size of a freed datatype is not reused"
