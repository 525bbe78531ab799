"""Spawned jobs, threads that call MPI, and cancelled requests in one trace."""

from __future__ import annotations

import re

import numpy as np
import pytest
from trace_calls import call, collective, sent, taken, trace_of
from trace_files import event, pair, write_process

from dovetail.advise.replay import replay
from dovetail.report.trace_tables import stats_text
from dovetail.trace.analysis.collective_calls import collective_calls
from dovetail.trace.analysis.matching import messages
from dovetail.trace.analysis.stats import stats
from dovetail.trace.spawned import joined_jobs
from dovetail.trace.trace import Comm

PARENTS = [{"comm": 1, "size": 2, "remote": [-1, -1], "number": 0}, {"comm": 2, "ranks": [0, 1, -1, -1], "number": 0}]
CHILDREN = [{"comm": 1, "ranks": [-1, -1, 0, 1], "number": 0}, {"comm": 2, "size": 2, "remote": [-1, -1], "number": 0}]


def on(comm: int, details):
    """The details of a call, moved to another communicator."""
    return [(word, about | comm << 4 if about & 15 != 7 else about) for word, about in details]


def test_a_job_and_the_job_it_spawned(tmp_path):
    """On the intercommunicator: a message from parent 0 to child 1, one from child 0 to parent 1, and a collective."""
    parents = [[*call(1, 0, 1, *on(1, [sent(1)]))], [*call(2, 0, 5, *on(2, taken(2)))]]
    children = [[*call(1, 3, 5, *on(1, [sent(1)]))], [*call(2, 0, 2, *on(2, taken(0)))]]
    for job, notes, comm in ((parents, PARENTS, 2), (children, CHILDREN, 1)):
        for rank, events in enumerate(job):
            both = [*events, *call(11, 6 + rank, 9, *on(comm, collective()))]
            path = write_process(tmp_path, rank, {1: both}, notes=notes)
            if job is parents:
                for suffix in (".dvt", ".jsonl"):
                    path.with_suffix(suffix).rename(tmp_path / f"first-{rank}{suffix}")
    trace = trace_of(tmp_path)
    found = messages(trace)
    assert sorted(zip(found.src.tolist(), found.dst.tolist(), found.received_row >= 0, strict=True)) == [
        (0, 3, True),
        (2, 1, True),
    ]
    assert collective_calls(trace).collective.tolist() == [0] * 4
    assert abs(replay(trace).off) < 0.2
    assert stats(trace).matrix_messages[0, 3] == 1


def test_ambiguous_intercommunicators_are_not_guessed():
    """Two ranks each spawned a job of two; and one rank spawned two jobs."""
    alone, twice = Comm((0,), 0, (-1, -1)), Comm((0,), 1, (-1, -1))
    first, second = Comm((2, 3), 0, (-1,)), Comm((4, 5), 0, (-1,))
    assert joined_jobs([[alone, Comm((1,), 0, (-1, -1))], [first], [second]]) == {}
    found = joined_jobs([[alone, twice], [first], [second]])
    assert [found[comm].remote for comm in (alone, twice, first, second)] == [(2, 3), (4, 5), (0,), (0,)]
    assert found[second].number == found[twice].number == 1


def test_unmatched_calls_are_left_out_of_a_replay(tmp_path):
    for rank in range(2):
        events = [*call(1, 0, 1, *on(1, [sent(1)])), *call(11, 2, 5, *on(2, collective()))]
        write_process(tmp_path, rank, {1: events}, notes=PARENTS)
    assert replay(trace_of(tmp_path)).replayed_s == pytest.approx(5e-3)


def threaded(tmp_path):
    """Rank 0 makes most calls on its first thread, rank 1 on its second; busy threads talk to busy ones."""
    other = [event(kind, pair(0, 2), 0, 8) for kind in ("recv", "done")]
    looks = [one for i in range(3) for one in call(6, 7 + i, 7.5 + i)]
    busy, quiet = [*call(1, 3, 4, sent(1)), *call(1, 5, 6, sent(1))], call(1, 1, 2, event("send", pair(1, 2), 0, 8))
    write_process(tmp_path, 0, {1: busy, 2: quiet})
    write_process(
        tmp_path, 1, {1: [*call(2, 0, 4, *taken(0)), *call(2, 4, 9, *taken(0))], 2: [*call(2, 0, 6, *other), *looks]}
    )
    return trace_of(tmp_path)


def test_the_thread_with_most_mpi_calls_of_each_rank_is_replayed(tmp_path):
    trace = threaded(tmp_path)
    found = messages(trace)
    assert np.count_nonzero(found.received_row >= 0) == 3
    assert replay(trace).replayed_s > 0


def test_the_share_of_mpi_counts_all_threads_that_call_it(tmp_path):
    found = stats(threaded(tmp_path))
    assert [rank.num_threads for rank in found.ranks] == [2, 2]
    assert found.to_json()["ranks"][1]["threads"] == 2
    assert found.ranks[1].mpi_s > found.ranks[1].seconds
    shares = [float(share) for share in re.findall(r"([0-9.]+) %", stats_text(found))]
    assert 50 < max(shares) <= 100


def test_a_receive_without_a_source_is_no_message(tmp_path):
    """A cancelled receive is recorded so."""
    posted, over = event("recv", pair(0, 7), 0, 8), [event("request", 99, 0), event("done", pair(-2, -1), 0, 0)]
    events = [*call(5, 1, 2, posted, made=99), *call(6, 3, 4, *over)]
    write_process(tmp_path, 0, {1: call(1, 1, 2, sent(1))})
    write_process(tmp_path, 1, {1: [*events, *call(2, 5, 6, *taken(0))]})
    trace = trace_of(tmp_path)
    assert trace.meta["clocks"]["without_partner"] == 0
    assert trace.meta["clocks"]["messages"] == 1
