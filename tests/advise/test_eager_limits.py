"""Eager limits: libraries have one inside a host and another between hosts, and a send is judged by its own."""

from __future__ import annotations

import numpy as np
import pytest
from trace_calls import call, sent, taken, trace_of
from trace_files import write_process

from dovetail.advise.advise import advise
from dovetail.trace.analysis.eager_limits import EagerLimit, EagerLimits, eager_limits
from dovetail.trace.analysis.model_of_trace import model_of

SEND, RECV = 1, 2
BYTES, STEPS = 16384, 20


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """Rank 0 sends to rank 1 of its host, which waits for the late receive, and to rank 2 elsewhere, which does not."""
    folder = tmp_path_factory.mktemp("two-hosts")
    ranks = [list[tuple[int, int]](), list[tuple[int, int]](), list[tuple[int, int]]()]
    for n in range(STEPS):
        at = 10 * n + 1
        ranks[0] += call(SEND, at, at + 5.1, sent(1, BYTES)) + call(SEND, at + 5.2, at + 5.3, sent(2, BYTES))
        ranks[0] += call(SEND, at + 9, at + 9.1, sent(1)) + call(SEND, at + 9.1, at + 9.2, sent(2))
        ranks[1] += call(RECV, at + 5, at + 5.1, *taken(0, BYTES)) + call(RECV, at + 6, at + 9.1, *taken(0))
        ranks[2] += call(RECV, at + 8, at + 8.01, *taken(0, BYTES)) + call(RECV, at + 8.1, at + 9.2, *taken(0))
    for rank, events in enumerate(ranks):
        write_process(folder, rank, {1: events}, num_ranks=3, host="one" if rank < 2 else "two")
    return trace_of(folder)


def test_each_two_ranks_have_their_own_limit(trace):
    limits = model_of(trace).delays.limits
    assert limits.of(0, 1) == EagerLimit(None, BYTES)
    assert limits.of(0, 2) == EagerLimit(BYTES, None)
    assert limits.is_rendezvous([BYTES] * 3, [0, 0, 0], [1, 2, 1]).tolist() == [True, False, True]


def test_sends_that_wait_inside_a_host_are_not_called_full_buffers(trace):
    found = {it.kind: it for it in advise(trace).findings}
    assert {"eager", "rendezvous"} & found.keys()
    assert not any("buffers were full" in it.evidence for it in found.values())


def test_a_pair_without_messages_of_its_own_goes_by_pairs_like_it():
    pairs = np.array([0, 0]), np.array([1, 2])
    limits = eager_limits(pairs, np.array([BYTES, BYTES]), np.array([True, False]), ["one", "one", "two", "two"])
    assert limits.of(2, 3).rendezvous_bytes == BYTES
    assert limits.of(1, 3) == EagerLimit(BYTES, None)
    assert EagerLimits().of(0, 1) == EagerLimit()


def test_what_others_show_does_not_contradict_a_pair():
    assert EagerLimit(4096, None).filled(EagerLimit(None, 1024)) == EagerLimit(4096, None)
    assert EagerLimit(None, 512).filled(EagerLimit(1024, 4096)) == EagerLimit(None, 512)
