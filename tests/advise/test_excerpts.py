"""Advice on a long trace comes from excerpts, and says so; advice on message sizes says what the trace shows."""

from __future__ import annotations

import pytest
from trace_calls import call, collective, sent, taken
from trace_files import event, pair, write_process

import dovetail.advise.advise as advising
from dovetail.advise.advise import advise
from dovetail.report.advice import advice_text
from dovetail.trace import merge
from dovetail.trace.analysis.collective_calls import collective_calls
from dovetail.trace.analysis.excerpts import excerpts
from dovetail.trace.analysis.floods import floods_of
from dovetail.trace.analysis.matching import messages


def uneven(folder, steps: int):
    """Rank 1 computes 2 ms while rank 0 computes 1 ms; each sends to the other, then both reduce."""
    for rank in (0, 1):
        events = []
        for step in range(steps):
            at = 4.0 * step
            both = [event("recv", pair(1 - rank, 1), 0, 8), event("done", pair(1 - rank, 1), 0, 8)]
            events += call(14, at + 0.01 * rank, at + 0.1, event("send", pair(1 - rank, 1), 0, 8), *both)
            events += call(11, at + 1 + rank, at + 2.1, *collective())
        write_process(folder, rank, {1: events})
    return merge(folder)


def test_excerpts_give_the_advice_of_the_whole_trace(tmp_path, monkeypatch):
    file = uneven(tmp_path, 600)
    whole = advise(file)
    for name, value in {"MOST_ROWS": 1000, "EXCERPT_ROWS": 401, "EXCERPTS": 3}.items():
        monkeypatch.setattr(advising, name, value)
    part = advise(file)
    assert [it.kind for it in part.findings] == [it.kind for it in whole.findings] != []
    for mine, theirs in zip(part.findings, whole.findings, strict=True):
        assert mine.saves_s == pytest.approx(theirs.saves_s, rel=0.02)
    assert part.traced_s == pytest.approx(whole.traced_s, rel=0.01)
    assert whole.read_rows == whole.num_rows == part.num_rows > 3 * part.read_rows
    assert f"{part.read_rows} of {part.num_rows} rows" in advice_text(part)
    assert "excerpt" not in advice_text(whole)


def test_an_excerpt_keeps_the_pairs_of_the_whole_trace(tmp_path):
    file = uneven(tmp_path, 200)
    trace = file.read()
    found, joins = messages(trace), collective_calls(trace)
    times = set(zip(found.src.tolist(), found.sent_s.tolist(), found.received_s.tolist(), strict=True))
    for it in excerpts(file, 5, 53).pieces:
        col = it.trace.columns
        mine = list(zip(it.found.src.tolist(), it.found.sent_s.tolist(), it.found.received_s.tolist(), strict=True))
        assert len(mine) > 5
        assert set(mine) <= times
        assert col["start_s"][it.found.sent_row].tolist() == it.found.sent_s.tolist()
        assert col["start_s"][it.joins.row].tolist() == it.joins.start_s.tolist()
        assert set(it.joins.start_s.tolist()) < set(joins.start_s.tolist())
        assert (it.joins.collective[::2] == it.joins.collective[1::2]).all()


@pytest.mark.parametrize("pause_ms", [0, 10])
def test_time_that_no_excerpt_shows_is_not_saved(tmp_path, monkeypatch, pause_ms):
    """After an MPI_Init of 50 ms, 30 times: 200 messages of 2 us in a row, then 1 ms of work, which has no rows.

    One message may take long. The excerpt that has it represents no more time than its seventh of the trace takes.
    """
    for rank in (0, 1):
        events, late = call(16, 0, 50), 0.0
        for step in range(30):
            for n in range(200):
                at, longer = 50 + 1.4 * step + 0.002 * n + late, pause_ms if (step, n) == (15, 5) else 0
                events += (
                    call(1, at, at + 0.001 + longer, sent(1))
                    if rank == 0
                    else call(2, at, at + 0.0015 + longer, *taken(0))
                )
                late += longer
        events += call(11, 92 + late, 92.1 + late, *collective())
        write_process(tmp_path, rank, {1: events}, notes=[{"name": 16, "text": "MPI_Init"}])
    file = merge(tmp_path)
    whole = advise(file)
    for name, value in {"MOST_ROWS": 1000, "EXCERPT_ROWS": 201, "EXCERPTS": 7}.items():
        monkeypatch.setattr(advising, name, value)
    part = advise(file)
    assert part.read_rows < part.num_rows / 5
    assert part.traced_s == pytest.approx(whole.traced_s, rel=0.01)
    assert part.replayed_s == pytest.approx(whole.replayed_s, rel=0.1)
    saved_s = [next(it.saves_s for it in advice.findings if it.kind == "block") for advice in (whole, part)]
    if not pause_ms:
        assert saved_s[0] == pytest.approx(30 * 199 * 2e-6, rel=0.1)
    assert saved_s[1] == pytest.approx(saved_s[0], rel=0.25, abs=(6 + pause_ms) * 1e-3 if pause_ms else 0)


