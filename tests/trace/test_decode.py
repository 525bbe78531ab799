"""Decoding events into rows: a plain and the vectorised decoder agree, however the events are split into pieces."""

from __future__ import annotations

import sys
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import some
from trace_files import EVENT, event, pair, swapped, write_process

from dovetail.core import DovetailError
from dovetail.trace import merge, open_trace, save_trace
from dovetail.trace.analysis.matching import messages
from dovetail.trace.analysis.stats import stats
from dovetail.trace.decode import KINDS, RAW, ThreadDecoder, joined
from dovetail.trace.merge import _Lane, in_order
from dovetail.trace.process_file import PAGE, EventKind
from dovetail.trace.trace import COLUMNS, Trace

Event = tuple[int, int]


def plainly(events: list[Event]) -> list[tuple[int, ...]]:
    """Decode with a stack: rows that end as (kind, name, start, end), rows that do not as (kind, name, start)."""
    open_: list[list] = []
    rows = []
    for word, about in events:
        kind, field, arg = about & 15, about >> 4 & 4095, about >> 16
        if kind == EventKind.point:
            rows.append([(KINDS.index("point"), field, word, word)])
        elif kind == EventKind.begin:
            open_.append([field, word, []])
        elif kind == EventKind.end and open_:
            name, start, details = open_.pop()
            rows.append([(KINDS.index(k), name, start, word) for k in details or ["interval"]])
        elif kind not in (EventKind.end, EventKind.empty) and open_:
            open_[-1][2].append(EventKind(kind).name)
        assert arg >= 0
    rest = [
        (KINDS.index(k), name, start, word) for name, start, ks in open_ for k in ks or ["interval"] for word in (0,)
    ]
    return [row for group in rows for row in group], sorted(r[:3] for r in rest)


@st.composite
def event_lists(draw):
    kinds = draw(st.lists(st.sampled_from(["begin", "begin", "end", "end", "point", "send", "collective", "empty"])))
    return [event(kind, 10 * i, i % 7 + 1) for i, kind in enumerate(kinds, 1)]


@pytest.mark.slow
@settings(max_examples=some(300), deadline=None)
@given(event_lists(), st.lists(st.integers(1, 6), min_size=1, max_size=5))
def test_rows_equal_those_of_a_decoder_with_a_stack(events, cuts):
    decoder, parts, at, turn = ThreadDecoder(), [], 0, 0
    while at < len(events):
        cut = cuts[turn % len(cuts)]
        parts.append(decoder.take(np.array(events[at : at + cut], EVENT)))
        at, turn = at + cut, turn + 1
    rows, left = joined(parts), decoder.rest(10**6)
    expected, still_open = plainly(events)
    assert [*zip(*(rows[c].tolist() for c in ("kind", "name", "start", "end")), strict=True)] == expected
    assert sorted(zip(*(left[c].tolist() for c in ("kind", "name", "start")), strict=True)) == still_open
    assert left["is_open"].all()
    assert {name: rows[name].dtype for name in RAW} == {name: np.dtype(t) for name, t in RAW.items()}


def decoded(*events: Event, lost: int = 0) -> dict[str, list]:
    found = ThreadDecoder().take(np.array([*events], EVENT), lost)
    return {name: column.tolist() for name, column in found.items()}


def test_a_send_has_its_destination_and_bytes():
    rows = decoded(event("begin", 1, 1, 0x1234), event("send", pair(3, 7), 2, (1 << 40) - 1), event("end", 5, 1, 99))
    reported = ("kind", "peer", "tag", "comm", "num_bytes", "arg", "request", "begins", "start", "end")
    assert [rows[name][0] for name in reported] == [KINDS.index("send"), 3, 7, 2, (1 << 40) - 1, 0x1234, 99, True, 1, 5]


def test_what_is_given_has_a_checksum_above_its_bytes():
    """Of a message 7 bits, of a collective 24; 0 where it is unknown."""
    send, call = event("send", pair(3, 7), 2, 5 << 40 | 100), event("collective", 9 << 40 | 64, 2, 32)
    for detail, checksum, column in ((send, 5, "received_bytes"), (call, 9, "tag")):
        rows = decoded(event("begin", 1, 1, 0x1234), detail, event("end", 5, 1, 0))
        assert rows[column][0] == checksum
        assert (rows["num_bytes"][0], rows["received_bytes"][0]) == ((100, 5) if detail is send else (32, 64))


def test_a_wait_has_the_rows_of_its_completed_requests():
    rows = decoded(
        event("begin", 1, 6),
        *(event("request", handle, i) for i, handle in enumerate((70, 71, 72))),
        event("done", pair(4, 9), 2, 16),
        event("done", pair(5, 9), 0, 8),
        event("end", 9, 6),
    )
    assert [*zip(rows["kind"], rows["request"], rows["peer"], rows["num_bytes"], strict=True)] == [
        (KINDS.index("request"), 71, -1, 0),
        (KINDS.index("done"), 72, 4, 16),
        (KINDS.index("done"), 70, 5, 8),
    ]
    assert rows["part"] == [0, 1, 2]


