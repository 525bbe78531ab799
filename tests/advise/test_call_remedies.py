"""Remedies for calls that wait for nobody, on models whose repair is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from replay_models import US, Calls
from trace_calls import call, collective, sent, taken, trace_of
from trace_files import NAMES, write_process

from dovetail.advise.advise import Advice, advise_model
from dovetail.advise.call_remedies import setup
from dovetail.advise.remedy import own_s
from dovetail.trace.analysis.model_of_trace import model_of

ROUNDS = 20


def advised(builder: Calls) -> Advice:
    return advise_model(builder.model(), lambda row: builder.sites.get(row, ""), lambda rows: builder.sites[rows[0]])


def saving(advice: Advice, kind: str) -> float:
    return sum(it.saves_s for it in advice.findings if it.kind == kind)


@pytest.mark.parametrize(("name", "thing"), [
    ("MPI_Type_commit", "datatypes"), ("MPI_Comm_dup", "communicators"), ("MPI_Win_create", "windows"),
    ("MPI_File_open", "files"), ("MPI_Get_count", ""),
])  # fmt: skip
def test_what_is_made_in_each_step_is_made_once(name, thing):
    builder = Calls(2)
    for _ in range(ROUNDS):
        for rank in (0, 1):
            builder.alone(rank, "make", name, 500)
            builder.work(rank, 1000 * US)
        builder.all_reduce("sum")
    advice = advised(builder)
    assert saving(advice, "setup") == pytest.approx((ROUNDS - 1) * 500 * US if thing else 0.0, rel=0.01)
    if thing:
        assert advice.findings[0].kind == "setup"
        assert f"the {thing} once" in advice.findings[0].action


def test_calls_that_free_a_window_meet_and_go_too():
    """Each rank makes a window in 500 us, and frees it in a call that waits for all ranks, for 60 us."""
    builder = Calls(2)
    for _ in range(ROUNDS):
        for rank in (0, 1):
            builder.alone(rank, "make", "MPI_Win_create", 500)
            builder.work(rank, 1000 * US)
        builder.all_reduce("free")
        builder.collectives[-1] = replace(builder.collectives[-1], name="MPI_Win_free")
    advice = advised(builder)
    assert saving(advice, "setup") == pytest.approx((ROUNDS - 1) * 560 * US, rel=0.01)
    assert f"{2 * (ROUNDS - 1)} calls of MPI_Win_free" in advice.findings[0].evidence


def test_work_between_removed_calls_stays():
    builder = Calls(1)
    for _ in range(ROUNDS):
        builder.within[0] = 30 * US  # of the call before
        builder.work(0, 1000 * US)
        builder.alone(0, "make", "MPI_Type_commit", 500)
    model = builder.model()
    (remedy,) = setup(model, lambda row: builder.sites.get(row, ""))
    for steps in (model.steps[0], remedy.changed.steps[0]):
        assert own_s(steps) == pytest.approx(ROUNDS * 1000 * US)


def test_what_is_made_once_at_each_of_many_places_is_no_fault():
    builder = Calls(1)
    for place in range(ROUNDS):
        builder.alone(0, f"make {place}", "MPI_Comm_split", 500)
        builder.work(0, 1000 * US)
    assert advised(builder).findings == ()


def test_probes_between_pieces_of_work_bound_what_fewer_probes_save():
    builder = Calls(2)
    for _ in range(ROUNDS):
        for rank in (0, 1):
            builder.work(rank, 1000 * US)
            builder.alone(rank, "look", "MPI_Iprobe", 700)
    (found,) = (it for it in advised(builder).findings if it.kind == "probe")
    assert found.saves_s == pytest.approx(ROUNDS * 700 * US, rel=0.01)
    assert (found.confidence, found.is_sure) == ("medium", False)


@pytest.mark.parametrize(("name", "num_bytes", "words"), [
    ("MPI_File_write_at", 8, "collect many records"), ("MPI_File_read_all", 1 << 24, "beside other work"),
    ("MPI_File_iwrite_c", 0, "if they are small"), ("libc write", 0, "if they are small"),
])  # fmt: skip
def test_reads_and_writes_are_collected_or_put_beside_the_work(name, num_bytes, words):
    builder = Calls(1)
    for _ in range(ROUNDS):
        builder.work(0, 100 * US)
        builder.alone(0, "write", name, 300, num_bytes)
    (found,) = advised(builder).findings
    assert found.kind == "io"
    assert words in found.action
    assert found.saves_s == pytest.approx((ROUNDS - 1) * 300 * US, rel=0.01)


@pytest.mark.parametrize("spins", [True, False])
def test_a_probe_is_a_wait_only_where_it_always_ends_by_a_message(tmp_path, monkeypatch, spins):
    """Rank 1 probes for 6 ms, then receives; in the other program it also works, and probes in vain, in between."""
    monkeypatch.setitem(NAMES, 15, "MPI_Iprobe")
    sender, taker = [], []
    for i in range(ROUNDS):
        at = 20.0 * i
        sender += call(1, at + 6, at + 6.1, sent(1))
        taker += [*call(15, at, at + 6.2), *call(2, at + 6.2, at + 6.3, *taken(0))]
        if not spins:
            taker += [*call(15, at + 8, at + 9), *call(11, at + 10, at + 10.1, *collective())]
            sender += call(11, at + 10, at + 10.1, *collective())
    for rank, events in enumerate((sender, taker)):
        write_process(tmp_path, rank, {1: events})
    model = model_of(trace_of(tmp_path))
    assert len(model.calls) == (0 if spins else 2 * ROUNDS)


def test_io_within_an_mpi_call_is_not_counted_twice(tmp_path, monkeypatch):
    monkeypatch.setitem(NAMES, 15, "MPI_File_write")
    monkeypatch.setitem(NAMES, 16, "MPI_File_sync")  # here: what the library calls itself
    events = []
    for i in range(ROUNDS):
        inner = call(16, 10.0 * i + 1, 10.0 * i + 2)
        outer = call(15, 10.0 * i, 10.0 * i + 3)
        events += [*outer[:1], *inner, *outer[1:]]
    write_process(tmp_path, 0, {1: events}, num_ranks=1)
    model = model_of(trace_of(tmp_path))
    assert {name for name, _ in model.calls.values()} == {"MPI_File_write"}
    assert sum(step.within_s for step in model.steps[0]) == pytest.approx(ROUNDS * 3e-3, rel=1e-3)
