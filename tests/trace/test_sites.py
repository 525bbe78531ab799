"""Statistics by call site; MPI_Init and MPI_Finalize are counted separately."""

from __future__ import annotations

import pytest
from trace_calls import call, collective, sent, taken, trace_of
from trace_files import NAMES, write_process

from dovetail.report.trace_tables import stats_text
from dovetail.trace.analysis.stats import stats


def made_at(events: list[tuple[int, int]], line: int) -> list[tuple[int, int]]:
    """The events of a call, made by this line of Python."""
    (word, about), *rest = events
    return [(word, (about + (-line << 16)) % (1 << 64)), *rest]


@pytest.fixture
def found(tmp_path, monkeypatch):
    """Two ranks: MPI_Init from 0 to 4 ms, two messages from line 42, one from line 50, Allreduce, MPI_Finalize."""
    monkeypatch.setitem(NAMES, 16, "MPI_Init")
    monkeypatch.setitem(NAMES, 17, "MPI_Finalize")
    for rank in (0, 1):
        events = call(16, 0, 4)
        for at, line in ((5, 42), (6, 42), (7, 50)):
            details = [sent(1, 100)] if rank == 0 else taken(0, 100)
            events += made_at(call(1 if rank == 0 else 2, at + 0.25 * rank, at + 0.5, *details), line)
        events += [*made_at(call(11, 8, 9, *collective()), 60), *call(17, 10, 14)]
        write_process(tmp_path, rank, {1: events})
    trace = trace_of(tmp_path)
    for about in trace.meta["ranks"]:
        about["lines"] = {str(line): f"/some/where/solver.py:{line}" for line in (42, 50, 60)}
    return stats(trace)


def test_calls_are_summed_by_call_site(found):
    reported = {(it.site, it.name): (it.count, it.num_bytes, round(it.seconds * 1e3, 6)) for it in found.sites}
    assert reported == {
        ("solver.py:60", "MPI_Allreduce"): (2, 16, 2.0),
        ("solver.py:42", "MPI_Send"): (2, 200, 1.0),
        ("solver.py:42", "MPI_Recv"): (2, 200, 0.5),
        ("solver.py:50", "MPI_Send"): (1, 100, 0.5),
        ("solver.py:50", "MPI_Recv"): (1, 100, 0.25),
    }
    assert sum(it.mpi_share for it in found.sites) == pytest.approx(1.0)
    assert [it.seconds for it in found.sites] == sorted((it.seconds for it in found.sites), reverse=True)
    assert found.to_json()["sites"][0] == found.sites[0].to_json()
    assert "solver.py:60  MPI_Allreduce" in stats_text(found)


def test_init_and_finalize_do_not_count_in_the_shares(found):
    for rank in found.ranks:
        assert round(rank.setup_s * 1e3, 6) == 8.0
        assert round(rank.seen_s * 1e3, 6) == 6.0
    assert [round(rank.mpi_s * 1e3, 6) for rank in found.ranks] == [2.5, 1.75]
    lines = [line for line in stats_text(found).splitlines() if line.endswith("apart")]
    assert [line.split()[0] for line in lines] == ["MPI_Init", "MPI_Finalize"]