def test_a_receive_has_the_communicator_it_was_posted_on():
    rows = decoded(
        event("begin", 1, 2), event("recv", pair(-1, -1), 3, 64), event("done", pair(1, 5), 0, 8), event("end", 2, 2)
    )
    assert rows["comm"] == [3, 3]
    assert rows["peer"] == [-1, 1]
    assert rows["tag"] == [-1, 5]


def test_wide_numbers():
    rows = decoded(event("begin", 1, 1), event("wide", 70000), event("send", pair(0, 0), 4095, 1), event("end", 2, 1))
    assert rows["comm"] == [70000]


def test_a_collective_has_its_root():
    rows = decoded(event("begin", 1, 3), event("root", 2), event("collective", 100, 0, 50), event("end", 2, 3))
    assert (rows["peer"], rows["num_bytes"], rows["received_bytes"]) == ([2], [50], [100])
    wide = event("wide", 70000), event("collective", 100, 4095, 50)
    rows = decoded(event("begin", 1, 3), event("root", 2), *wide, event("end", 2, 3))
    assert (rows["peer"], rows["comm"]) == ([2], [70000])


def test_lost_events_discard_open_intervals():
    decoder = ThreadDecoder()
    decoder.take(np.array([event("begin", 1, 1)], EVENT), lost=5)
    rows = decoder.take(np.array([event("end", 9, 1), event("begin", 10, 2), event("end", 11, 2)], EVENT))
    assert rows["start"].tolist() == [10]
    assert decoder.unmatched == 1


def sample(tmp_path, count: int = 50, capacity: int = 64) -> Trace:
    """Two ranks that send to each other; their events are in many small segments."""
    for rank in (0, 1):
        events = []
        for i in range(count):
            at = 1000 * i + 10 * rank
            events += [event("begin", at, 1), event("send", pair(1 - rank, i % 3), 0, 8 * i), event("end", at + 5, 1)]
            events += [event("begin", at + 100, 2), event("recv", pair(-1, -1), 0, 1 << 20)]
            events += [event("done", pair(1 - rank, i % 3), 0, 8 * i), event("end", at + 300, 2)]
        write_process(tmp_path, rank, {1: events, 2: [event("point", 7, 3, 1)]}, capacity=capacity)
    return merge(tmp_path).read()


def test_ranks_of_both_byte_orders_are_one_trace(tmp_path):
    plain = sample(tmp_path)
    (file,) = tmp_path.glob("host-1.dvt")
    file.write_bytes(swapped(file.read_bytes()))
    mixed = merge(tmp_path).read()
    assert mixed.columns.keys() == plain.columns.keys()
    for name, column in plain.columns.items():
        assert np.array_equal(mixed.columns[name], column), name
    assert {**mixed.meta, "ranks": 0} == {**plain.meta, "ranks": 0}


def test_files_of_all_ranks_are_merged_in_order_of_time(tmp_path):
    trace = sample(tmp_path)
    assert trace.num_ranks == 2
    assert np.all(np.diff(trace.columns["end_s"]) >= 0)
    assert trace.num_events == 2 * (2 * 50 + 1)
    assert trace.meta["clocks"] == {
        "messages": 100, "without_partner": 0, "received_before_sent": 0, "earliest_s": 0.0
    }  # fmt: skip


def test_a_reader_reads_only_the_chunks_it_needs(tmp_path, monkeypatch):
    monkeypatch.setattr("dovetail.trace.store.CHUNK_ROWS", 16)
    trace = sample(tmp_path)
    opened = open_trace(tmp_path / "trace.dovetail")
    assert len(opened.chunks) > 5
    col = trace.columns
    span = float(col["start_s"][60]), float(col["end_s"][70])
    expected = trace.rows((col["end_s"] >= span[0]) & (col["start_s"] <= span[1])).to_json()
    read = []
    columns = type(opened)._columns
    monkeypatch.setattr(type(opened), "_columns", lambda self, chunk: read.append(chunk) or columns(self, chunk))
    assert opened.between(*span).to_json() == expected
    assert 0 < len(read) < len(opened.chunks) / 2


def test_a_trace_is_written_and_read(tmp_path):
    trace = sample(tmp_path)
    again = save_trace(tmp_path / "copy", trace).read()
    assert again.to_json() == trace.to_json() == Trace.from_json(trace.to_json()).to_json()


@pytest.mark.parametrize("cut", [0, 4, 8, 1000, -1, -16, -40])
def test_a_truncated_trace_is_refused(tmp_path, cut):
    sample(tmp_path)
    path = tmp_path / "trace.dovetail"
    data = path.read_bytes()
    path.write_bytes(data[:cut])
    with pytest.raises(DovetailError, match=r"is truncated|no trace"):
        open_trace(path)


