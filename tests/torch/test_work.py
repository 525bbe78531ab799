"""The worker of a group: calls in order, by its thread or by one that waits for them."""

import threading
import time

import pytest

pytestmark = pytest.mark.needs("torch")
LIMIT_S = 20.0


@pytest.fixture
def worker():
    from dovetail.torch.work import Worker

    made = Worker("tested")
    yield made
    made.close(LIMIT_S)


def eventually(question):
    until = time.monotonic() + LIMIT_S
    while not (answer := question()) and time.monotonic() < until:
        time.sleep(1e-3)
    return answer


def long():
    import torch

    return [torch.zeros(1 << 16)]


def test_calls_run_in_order_whoever_does_them(worker):
    found, hold = [], threading.Event()
    first = worker.later(lambda: (hold.wait(LIMIT_S), found.append(-1)), long())
    works = [worker.later(lambda number=number: found.append(number), ()) for number in range(50)]
    hold.set()
    works[20].wait()
    assert found[:22] == list(range(-1, 21))
    assert worker.now(lambda: found.append("now") or "result") == "result"
    assert found == [*range(-1, 50), "now"]
    assert first.is_completed()
    assert works[-1].is_completed()


def test_a_thread_that_waits_does_the_call_itself(worker):
    worker.later(lambda: None, ()).wait()  # from now on the thread looks by itself
    threads = [None] * 200
    for place in range(len(threads)):
        worker.later(lambda place=place: threads.__setitem__(place, threading.get_ident()), ()).wait()
    assert threads.count(threading.get_ident()) > len(threads) // 4


@pytest.mark.parametrize("results", [long, tuple])
def test_a_call_that_nobody_waits_for_runs_too(worker, results):
    for turn in range(3):
        done = threading.Event()
        worker.later(done.set, results())
        assert done.wait(LIMIT_S)
        if turn:
            assert eventually(lambda: not worker._looks), "the thread rests after a while"


def test_errors_go_to_the_work_that_failed(worker):
    def fail():
        raise ValueError("mine")

    bad, good = worker.later(fail, ()), worker.later(lambda: None, ())
    good.wait()
    with pytest.raises(ValueError, match="mine"):
        bad.wait()
    with pytest.raises(ValueError, match="mine"):
        worker.now(fail)


def test_a_future_ends_without_a_wait(worker):
    future = worker.later(lambda: None, ()).get_future()
    assert eventually(future.done)


def test_calls_that_were_given_run_before_the_end(worker):
    found, hold = [], threading.Event()
    worker.later(lambda: hold.wait(LIMIT_S), long())
    for number in range(5):
        worker.later(lambda number=number: found.append(number), ())
    hold.set()
    worker.close(LIMIT_S)
    assert found == list(range(5))
