"""A call that waits for several messages counts as one wait, no longer than the call itself."""

from __future__ import annotations

from random import Random

import pytest
from trace_calls import call, reported, sent, taken, traced
from trace_files import NAMES, event, pair, write_process

from dovetail.trace import merge
from dovetail.trace.analysis.stats import stats

LATE = (2, 5, 9)  # ms at which ranks 1, 2, 3 begin to send


def asked(rank: int, at: float = 0.1, num_bytes: int = 8) -> list[tuple[int, int]]:
    return call(5, at, at + 0.1, event("recv", pair(rank, 1), 0, num_bytes), made=70 + rank)


def over(*ranks: int) -> list[tuple[int, int]]:
    return [one for r in ranks for one in (event("request", 70 + r, 0), event("done", pair(r, 1), 0, 8))]


def gone(*requests: int) -> list[tuple[int, int]]:
    """The details of sends that are complete."""
    return [one for r in requests for one in (event("request", r, 0), event("done", pair(-1, -1), 0, 0))]


def receives(*calls: list[tuple[int, int]]) -> tuple:
    """The events of all ranks: rank 0 posts a receive for each other, then makes these calls; these send at LATE."""
    mine = [*(one for rank in (1, 2, 3) for one in asked(rank, rank / 10)), *(one for each in calls for one in each)]
    return (mine, *(call(1, at, at + 0.5, sent(0)) for at in LATE))


@pytest.fixture
def names(monkeypatch):
    for number, name in enumerate(("Waitany", "Waitsome", "Testany", "Wait", "Ibarrier"), 16):
        monkeypatch.setitem(NAMES, number, f"MPI_{name}")


def waited_ms(found) -> list[float]:
    return [round(rank.waited_s * 1e3, 6) for rank in found.ranks]


CASES = {
    "a Waitall of three messages": ([call(6, 1, 9.5, *over(1, 2, 3))], 8.0, 1),
    "Waitany": ([call(16, 1, 2.1, *over(1)), call(16, 3, 5.1, *over(2)), call(16, 5.5, 9.1, *over(3))], 6.5, 3),
    "Waitsome": ([call(17, 1, 5.5, *over(1, 2)), call(17, 6, 9.2, *over(3))], 4.0 + 3.0, 2),
    "polls in several intervals": (
        [
            call(18, 1, 1.5),
            call(18, 1.8, 2.1, *over(1)),
            call(18, 3, 4),
            call(18, 4.5, 4.9),
            call(18, 5.1, 5.2, *over(2)),
        ],
        0.5 + 0.2 + 1.0 + 0.4,
        4,
    ),
    "a test that finds what was there": ([call(18, 6, 6.1, *over(1)), call(18, 6.5, 6.6, *over(2))], 0.0, 0),
}


@pytest.mark.parametrize("case", CASES)
def test_messages_of_several_ranks(tmp_path, names, case):
    calls, waited, count = CASES[case]
    found = traced(tmp_path, *receives(*calls))
    assert waited_ms(found) == [pytest.approx(waited), 0, 0, 0]
    assert sum(wait.count for wait in found.waits) == count


def test_waits_of_simultaneous_threads_are_summed(tmp_path):
    """Two threads of rank 1 receive from 1 to 7 ms: the messages are sent at 5 and 6 ms."""
    write_process(tmp_path, 0, {1: [*call(1, 5, 6, sent(1)), *call(1, 6, 7, event("send", pair(1, 2), 0, 8))]})
    other = [event("recv", pair(0, 2), 0, 8), event("done", pair(0, 2), 0, 8)]
    write_process(tmp_path, 1, {1: call(2, 1, 7, *taken(0)), 2: call(2, 1, 7, *other)})
    found = stats(merge(tmp_path))
    assert waited_ms(found) == [0, 9.0]
    assert found.ranks[1].num_threads == 2


ISEND = event("send", pair(1, 1), 0, 1 << 20)
BIG = [event("recv", pair(0, 1), 0, 1 << 20), event("done", pair(0, 1), 0, 1 << 20)]


@pytest.mark.parametrize("name", [6, 16, 17, 19])
def test_a_send_is_waited_for_until_its_receive_is_posted(tmp_path, names, name):
    mine = [*call(4, 0, 0.1, ISEND, made=70), *call(name, 1, 8.1, *gone(70))]
    found = traced(tmp_path, mine, call(2, 6, 8, *BIG))
    assert reported(found) == [("late_receiver", NAMES[name], 1, 5.0, 0, 1)]


def test_a_short_send_waits_for_no_receive(tmp_path, names):
    """The wait ends with the message from rank 2, although rank 1 posts the receive of an earlier message meanwhile."""
    mine = [*call(4, 0, 0.1, sent(1), made=70), *call(4, 0.2, 0.3, sent(1), made=71), *call(19, 0.4, 0.5, *gone(71))]
    mine += [*asked(2, 0.6), *call(6, 1, 8, *gone(70), *over(2))]
    theirs = [*call(2, 5, 5.5, *taken(0)), *call(2, 5.6, 5.7, *taken(0))]
    found = traced(tmp_path, mine, theirs, call(1, 3, 3.5, sent(0)))
    assert reported(found) == [("late_sender", "MPI_Waitall", 1, 2.0, 0, 2)]


def test_a_call_that_sends_and_receives_waits_for_the_later_of_both(tmp_path):
    both = [event("send", pair(1, 1), 0, 1 << 20), event("recv", pair(2, 1), 0, 8), event("done", pair(2, 1), 0, 8)]
    found = traced(tmp_path, call(14, 1, 9, *both), call(2, 6, 9, *BIG), call(1, 3, 3.5, sent(0)))
    assert reported(found) == [("late_receiver", "MPI_Sendrecv", 1, 5.0, 0, 1)]


def test_the_wait_of_a_nonblocking_collective_is_counted(tmp_path, names):
    def met(begins, waits, ends):
        begun = call(20, begins, begins + 0.1, event("collective", 0, 0, 0), made=90)
        return [*begun, *call(19, waits, ends, *gone(90))]

    found = traced(tmp_path, met(0, 1, 7.2), met(0, 3, 7.2), met(7, 7.1, 7.2))
    assert waited_ms(found) == [6.0, 4.0, 0.0]
    assert reported(found) == [("wait_at_collective", "MPI_Wait", 2, 10.0, 0, 2)]


@pytest.mark.parametrize("seed", range(5))
def test_no_rank_waits_longer_than_it_is_in_mpi(tmp_path, names, seed):
    rng, others, at = Random(seed), [1, 2, 3], 1.0
    calls = []
    rng.shuffle(others)
    while others:
        count, length = rng.randint(1, len(others)), rng.uniform(0.1, 5)
        calls.append(call(rng.choice((6, 16, 17, 18)), at, at + length, *over(*others[:count])))
        others, at = others[count:], at + length + rng.uniform(0.1, 1)
    found = traced(tmp_path, *receives(*calls))
    assert all(rank.waited_s <= rank.mpi_s + 1e-12 for rank in found.ranks)
