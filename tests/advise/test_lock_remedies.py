"""Locks of windows that are held during work."""

from __future__ import annotations

import pytest
from trace_calls import call, trace_of
from trace_files import NAMES, event, pair, write_process

from dovetail.advise.advise import advise

ROUNDS = 20


@pytest.mark.parametrize(("work_in_lock", "target"), [(True, 0), (False, 0), (True, 1)])
def test_locks_are_held_for_the_transfer_only(tmp_path, monkeypatch, work_in_lock, target):
    """Each rank works 4 ms a round: holding rank 0's lock, so that they do it by turns, or before it asks for it.

    If rank 1 locks another target, it waits for something else.
    """
    for number, name in enumerate(("MPI_Win_lock", "MPI_Accumulate", "MPI_Win_unlock"), 15):
        monkeypatch.setitem(NAMES, number, name)
    window = {"comm": 1, "size": 2, "number": 0, "window": True}
    for rank in (0, 1):
        of = target if rank else 0
        at_lock = event("window", pair(of, 1))
        events = []
        for i in range(ROUNDS):
            begin = 8.4 * i + 4.2 * rank
            asked = begin - 4.1 if i or rank else begin  # waits while the other holds the lock
            held = begin + 4 if work_in_lock else begin + 0.05
            begin = begin if work_in_lock else begin - 0.05
            events += call(15, asked if work_in_lock else begin - 0.05, begin, at_lock)
            events += call(16, held, held + 0.02, event("put", pair(of, 1), 0, 8))
            events += call(17, held + 0.03, held + 0.05, at_lock)
        write_process(tmp_path, rank, {1: events}, notes=[window])
    found = advise(trace_of(tmp_path))
    saved_s = sum(it.saves_s for it in found.findings if it.kind == "lock")
    expected_s = found.traced_s / 2 if work_in_lock and target == 0 else 0.0
    assert saved_s == pytest.approx(expected_s, rel=0.1)