def test_ranks_of_consecutive_jobs_are_numbered_consecutively(tmp_path):
    """Each of three jobs sends one message from its rank 0 to its rank 1; the first job has fewer ranks."""
    for job, (num_ranks, num_bytes) in enumerate(((2, 8), (3, 16), (3, 32))):
        place, note = tmp_path / str(job), {"clock_of": "one"}
        ends = [event("send", pair(1, 1), 0, num_bytes)], [event("recv", pair(0, 1), 0, num_bytes)]
        ends[1].append(event("done", pair(0, 1), 0, num_bytes))
        for rank, details in enumerate((*ends, [])[:num_ranks]):
            called = [event("begin", 10 * rank, 1 + rank), *details, event("end", 10 * rank + 5, 1 + rank)]
            write_process(place, rank, {1: called}, num_ranks=num_ranks, notes=[note])
        for path in place.iterdir():
            path.rename(tmp_path / f"{job}-{path.name}")
        place.rmdir()
    found = merge(tmp_path)
    assert found.num_ranks == 8
    assert found.meta["clocks"]["without_partner"] == 0
    sent = messages(found.read())
    reported = zip(sent.src.tolist(), sent.dst.tolist(), sent.num_bytes.tolist(), strict=True)
    assert sorted(reported) == [(0, 1, 8), (2, 3, 16), (5, 6, 32)]
    assert all(about["clock_error_s"] == 0 for about in found.meta["ranks"]), "all ranks read one clock"


def test_damaged_files_are_merged(tmp_path):
    """Planted: a time far in the future, a name that is a large number, and random bytes."""
    random = np.random.default_rng(0)
    calls = [each for i in range(200) for each in (event("begin", 10 * i, 3), event("end", 10 * i + 5, 3))]
    calls[21] = event("end", 1 << 61, 3)
    calls[41:41] = [event("wide", 0xA1F2C3D8)]
    write_process(tmp_path, 0, {1: calls})
    write_process(tmp_path, 1, {1: calls[50:], 2: np.array(calls, EVENT)})
    assert merge(tmp_path).read().num_rows > 400
    file = tmp_path / "host-1.dvt"
    whole = file.read_bytes()
    for _ in range(20):
        at = int(random.integers(PAGE, len(whole) - 64))
        file.write_bytes(whole[:at] + random.bytes(64) + whole[at + 64 :])
        assert merge(tmp_path).num_rows > 100


def test_lanes_are_read_only_when_they_are_next(monkeypatch):
    """1000 consecutive short lanes beside a long one: rows are concatenated about once, not at every step."""
    monkeypatch.setattr(sys.modules[_Lane.__module__], "FEW_ROWS", 4)
    short = [batches_of(10.0 * lane + np.arange(6), 3) for lane in range(1000)]
    long = batches_of(np.arange(0, 10_000, 2.5), 50)
    touched, take = [], _Lane.take
    monkeypatch.setattr(_Lane, "take", lambda self, horizon: touched.append(take(self, horizon)) or touched[-1])
    ends = np.concatenate([rows["end_s"] for rows in in_order([*short, long])])
    assert len(ends) == 10_000
    assert (np.diff(ends) >= 0).all()
    assert len(touched) < 3000


def batches_of(ends, size):
    """A lane whose rows end at these times in s, in batches of `size` rows."""
    for at in range(0, len(ends), size):
        part = np.asarray(ends[at : at + size], "f8")
        yield {name: part if name == "end_s" else np.zeros(len(part), kind) for name, kind in COLUMNS.items()}


@pytest.mark.parametrize(
    ("before", "after"),
    [('"chunks": [[', '"chunks": [["x", '), ('"num_ranks": 2', '"num_ranks": "a"'), ('"comms": [', '"comms": [7, '),
     ('"num_ranks": 2', '"num_ranks": -3'), ('"names": [', '"names": 3, "z": ['), ('"kind": "u1", ', ""),
     ('"columns": {', '"columns": {"q": 3, '), ('"meta": {', '"meta": [], "m": {')],
)  # fmt: skip
def test_an_invalid_index_is_refused(tmp_path, before, after):
    whole = two_ranks(tmp_path).path.read_bytes()
    length = int.from_bytes(whole[-16:-8], "little")
    text = whole[-16 - length : -16].decode()
    assert before in text
    index = text.replace(before, after, 1).encode()
    (tmp_path / "bad").write_bytes(whole[: -16 - length] + index + len(index).to_bytes(8, "little") + whole[-8:])
    with pytest.raises(DovetailError, match="broken index"):
        open_trace(tmp_path / "bad")


@pytest.mark.parametrize("column", ["kind", "rank", "name", "comm"])
def test_rows_with_impossible_values_are_refused(tmp_path, column):
    trace = two_ranks(tmp_path).read()
    trace.columns[column][-1] = 200
    with pytest.raises(DovetailError, match="broken rows"):
        save_trace(tmp_path / "bad", trace).read()


def test_a_trace_without_rows_has_empty_statistics(tmp_path):
    for rank in (0, 1):
        write_process(tmp_path, rank, {1: []})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert stats(merge(tmp_path)).calls == ()


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(DovetailError, match="there is no folder"):
        merge(tmp_path / "nowhere")


def two_ranks(folder):
    for rank in (0, 1):
        write_process(folder, rank, {1: [event("begin", 5, 1), event("end", 9, 1)]})
    return merge(folder)