def exchange(folder, num_bytes: int):
    """Advice on twelve steps; at the end of each, two ranks exchange messages of one size for 4 ms."""
    for rank in (0, 1):
        events = []
        for step in range(12):
            at = 10.0 * step + 0.01 * rank
            both = [event("recv", pair(1 - rank, 1), 0, num_bytes), event("done", pair(1 - rank, 1), 0, num_bytes)]
            events += call(14, at, 10.0 * step + 4, event("send", pair(1 - rank, 1), 0, num_bytes), *both)
        write_process(folder, rank, {1: events})
    return advise(merge(folder))


def test_long_messages_are_not_called_latency(tmp_path):
    found = exchange(tmp_path / "long", 1 << 21)
    assert not {it.kind for it in found.findings} & {"temporal_block", "block"}
    assert "latency" not in advice_text(found)
    (short,) = (it for it in exchange(tmp_path / "short", 64).findings if it.kind == "temporal_block")
    assert "up to 64 bytes" in short.evidence
    assert "assumed" in short.evidence  # one size cannot separate latency from bandwidth


def test_calls_of_several_sites_are_counted_separately(tmp_path):
    """Three Allreduce, then two Bcast, nine times."""
    for rank in (0, 1):
        events = []
        for step in range(9):
            for i, name in enumerate((11, 11, 11, 12, 12)):
                at = 2.0 * step + 0.2 * i
                details = collective(0) if name == 12 else collective()
                events += call(name, at, at + 0.199, *details)
        write_process(tmp_path, rank, {1: events})
    found = [it for it in advise(merge(tmp_path)).findings if it.kind == "merge"]
    assert sorted(it.evidence[:30] for it in found) == [
        "18 calls of MPI_Bcast on rank ",
        "27 calls of MPI_Allreduce on r",
    ]
    assert all(it.evidence.split()[3] in it.where for it in found)


@pytest.mark.parametrize("gap_ms", [0.001, 0.1])
def test_messages_in_a_row_are_counted_where_excerpts_cut_them(tmp_path, monkeypatch, gap_ms):
    """Each rank sends 400 messages, then takes 400; no excerpt has both. Work between them makes them no row."""
    for rank in (0, 1):
        to, at, events = 1 - rank, 0.0, []
        done = [event("recv", pair(to, 1), 0, 8), event("done", pair(to, 1), 0, 8)]
        for _ in range(3):
            for details in (*[[event("send", pair(to, 1), 0, 8)]] * 400, *[done] * 400):
                events += call(1 if len(details) == 1 else 2, at, at + 0.01, *details)
                at += 0.01 + gap_ms
            at += 5.0
        write_process(tmp_path, rank, {1: events})
    for name, value in {"MOST_ROWS": 1000, "EXCERPT_ROWS": 101, "EXCERPTS": 3}.items():
        monkeypatch.setattr(advising, name, value)
    found = [it for it in advise(merge(tmp_path)).findings if it.kind == "block"]
    if gap_ms > 0.005:
        assert found == []
    else:
        assert found[0].saves_s == pytest.approx(3 * 2 * 399 * 11e-6, rel=0.02)
        assert "2400 messages" in found[0].evidence


def test_each_second_of_an_exchange_counts_once(tmp_path):
    """Two ranks ask and answer 200 times, 4 us each time: neither can save more than its 0.8 ms."""
    us, rounds = 1e-3, 200
    asks, answers = list[tuple[int, int]](), list[tuple[int, int]]()
    for n in range(rounds):
        at = 1 + 4 * us * n
        asks += call(1, at, at + 0.5 * us, sent(1)) + call(2, at + 0.6 * us, at + 3.9 * us, *taken(1))
        answers += call(2, at + 0.1 * us, at + 1 * us, *taken(0)) + call(1, at + 1.1 * us, at + 3.8 * us, sent(0))
    write_process(tmp_path, 0, {1: asks})
    write_process(tmp_path, 1, {1: answers})
    floods = floods_of(messages(merge(tmp_path).read()))
    assert sum(it.messages for it in floods) == 2 * rounds
    for rank in (0, 1):
        spent_s = sum(it.sending_s * (it.src == rank) + it.taking_s * (it.dst == rank) for it in floods)
        assert 0.7e-3 < spent_s <= 0.8e-3
