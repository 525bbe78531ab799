"""Messages by tag in the background, and collectives that wait no longer than they may: ranks that are threads."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import dovetail as dt
from dovetail.core import RunError
from dovetail.run.ranks.messages import Messages
from dovetail.run.shared.stores import FileStore
from dovetail.run.shared.world import Comm, join


@pytest.fixture
def comms(tmp_path):
    store = FileStore(tmp_path / "meeting")
    with ThreadPoolExecutor(3) as pool:
        made = [Comm(number) for number in pool.map(lambda rank: join(store, rank, 3), range(3))]
    yield made
    for comm in made:
        comm.Free()


@pytest.fixture
def messages(comms):
    made = [Messages(comm.world) for comm in comms]
    yield made
    for each in made:
        each.close()


class Transfer:
    """A send or receive of an array, and how it ended."""

    def __init__(self, messages, name, array, *peer_and_tag):
        self.ended = []
        done = lambda error, source: self.ended.append((error, source))  # noqa: E731
        getattr(messages, name)(array.ctypes.data, array.nbytes, *peer_and_tag, done)

    def wait(self, messages):
        assert messages.wait(lambda: bool(self.ended), 30.0)
        ((error, source),) = self.ended
        return str(error) if error else source


def test_tags_choose_among_messages_of_a_rank(messages):
    sent, got = np.arange(12.0).reshape(3, 4), np.zeros((3, 4))
    for tag in range(3):
        Transfer(messages[0], "send", sent[tag], 1, tag)
    receives = [Transfer(messages[1], "receive", got[tag], 0, tag) for tag in (2, 0, 1)]
    assert [each.wait(messages[1]) for each in receives] == [0, 0, 0]
    np.testing.assert_array_equal(got, sent)


@pytest.mark.parametrize("receives_first", [False, True])
def test_messages_of_every_length_arrive_in_order(messages, receives_first):
    """Those of at most 40 bytes travel with their tag and length."""
    lengths = [0, 1, 40, 41, 4096, 8, 100_000]
    sent = [np.random.default_rng(each).integers(0, 256, each, np.uint8) for each in lengths]
    got = [np.zeros(each, np.uint8) for each in lengths]
    send = lambda: [Transfer(messages[0], "send", each, 1, 3) for each in sent]  # noqa: E731
    receive = lambda: [Transfer(messages[1], "receive", each, 0, 3) for each in got]  # noqa: E731
    receives, sends = (receive(), send()) if receives_first else (send(), receive())[::-1]
    assert [each.wait(messages[1]) for each in receives] == [0] * len(lengths)
    assert [each.wait(messages[0]) for each in sends] == [0] * len(lengths)
    for one, other in zip(got, sent, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_lost_rank_ends_what_waits_for_it(messages):
    lost = Transfer(messages[1], "receive", np.zeros(3), 0, 0)
    other = Transfer(messages[1], "receive", got := np.zeros(3), 2, 0)
    messages[1].lose(0, RunError("rank 0 has died"))
    assert "rank 0 has died" in lost.wait(messages[1])
    assert "rank 0 has died" in Transfer(messages[1], "receive", np.zeros(3), 0, 5).wait(messages[1])
    Transfer(messages[2], "send", np.ones(3), 1, 0)
    assert other.wait(messages[1]) == 2
    assert (got == 1.0).all()


def test_what_has_not_ended_fails_when_messages_close(messages):
    receive = Transfer(messages[1], "receive", np.zeros(3), 0, 0)
    messages[1].close()
    assert "closed before a message came" in receive.wait(messages[1])


def test_the_end_of_a_receive_may_begin_a_send(messages):
    """As the callback of a future does: the send must not be forgotten, whatever else is under way."""
    question, answer, got, answered = np.arange(4.0), np.arange(100_000.0), np.zeros(4), np.zeros(100_000)
    answers = []

    def done(error, source):
        time.sleep(0.05)  # by now the background thread has found nothing to do
        answers.append(Transfer(messages[1], "send", answer, 0, 9))

    messages[1].receive(got.ctypes.data, got.nbytes, 0, 8, done)
    receive, send = Transfer(messages[0], "receive", answered, 1, 9), Transfer(messages[0], "send", question, 1, 8)
    assert send.wait(messages[0]) == 0
    assert messages[1].wait(lambda: bool(answers), 30.0)
    assert (receive.wait(messages[0]), answers[0].wait(messages[1])) == (1, 1)
    np.testing.assert_array_equal(answered, answer)


def test_a_long_message_moves_while_nobody_waits(messages):
    sent, got = np.arange(200_000.0), np.zeros(200_000)
    receive, send = Transfer(messages[2], "receive", got, None, 7), Transfer(messages[1], "send", sent, 2, 7)
    until = time.monotonic() + 30
    while not (receive.ended and send.ended) and time.monotonic() < until:
        time.sleep(1e-3)
    assert receive.ended == [(None, 1)]
    np.testing.assert_array_equal(got, sent)


def test_a_message_of_another_size_is_an_error_of_its_receiver(messages):
    send = Transfer(messages[0], "send", np.zeros(5000), 1, 0)
    receive = Transfer(messages[1], "receive", got := np.full(3, 7.0), 0, 0)
    assert "rank 0 sends 40000 bytes" in receive.wait(messages[1])
    assert send.wait(messages[0]) == 0
    assert (got == 7.0).all()


def test_a_receive_ends_when_its_sender_has(comms, messages):
    receive = Transfer(messages[1], "receive", np.zeros(3), 0, 0)
    messages[0].close()
    comms[0].Free()
    assert "rank 0 has ended" in receive.wait(messages[1])


def test_a_collective_waits_no_longer_than_its_limit(comms):
    from dovetail.call.selection_rules import communicator

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(communicator, comms))
        for comm in comms:
            comm.limit(0.2)
        with pytest.raises(RunError, match=r"timeout after 0.2 s, waiting for rank [12]"):
            dt.all_reduce(np.ones(3), comms[0])
        with pytest.raises(RunError, match="an earlier call failed: timeout"):
            dt.all_reduce(np.ones(3), comms[0])
        with pytest.raises(RunError, match="rank 0 has failed"):
            dt.all_reduce(np.ones(3), comms[1])
