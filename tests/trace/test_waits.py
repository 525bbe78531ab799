"""Wait states, collectives, requests in flight and the critical path, in traces with known waits."""

from __future__ import annotations

import pytest
from trace_calls import call, collective, reported, sent, taken, traced
from trace_files import NAMES, event, pair

from dovetail.report.trace_tables import stats_text


def test_a_late_sender(tmp_path):
    found = traced(tmp_path, call(1, 5, 6, sent(1)), call(2, 1, 7, *taken(0)))
    assert reported(found) == [("late_sender", "MPI_Recv", 1, 4.0, 1, 0)]
    assert [round(rank.critical_s * 1e3, 6) for rank in found.ranks] == [0.0, 2.0]
    assert found.ranks[1].waited_s == found.waits[0].seconds


@pytest.mark.parametrize(("how", "source", "tag"), [("MPI_Probe", 0, 1), ("MPI_Probe", -1, -1), ("MPI_Mprobe", -1, 1)])
def test_a_late_sender_of_a_probed_message(tmp_path, monkeypatch, how, source, tag):
    """Rank 1 probes at 1 ms for a message that rank 0 sends at 5 ms, and receives it at 8 ms."""
    monkeypatch.setitem(NAMES, 15, how)
    posted, over = event("recv", pair(source, tag), 0, 0), event("done", pair(0, 1), 0, 8)
    if how == "MPI_Mprobe":
        received = [*call(15, 1, 6, posted, made=70), *call(10, 8, 9, event("request", 70, 0), over)]
    else:
        received = [*call(15, 1, 6, posted), *call(15, 7, 7, posted), *call(2, 8, 9, *taken(0))]
    found = traced(tmp_path, call(1, 5, 6, sent(1)), received)
    assert reported(found) == [("late_sender", how, 1, 4.0, 1, 0)]
    assert [round(rank.critical_s * 1e3, 6) for rank in found.ranks] == [0.0, 4.0]


@pytest.mark.parametrize("other", [{"source": 1}, {"tag": 2}, {"comm": 1}])
def test_a_probe_waits_only_for_a_message_that_matches(tmp_path, monkeypatch, other):
    monkeypatch.setitem(NAMES, 15, "MPI_Probe")
    posted = event("recv", pair(other.get("source", 0), other.get("tag", 1)), other.get("comm", 0), 0)
    assert (
        reported(traced(tmp_path, call(1, 5, 6, sent(1)), [*call(15, 1, 6, posted), *call(2, 8, 9, *taken(0))])) == []
    )


def test_a_late_receiver_delays_a_sender_only_if_the_send_waited_for_it(tmp_path):
    held = traced(tmp_path / "held", call(1, 1, 9, sent(1)), call(2, 6, 9, *taken(0)))
    assert reported(held) == [("late_receiver", "MPI_Send", 1, 5.0, 0, 1)]
    assert reported(traced(tmp_path / "eager", call(1, 1, 2, sent(1)), call(2, 6, 9, *taken(0)))) == []


def test_collectives_wait_for_the_last_or_for_the_root(tmp_path):
    def all_three(name: int, root: int = -1):
        ranks = [call(name, start, 9, *collective(root)) for start in (1, 3, 7)]
        return reported(traced(tmp_path / str(name), *ranks))

    assert all_three(11) == [("wait_at_collective", "MPI_Allreduce", 2, 10.0, 0, 2)]
    assert all_three(12, root=1) == [("late_root", "MPI_Bcast", 1, 2.0, 0, 1)]
    assert all_three(13, root=0) == [("early_root", "MPI_Reduce", 1, 6.0, 0, 2)]


def test_a_rank_that_continues_before_the_last_arrives_did_not_wait_for_it(tmp_path, monkeypatch):
    """As in neighbourhood collectives and scans: rank 0 ends before rank 2 begins, rank 1 after."""
    monkeypatch.setitem(NAMES, 11, "MPI_Neighbor_alltoall")
    found = traced(tmp_path, *(call(11, *times, *collective()) for times in ((1, 4), (2, 7), (6, 8))))
    assert reported(found) == [("wait_at_collective", "MPI_Neighbor_alltoall", 1, 4.0, 1, 2)]


