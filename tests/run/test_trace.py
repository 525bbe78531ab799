"""Executors write their ops into traces: each op once a run, on its lane, when the Timeline says, among MPI calls."""

from __future__ import annotations

import json
import subprocess

import needs
import numpy as np
import pytest
from run_programs import library_call

from dovetail import trace
from dovetail.cli import main
from dovetail.collective import build
from dovetail.core import save_json
from dovetail.ir import Builder, Kind, Region, Slot, Workload
from dovetail.ir.shapes import ring_all_reduce
from dovetail.report.trace_perfetto import write_trace_perfetto
from dovetail.run import fresh_inputs
from dovetail.run.interpreter import Layout, run_interpreter
from dovetail.run.local import execute_local
from dovetail.run.options import RunOptions
from dovetail.trace import Trace, open_trace
from dovetail.trace.process_file import read_process
from dovetail.trace.to_timeline import to_timeline

PROGRAM_OF_COLLECTIVES = needs.RANKS / "traced_collectives.py"


def run_here(program, folder=None, kernels=None, **options):
    """Run a program on threads, traced into a folder where there is one; the Timeline."""
    workload = Workload({b.name: (Slot((4,), "float32"),) * program.num_ranks for b in program.buffers}, {})
    inputs = {
        b.name: [np.ones((slots, 4), "float32") for slots in b.slots] for b in program.buffers if b.role == "input"
    }
    if folder is not None:
        trace.init(folder)
    try:
        return execute_local(program, workload, inputs, kernels=kernels, options=RunOptions(**options))[1]
    finally:
        if folder is not None:
            trace.finalize()


def by_op(columns, key, count):
    """Start and end of each op, by its number."""
    found = np.full((2, count), np.nan)
    found[:, columns[key]] = columns["start_s"], columns["end_s"]
    return found


def test_ops_are_traced_as_their_timeline_tells(tmp_path):
    program = ring_all_reduce(3, 3)
    timeline = run_here(program, tmp_path)
    found = trace.merge(tmp_path).read()
    assert sorted(found.columns["arg"].tolist()) == list(range(program.num_ops))
    traced, reported = (
        by_op(columns, key, program.num_ops) for columns, key in ((found.columns, "arg"), (timeline.columns, "op"))
    )
    assert np.ptp(traced - reported) < 1e-6, "both are the same readings of one clock"
    names = [found.names[i] for i in found.columns["name"][np.argsort(found.columns["arg"])]]
    assert names == [op.kind.name for op in program.ops()]


def test_lanes_are_those_of_the_program_by_rank(tmp_path):
    program = ring_all_reduce(3, 3)
    run_here(program, tmp_path)
    found = trace.merge(tmp_path).read()
    exported = json.loads(write_trace_perfetto(tmp_path / "p.json", found).read_text())["traceEvents"]
    named = {event["args"]["name"] for event in exported if event["name"] == "thread_name"}
    assert named == {f"rank {rank} net" for rank in range(3)}
    shown = to_timeline(found)
    assert sorted(shown.lanes) == [f"rank {rank} net" for rank in range(3)]
    for rank in range(3):
        assert np.count_nonzero(shown.columns["lane"] == shown.lanes.index(f"rank {rank} net")) == program.num_ops // 3


def test_every_run_is_traced_at_two_events_an_op_stamped_or_not(tmp_path):
    program = ring_all_reduce(2, 2)
    for spans in (True, False):
        folder = tmp_path / str(spans)
        run_here(program, folder, repeats=7, spans=spans)
        (process,) = (read_process(path) for path in folder.glob("*.dvt"))
        events = np.concatenate([process.events(piece) for piece in process.pieces])
        assert len(events) == 2 * 7 * program.num_ops
        assert np.bincount(trace.merge(folder).read().columns["arg"]).tolist() == [7] * program.num_ops


def test_kernels_and_collectives_are_called_by_their_names(tmp_path):
    run_here(library_call("all_gather", [1, 1]), tmp_path / "call")
    assert trace.merge(tmp_path / "call").names == ("all_gather",)
    builder = Builder("named", 1)
    builder.buffer("x", "input", 1)
    builder.buffer("y", "output", 1)
    lane, call = builder.lane("cpu", "compute"), builder.kernel("smooth", ("all",))
    builder.add(Kind.compute, 0, lane, reads=[Region("x", 0, 1)], writes=[Region("y", 0, 1)], call=call)
    run_here(builder.build(), tmp_path / "kernel", kernels={"smooth": lambda reads, writes: None})
    assert trace.merge(tmp_path / "kernel").names == ("smooth",)


