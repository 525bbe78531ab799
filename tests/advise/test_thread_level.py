"""The note on the level of thread support of a traced program."""

from dataclasses import replace

import needs
import numpy as np
import pytest
from trace_calls import call, collective, trace_of
from trace_files import write_process

from dovetail.advise.advise import advise
from dovetail.advise.thread_level import level_notes
from dovetail.trace import Trace
from dovetail.trace.trace import COLUMNS


def traced(level="multiple", library="MPICH Version: 5.0.2", name="MPI_Allreduce", hosts=("a", "a")) -> Trace:
    """Two ranks that made four calls of 2 ms each."""
    columns = {column: np.zeros(8, kind) for column, kind in COLUMNS.items()}
    columns["rank"][:] = [0, 1] * 4
    columns["end_s"][:] = 2e-3
    about = {"library": library, "thread_level": level} if level else {}
    return Trace(2, (name,), (), columns, {"ranks": [{"host": host, **about} for host in hosts]})


def test_mpich_at_multiple_is_named():
    (note,) = level_notes(traced())
    assert "4 blocking collectives of a rank took 8.00 ms, waits for late ranks left out" in note
    assert 'mpi4py.rc.thread_level = "serialized"' in note


@pytest.mark.parametrize(
    "other",
    [
        {"level": "serialized"},
        {"level": None},
        {"library": "Open MPI v5.0.11"},
        {"name": "MPI_Send"},
        {"hosts": ("a", "b")},
    ],
)
def test_others_are_not(other):
    assert level_notes(traced(**other)) == ()


@pytest.mark.parametrize(("late_ms", "own_ms"), [(0, 2), (8, 2), (8, 0.05)])
def test_waits_for_a_late_rank_are_no_cost_of_the_level(tmp_path, late_ms, own_ms):
    """Rank 0 works `late_ms` longer before each of 10 sums, which take `own_ms` once all ranks are there."""
    for rank in (0, 1):
        events, clock = [], 1.0
        for _ in range(10):
            late = clock + 1 + late_ms
            events += call(11, clock + 1 if rank else late, late + own_ms, *collective())
            clock = late + own_ms
        write_process(tmp_path, rank, {1: events})
    about = {"library": "MPICH", "thread_level": "multiple", "host": "a"}
    notes = level_notes(replace(trace_of(tmp_path), meta={"ranks": [about, about]}))
    assert len(notes) == (own_ms > 1)
    assert all("10 blocking collectives of a rank took 20.0" in note for note in notes)


@pytest.mark.mpi
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("level", ["funneled", "multiple"])
def test_a_trace_has_the_level(mpi, level, tmp_path, monkeypatch):
    from dovetail.trace import merge

    script = "from mpi4py import MPI; MPI.COMM_WORLD.allreduce(1)"
    trace = [mpi.python, "-m", "dovetail", "trace", "run", "--out", tmp_path / "t", "--"]
    program = [*mpi.mpiexec(2), mpi.python, "-m", "mpi4py", "-rc", f"thread_level={level}", "-c", script]
    done = needs.subprocess.run([*trace, *program], env=mpi.env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    opened = merge(tmp_path / "t")
    assert [about["thread_level"] for about in opened.meta["ranks"]] == [level] * 2
    monkeypatch.setattr("dovetail.advise.thread_level.LEAST_SHARE", 0.0)  # of one call
    is_named = level == "multiple" and mpi.name == "mpich"
    assert any("MPI_THREAD_MULTIPLE" in note for note in advise(opened).notes) is is_named
