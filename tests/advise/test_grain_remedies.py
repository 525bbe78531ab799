"""Streams of messages with a little work between them, on models whose repair is known."""

from __future__ import annotations

import pytest
from replay_models import US, ModelBuilder

from dovetail.advise.advise import Finding, advise_model

COUNT = 256


def found(work_us: float, call_us: float = 20, answers: bool = False, num_bytes: int = 8) -> Finding | None:
    """Rank 0 works and sends, again and again; rank 1 receives and works. Each call takes `call_us`."""
    builder = ModelBuilder(2)
    for _ in range(COUNT):
        builder.work(0, work_us * US)
        number = builder.message(0, 1, num_bytes)
        builder.call(0, "send", ("send", number))
        builder.within[0] = call_us * US
        builder.call(1, "recv", ("recv", number), ("received", number))
        builder.within[1] = call_us * US
        builder.work(1, work_us * US)
        if answers:
            back = builder.message(1, 0, num_bytes)
            builder.call(1, "answer", ("send", back))
            builder.call(0, "take", ("recv", back), ("received", back))
    advice = advise_model(builder.model(), lambda row: builder.sites.get(row, ""), lambda rows: builder.sites[rows[0]])
    return next((it for it in advice.findings if it.kind == "block"), None)


def test_a_stream_of_small_messages_is_sent_in_larger_blocks():
    """Rank 1 ends last: for each message it works 20 us, and calls for 20 us. Blocks leave few calls."""
    finding = found(20)
    assert finding is not None
    assert not finding.is_sure
    assert COUNT * 20 * US * 0.6 < finding.saves_s < COUNT * 20 * US
    assert "of these messages as one" in finding.action


@pytest.mark.parametrize("about", [
    {"work_us": 5000}, {"work_us": 20, "answers": True}, {"work_us": 20, "num_bytes": 1 << 20},
])  # fmt: skip
def test_blocks_stay_where_calls_are_cheap_or_the_next_message_needs_the_last(about):
    assert found(**about) is None