def test_times_reported_after_the_run_stand_on_their_lanes(tmp_path):
    """The interpreter's, on threads here: of a program whose slots are cut into tiles, each op once a tile."""
    program, layout = ring_all_reduce(3, 3), Layout("LL", place_bytes=512, slice_bytes=256)
    workload = Workload({buffer.name: (Slot((500,), "float32"),) * 3 for buffer in program.buffers}, {})
    trace.init(tmp_path)
    with trace.interval("run"):
        _, timeline = run_interpreter(
            program, workload, fresh_inputs(program, workload, 0), layout, RunOptions(spans=False)
        )
    trace.finalize()
    found = trace.merge(tmp_path).read()
    is_op = found.columns["name"] != found.names.index("run")
    ops = {name: column[is_op] for name, column in found.columns.items()}
    assert np.bincount(ops["arg"]).tolist() == [timeline.meta["rounds"]] * program.num_ops
    assert timeline.meta["rounds"] > 1
    shown = to_timeline(found)
    assert {*shown.lanes} == {f"rank {rank} net, host thread" for rank in range(3)} | {"main"}
    within_run = (ops["start_s"] >= found.columns["start_s"][~is_op]) & (ops["end_s"] <= found.columns["end_s"][~is_op])
    assert within_run.all()
    in_time = np.lexsort((timeline.columns["end_s"], timeline.columns["op"]))
    lengths = (timeline.columns["end_s"] - timeline.columns["start_s"])[in_time]
    traced = np.lexsort((ops["end_s"], ops["arg"]))
    assert np.allclose((ops["end_s"] - ops["start_s"])[traced], lengths, rtol=0.05, atol=5e-7)


def test_nothing_is_traced_unless_asked(tmp_path):
    trace.init(tmp_path)
    trace.off()
    run_here(ring_all_reduce(2, 2))
    trace.finalize()
    assert trace.merge(tmp_path).num_rows == 0


@pytest.mark.mpi
@pytest.mark.needs("mpich")
def test_a_run_of_the_command_line_is_traced(tmp_path, capsys):
    program = build("ring_all_reduce", 2)
    words = ["run", save_json(tmp_path / "ring.json", program.to_json()), "--size", "1K", "--rounds", "2"]
    assert main([*map(str, words), "--trace", str(tmp_path / "trace")]) == 0
    assert "dovetail trace view" in capsys.readouterr().err
    found = open_trace(tmp_path / "trace" / "trace.dovetail").read()
    assert found.num_ranks == 2
    runs = {name: np.count_nonzero(found.columns["name"] == found.names.index(name)) for name in ("timed", "traced")}
    assert runs["traced"] >= 2 * 3, "a warm-up and two rounds on each rank"
    is_op = np.isin(found.columns["name"], [found.names.index(name) for name in ("timed", "traced")], invert=True)
    counts = np.bincount(found.columns["arg"][is_op])
    assert len(counts) == program.num_ops
    assert len(set(counts.tolist())) == 1, "every op as often as all others"
    assert main([*map(str, words), "--trace", str(tmp_path / "trace")]) == 2
    assert "holds a trace already" in capsys.readouterr().err


@pytest.mark.mpi
@pytest.mark.parametrize("name", ["mpich", "openmpi"])
def test_collectives_of_ours_stand_among_the_programs_calls(name, tmp_path):
    mpi = needs.mpi(name)
    words = ["trace", "run", "-o", tmp_path / "out", "--", *mpi.mpiexec(2), mpi.python, PROGRAM_OF_COLLECTIVES]
    python = [str(needs.MPIS["mpich"].python), "-m", "dovetail", *map(str, words)]
    done = subprocess.run(python, env=mpi.env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    found = open_trace(tmp_path / "out" / "trace.dovetail").read()
    program = build("ring_all_reduce", 2)
    for rank in range(2):
        calls = rows_of(found, rank, "dovetail.all_reduce")
        assert len(calls[0]) >= 5
        ops = rows_of(found, rank, *{op.kind.name for op in program.ops()})
        sends = rows_of(found, rank, "MPI_Isend")
        assert len(ops[0]) == 4 * program.num_ops // 2, "the first call is the library's"
        for inner in (ops, sends):
            within = (inner[0][:, None] >= calls[0]) & (inner[1][:, None] <= calls[1])
            assert np.count_nonzero(within.any(axis=1)) >= 4
        assert within_all(ops, calls)


def rows_of(found: Trace, rank: int, *names: str) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of the intervals of these names on a rank."""
    numbers = [found.names.index(name) for name in names if name in found.names]
    col = found.columns
    rows = (col["part"] == 0) & (col["rank"] == rank) & np.isin(col["name"], numbers)
    return col["start_s"][rows], col["end_s"][rows]


def within_all(inner, outer):
    return ((inner[0][:, None] >= outer[0]) & (inner[1][:, None] <= outer[1])).any(axis=1).all()