def test_puts_and_gets_are_messages(tmp_path):
    """Rank 0 puts 64 bytes into rank 1, which gets 8 from rank 0."""
    put, got = event("put", pair(1, 0), 0, 64), event("get", pair(0, 0), 0, 8)
    found = traced(tmp_path, call(1, 1, 2, put), call(1, 3, 4, got))
    assert found.matrix_bytes.tolist() == [[0, 72], [0, 0]]
    assert found.matrix_messages.tolist() == [[0, 2], [0, 0]]
    assert sum(found.sizes) == 2


def test_hidden_time_is_in_flight_outside_mpi_calls(tmp_path):
    wait = [event("request", 70, 0), event("done", pair(0, 1), 0, 8)]
    posted = [event("recv", pair(0, 1), 0, 8)]
    found = traced(
        tmp_path, call(1, 0, 1, sent(1)), [*call(5, 1, 2, *posted, made=70), *call(3, 3, 5), *call(6, 8, 10, *wait)]
    )
    assert round(found.ranks[1].under_way_s * 1e3, 6) == 9.0
    assert round(found.ranks[1].hidden_s * 1e3, 6) == 6.0
    assert found.overlap["hta"] == pytest.approx(6 / 10)
    assert set(found.overlap) == {"hta", "imb_nbc", "imb", "osu"}
    assert all(0 <= share <= 1 for share in found.overlap.values())


def test_the_critical_path_continues_on_the_rank_that_was_waited_for(tmp_path):
    first = [*call(3, 0, 4), *call(1, 4, 5, sent(1)), *call(2, 5, 12, *taken(1))]
    second = [*call(2, 1, 6, *taken(0)), *call(3, 6, 10), *call(1, 10, 11, sent(0))]
    found = traced(tmp_path, first, second)
    assert [round(rank.critical_s * 1e3, 6) for rank in found.ranks] == [6.0, 6.0]
    text = stats_text(found)
    assert "late sender" in text
    assert "critical path" in text


def test_the_critical_path_leaves_out_init_and_finalize(tmp_path, monkeypatch):
    """Rank 0 works for 2 ms, initialises MPI, and sends at 12 ms; rank 1 waits for that, and finalises later."""
    monkeypatch.setitem(NAMES, 16, "MPI_Init")
    monkeypatch.setitem(NAMES, 17, "MPI_Finalize")
    first = [*call(3, 0, 2), *call(16, 2, 10), *call(1, 12, 13, sent(1)), *call(17, 20, 40)]
    second = [*call(16, 2, 9), *call(2, 10, 14, *taken(0)), *call(17, 25, 45)]
    found = traced(tmp_path, first, second)
    assert [round(rank.seen_s * 1e3, 6) for rank in found.ranks] == [12.0, 16.0]
    assert [round(rank.critical_s * 1e3, 6) for rank in found.ranks] == [4.0, 13.0]


def test_the_critical_path_ends_on_the_rank_that_finalises_last(tmp_path, monkeypatch):
    """Rank 0 waits in MPI_Finalize for rank 1, which works longer."""
    monkeypatch.setitem(NAMES, 17, "MPI_Finalize")
    found = traced(tmp_path, [*call(3, 0, 4), *call(17, 4, 31)], [*call(3, 0, 20), *call(17, 20, 30)])
    assert [round(rank.critical_s * 1e3, 6) for rank in found.ranks] == [0.0, 20.0]


def test_a_trace_without_messages(tmp_path):
    found = traced(tmp_path, call(3, 0, 1))
    assert (found.waits, found.overlap["hta"], found.sizes) == ((), 0.0, ())
    assert "work" in stats_text(found)
