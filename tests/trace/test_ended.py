"""Ranks that end badly are named with their signal and last call, in the order in which they failed."""

from __future__ import annotations

import json

from trace_calls import call
from trace_files import event, write_process

from dovetail.trace import merge
from dovetail.trace.process_file import read_process

UNFINISHED = (1).to_bytes(4, "little")


def left_open(path):
    """Change the file into one that its process never closed."""
    data = bytearray(path.read_bytes())
    data[32:36] = UNFINISHED
    path.write_bytes(data)
    assert not read_process(path).finalized


def note(folder, rank, **how):
    line = json.dumps({"pid": 4000 + rank, "host": "host", "real_ns": 100 - rank} | how)
    with (folder / "ends.jsonl").open("a") as file:
        file.write(line + "\n")


def faults(folder):
    return merge(folder).meta["faults"]


def test_signal_and_last_call_are_reported(tmp_path):
    stuck = [*call(3, 0, 4), event("begin", 5 * 10**6, 3), event("begin", 6 * 10**6, 2)]
    for rank, events in enumerate((stuck, call(1, 4, 5), call(3, 0, 1), [])):
        left_open(write_process(tmp_path, rank, {1: events} if events else {}, num_ranks=4))
    note(tmp_path, 0, signal=15, real_ns=97)  # killed by the launcher, and noted first
    note(tmp_path, 1, signal=11)  # earlier
    note(tmp_path, 2, exit=3)
    with (tmp_path / "ends.jsonl").open("a") as file:
        file.write('{"pid": 40\n{"pid": "x"}\n[3]\n')
    assert faults(tmp_path) == [
        "rank 2 (process 4002 on host) ended with exit code 3 and did not finalize, after work",
        "rank 1 (process 4001 on host) was killed by signal 11 (SIGSEGV), after MPI_Send",
        "rank 0 (process 4000 on host) was killed by signal 15 (SIGTERM), in MPI_Recv",
        "rank 3 (process 4003 on host) did not finalize, before its first event",
    ]


def test_of_ranks_that_end_together_one_that_waited_for_another_comes_last(tmp_path):
    """MPICH's launcher kills the others with the signal that ended the first, and may report one of them before it."""
    waiting = [*call(3, 0, 4), event("begin", 6 * 10**6, 2)]
    for rank, events in enumerate((waiting, call(3, 0, 4), waiting)):
        left_open(write_process(tmp_path, rank, {1: events}, num_ranks=3))
    for rank, at in enumerate((9_999_999, 10_000_001, 10**9)):  # before and after a multiple of 10 ms
        note(tmp_path, rank, signal=9, real_ns=at)
    assert [line.split(" (")[0] for line in faults(tmp_path)] == ["rank 1", "rank 0", "rank 2"]


def test_a_rank_that_closed_its_trace_is_reported_only_if_it_ended_badly(tmp_path):
    for rank in range(2):
        write_process(tmp_path, rank, {1: call(3, 0, 4)})
    assert faults(tmp_path) == []
    note(tmp_path, 1, exit=2)  # the program called exit(2), which closes the trace
    assert faults(tmp_path) == ["rank 1 (process 4001 on host) ended with exit code 2 and did not finalize, after work"]


def test_an_exit_code_after_finalize_is_no_fault(tmp_path):
    finalized = {"name": 16, "text": "MPI_Finalize"}
    write_process(tmp_path, 0, {1: call(16, 0, 4)}, num_ranks=1, notes=[finalized])
    note(tmp_path, 0, exit=2)
    assert faults(tmp_path) == []


def test_many_ranks_are_reported_together(tmp_path):
    for rank in range(12):
        left_open(write_process(tmp_path, rank, {1: call(3, 0, 4)}, num_ranks=12))
    reported = faults(tmp_path)
    assert len(reported) == 9
    assert reported[-1] == "4 more ranks ended badly: 8, 9, 10, 11"


ABORT = {"name": 16, "text": "MPI_Abort"}


def order(folder):
    return [line.split(" (")[0] for line in faults(folder)]


def test_a_rank_that_calls_abort_comes_first(tmp_path):
    for rank in range(2):
        events = [*call(3, 0, 4), event("begin", 6 * 10**6, 16 if rank else 2)]
        left_open(write_process(tmp_path, rank, {1: events}, notes=[ABORT]))
    note(tmp_path, 0, signal=15, real_ns=1)  # its end was noted long before
    note(tmp_path, 1, exit=1, real_ns=10**12)
    assert faults(tmp_path) == [
        "rank 1 (process 4001 on host) called MPI_Abort, in MPI_Abort",
        "rank 0 (process 4000 on host) was killed by signal 15 (SIGTERM), in MPI_Recv",
    ]


def test_ranks_killed_by_the_launcher_come_last_only_among_those_that_end_together(tmp_path):
    for rank in range(3):
        left_open(write_process(tmp_path, rank, {1: call(3, 0, 4)}, num_ranks=3))
    for rank, how in enumerate(({"signal": 15}, {"exit": 3}, {"signal": 9})):
        note(tmp_path, rank, real_ns=rank * 10**6 if rank < 2 else -(10**9), **how)
    assert order(tmp_path) == ["rank 2", "rank 1", "rank 0"]  # 2 ended a second earlier; 0 was killed


def test_a_rank_that_crashed_in_a_call_did_not_merely_wait(tmp_path):
    waiting = [*call(3, 0, 4), event("begin", 6 * 10**6, 2)]
    for rank, events in enumerate((call(3, 0, 4), waiting)):
        left_open(write_process(tmp_path, rank, {1: events}))
        note(tmp_path, rank, signal=11, real_ns=10 - rank)
    assert order(tmp_path) == ["rank 1", "rank 0"]


def test_the_first_note_about_a_process_counts(tmp_path):
    left_open(write_process(tmp_path, 0, {1: call(3, 0, 4)}, num_ranks=1))
    note(tmp_path, 0, signal=11)
    note(tmp_path, 0, exit=139)  # noted for the same process by a shell that ran it
    assert "was killed by signal 11 (SIGSEGV)" in faults(tmp_path)[0]


def test_of_very_many_ranks_some_are_named(tmp_path):
    for rank in range(18):
        left_open(write_process(tmp_path, rank, {1: call(3, 0, 4)}, num_ranks=18, capacity=32))
    assert faults(tmp_path)[-1] == "10 more ranks ended badly: 8, 9, 10, 11, 12, 13, 14, 15, …"
