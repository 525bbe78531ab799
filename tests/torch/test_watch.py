"""The watch of ranks: who has ended or died, what ranks send each other, and the farewell."""

import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytestmark = pytest.mark.needs("torch")
LIMIT_S = 20.0


class Board:
    """Rank 0's text for every rank."""

    def __init__(self):
        self.text, self.is_set = "", threading.Event()

    def share(self, rank):
        def shared(text):
            if rank == 0:
                self.text = text
                self.is_set.set()
            assert self.is_set.wait(LIMIT_S)
            return self.text

        return shared


@pytest.fixture
def watches():
    from dovetail.torch.watch import Watch

    board, heard = Board(), [queue.SimpleQueue() for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        began = [
            pool.submit(Watch, rank, 3, board.share(rank), heard[rank].put, "" if rank else "127.0.0.1")
            for rank in range(3)
        ]
    found = [each.result() for each in began]
    yield found, heard
    for each in found:
        each.close()


def died(watch):
    """Close the connections of a rank, as the kernel does for a process that ends."""
    watch.close()


def test_every_rank_hears_what_one_tells(watches):
    found, heard = watches
    found[1].send(group="g", fails="why")
    assert [each.get(timeout=LIMIT_S) for each in heard] == [{"group": "g", "fails": "why"}] * 3


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_dies_is_named_on_all_others(watches, rank):
    found, heard = watches
    died(found[rank])
    for other in {0, 1, 2} - {rank}:
        assert heard[other].get(timeout=LIMIT_S) == {"gone": rank, "why": "has died"}
        assert found[other].gone == {rank: "has died"}


def test_a_rank_that_leaves_is_not_dead(watches):
    found, heard = watches
    assert not found[2].farewell(0.05)
    died(found[2])
    messages = [heard[1].get(timeout=LIMIT_S) for _ in range(2)]
    assert messages == [{"left": 2}, {"gone": 2, "why": "has ended, and was waited for"}]


def test_all_leave_together(watches):
    found, _ = watches
    begin = time.monotonic()
    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(lambda watch: watch.farewell(LIMIT_S), found))
    assert time.monotonic() - begin < LIMIT_S
    died(found[0])
    time.sleep(0.05)
    assert found[1].gone == {}


def test_a_stranger_is_no_rank():
    import json
    import socket

    from dovetail.torch.watch import Watch

    board, heard = Board(), queue.SimpleQueue()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(Watch, 0, 2, board.share(0), heard.put, "127.0.0.1")
        assert board.is_set.wait(LIMIT_S)
        _, port, _ = json.loads(board.text)
        with socket.create_connection(("127.0.0.1", port)) as line:
            line.sendall(b'["wrong token", 1]\n')
            assert line.recv(1) == b""
        second = pool.submit(Watch, 1, 2, board.share(1), heard.put)
        watches = first.result(), second.result()
        assert [watch.gone for watch in watches] == [{}, {}]
        for watch in watches:  # each then hears of the other
            watch.close()
