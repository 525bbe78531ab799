"""Damaged traces (truncated, with changed bytes or invalid sizes) raise a clear error or are read, and never crash."""

from __future__ import annotations

import json
import random
import re
import struct
import warnings

import numpy as np
import pytest
from trace_calls import call, collective, sent, taken
from trace_files import event, write_process

from dovetail.advise.advise import advise
from dovetail.cli import main
from dovetail.core import DovetailError
from dovetail.trace import merge, open_trace
from dovetail.trace.analysis.stats import stats
from dovetail.trace.exchange.chrome import read_chrome
from dovetail.trace.exchange.tlog import RECORD, read_tlog
from dovetail.trace.process_file import MOST_UNSEEN
from dovetail.trace.store import TraceWriter

NUMBERS = ("-1", "0", "1e308", "9" * 20, "1e999", "NaN", "4294967296", "null", '"x"', "[]", "{}", "70000", "true")
WORDS = (b"\xff" * 8, bytes(8), (1 << 40).to_bytes(8, "little"), (1 << 62).to_bytes(8, "little"))
NOTES = (
    *({"clock_of": "one"}, {"clock": {"mine_ns": 3, "peer_ns": 4, "half_trip_ns": 2}}, {"event_ticks": [1, 2]}),
    *({"map": "/x", "start": 0, "end": 100, "offset": 0}, {"site": 1, "file": "x", "line": 3}),
    {"comm": 1, "ranks": [1], "window": True},
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run on two ranks, and its merged trace."""
    folder = tmp_path_factory.mktemp("run")
    first = [*call(3, 0, 4), *call(1, 4, 5, sent(1, 100)), *call(11, 5, 9, *collective())]
    second = [*call(2, 1, 6, *taken(0, 100)), *call(11, 6, 9, *collective()), event("point", 10**7, 3, 4)]
    for rank, events in enumerate((first, second)):
        write_process(folder, rank, {1: events}, capacity=32, notes=NOTES)
    return folder, merge(folder)


def parts(whole):
    """The rows of a trace file, and its index."""
    start = len(whole) - 16 - int.from_bytes(whole[-16:-8], "little")
    return whole[:start], whole[start:-16]


def with_index(rows, index):
    return rows + index + len(index).to_bytes(8, "little") + b"dovetrac"


def without_checksums(whole):
    """The file as versions before checksums wrote it."""
    rows, index = parts(whole)
    document = json.loads(index)
    document["chunks"] = [chunk[:4] for chunk in document["chunks"]]
    return with_index(rows.replace(b"dovecrc1", bytes(8)), json.dumps(document).encode())


def changed(whole, draw, how):
    """The bytes with one kind of damage."""
    data, (rows, index) = bytearray(whole), parts(whole)
    if how == "cut":
        return data[: draw.randrange(len(data))]
    if how == "bits":
        for _ in range(draw.choice((1, 1, 2, 8))):
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    if how == "word":
        at = draw.randrange(len(data) - 8)
        data[at : at + 8] = draw.choice(WORDS)
    if how == "gone":
        at = draw.randrange(len(data))
        del data[at : at + draw.randrange(1, 64)]
    if how == "number":  # a number in the index; the index's length stays valid
        text = index.decode()
        at = draw.choice(list(re.finditer(r"-?\d+(\.\d+)?(e-?\d+)?", text)))
        return with_index(rows, (text[: at.start()] + draw.choice(NUMBERS) + text[at.end() :]).encode())
    return bytes(data)


@pytest.mark.parametrize("is_old", [False, True], ids=["checked", "old"])
@pytest.mark.parametrize("how", ["cut", "bits", "word", "gone", "number"])
def test_a_damaged_trace_is_refused_or_read(run, tmp_path, how, is_old):
    """2000 cases of damage in all. With checksums, a trace that can be read is unchanged."""
    draw, path = random.Random(f"{how} {is_old}"), tmp_path / "bad.dovetail"
    whole, expected = run[1].path.read_bytes(), run[1].read()
    refused = []
    for _ in range(200):
        path.write_bytes(changed(without_checksums(whole) if is_old else whole, draw, how))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                found = open_trace(path).read()
                stats(found)
        except DovetailError as error:
            refused.append(error)
        else:
            assert is_old or found.to_json() == expected.to_json()
    assert all(str(path) in error.what and error.found for error in refused), "the error names the file and the reason"
    assert len(refused) >= (60 if is_old else 180)


def test_every_cut_is_refused(run, tmp_path):
    whole, path = run[1].path.read_bytes(), tmp_path / "cut.dovetail"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(DovetailError, match=r"is truncated|is no trace"):
            open_trace(path)


def test_the_command_says_what_is_wrong(run, tmp_path, capfd):
    whole, path = bytearray(run[1].path.read_bytes()), tmp_path / "bad.dovetail"
    whole[100] ^= 4
    path.write_bytes(whole)
    assert main(["trace", "stats", str(path)]) == 2
    reported = capfd.readouterr().err
    assert f"the trace {path} is damaged" in reported
    assert "checksum" in reported


@pytest.mark.parametrize("which", ["header", "counts", "lines", "cut"])
def test_a_damaged_process_file_is_read_as_far_as_it_goes(run, tmp_path, which):
    """Or its name is reported. The files of other processes are read in any case."""
    draw, (path, lines) = random.Random(which), (tmp_path / "host-1.dvt", tmp_path / "host-1.jsonl")
    for name in ("host-0.dvt", "host-0.jsonl", "host-1.dvt", "host-1.jsonl"):
        (tmp_path / name).write_bytes((run[0] / name).read_bytes())
    events, notes = path.read_bytes(), lines.read_bytes()
    for _ in range(60):
        data, text = bytearray(events), bytearray(notes)
        if which == "header":
            at = draw.randrange(13) * 8
            data[at : at + 8] = draw.choice((*WORDS, draw.randbytes(8)))
        if which == "counts":
            at = draw.choice((4096, 4104, 8192 + 8 * draw.randrange(20)))
            data[at : at + 8] = draw.choice((*WORDS, draw.randbytes(8)))
        if which == "lines":
            for _ in range(draw.choice((1, 3, 9))):
                text[draw.randrange(len(text))] = draw.choice(b'0123456789"{}[],:-exn')
        path.write_bytes(data[: draw.randrange(len(data))] if which == "cut" else data)
        lines.write_bytes(text)
        assert merge(tmp_path).num_rows >= 3


def copied(run, folder):
    """Copy the files of the two ranks, to be damaged."""
    for name in ("host-0.dvt", "host-0.jsonl", "host-1.dvt", "host-1.jsonl"):
        (folder / name).write_bytes((run[0] / name).read_bytes())
    return folder


def claim(path, rank, num_ranks):
    """Write a rank and a number of ranks into the header of a process's file."""
    data = bytearray(path.read_bytes())
    data[40:48] = struct.pack("<2i", rank, num_ranks)
    path.write_bytes(data)


HUGE = 1 << 24


@pytest.mark.parametrize("num_ranks", [MOST_UNSEEN + 3, HUGE])
def test_a_header_that_claims_ranks_without_files_is_left_out(run, tmp_path, num_ranks):
    """Tables by sender and receiver would need memory for the square of that number."""
    claim(copied(run, tmp_path) / "host-1.dvt", num_ranks - 1, num_ranks)
    found = merge(tmp_path)
    assert found.num_ranks == 1
    (fault,) = (text for text in found.meta["faults"] if "host-1.dvt" in text)
    assert fault == (
        f"host-1.dvt is left out: its header is damaged: a job of {num_ranks} ranks, of which 1 left a file"
    )
    assert stats(found).matrix_bytes.shape == (1, 1)
    claim(tmp_path / "host-0.dvt", 0, num_ranks)
    with pytest.raises(DovetailError, match=r"no trace in .* can be read") as refused:
        merge(tmp_path)
    assert "of which 2 left a file" in refused.value.found
    assert "trace run" in refused.value.hint


def test_a_job_is_read_although_most_ranks_left_no_file(run, tmp_path):
    claim(copied(run, tmp_path) / "host-1.dvt", 1, 1000)
    claim(tmp_path / "host-0.dvt", 0, 1000)
    assert merge(tmp_path).num_ranks == 2


def test_a_communicator_larger_than_its_job_is_reported(run, tmp_path):
    lines = copied(run, tmp_path) / "host-1.jsonl"
    whole = lines.read_text()
    assert '"size": 2' in whole
    for damaged in ('"size": 16777215', '"ranks": [0, 2147483646]', '"size": 3'):
        lines.write_text(whole.replace('"size": 2', damaged))
        found = merge(tmp_path)
        assert "host-1.jsonl has 1 broken lines" in found.meta["faults"], damaged
        assert max(len(comm.ranks) for comm in found.comms) == 2


@pytest.mark.parametrize("is_old", [False, True], ids=["checked", "old"])
def test_a_trace_that_claims_ranks_without_rows_is_refused(run, tmp_path, is_old):
    path, whole = tmp_path / "bad.dovetail", run[1].path.read_bytes()
    few = run[1].read()
    if is_old:
        rows, index = parts(without_checksums(whole))
        path.write_bytes(with_index(rows, index.replace(b'"num_ranks": 2', f'"num_ranks": {HUGE}'.encode())))
        with pytest.raises(DovetailError, match="broken index") as refused:
            open_trace(path)
    else:
        with TraceWriter(path) as writer:
            writer.add(few.columns)
            with pytest.raises(DovetailError, match="broken index") as refused:
                writer.close(HUGE, few.names, few.comms, few.meta)
    assert f"{HUGE} ranks, of which only 2 have events" in refused.value.found
    assert "dovetail trace merge" in refused.value.hint


def test_ranks_of_an_imported_trace_count_by_their_rows(run, tmp_path):
    """An imported trace names no processes: it may have as many ranks as have rows, and a few more."""
    few = run[1].read()
    many = few.rows(np.zeros(MOST_UNSEEN + 10, "i8"))
    many.columns["rank"] = np.arange(MOST_UNSEEN + 10, dtype="i4")
    with TraceWriter(tmp_path / "many.dovetail") as writer:
        writer.add(many.columns)
        assert writer.close(MOST_UNSEEN + 10, few.names, few.comms, {}).num_ranks == MOST_UNSEEN + 10


def test_a_tlog_with_a_damaged_rank_is_refused(tmp_path):
    records = np.zeros(64, RECORD)
    records["event"][:2], records["time_s"][:2], records["rank"][1] = (31, 31), (1.0, 2.0), 65535
    (tmp_path / "trace.log").write_bytes(records.tobytes())
    with pytest.raises(DovetailError, match=r"no trace\.log") as refused:
        read_tlog(tmp_path / "trace.log")
    assert refused.value.found == "65536 ranks, of which only 2 have events"
    assert refused.value.hint


def span(**more):
    return {"ph": "X", "name": "a", "ts": 1, "dur": 2, "pid": 1, "tid": 1} | more


@pytest.mark.parametrize("rank", [HUGE, 1 << 40, -1, "x", None])
def test_a_chrome_file_with_a_damaged_rank_is_refused(tmp_path, rank):
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"distributedInfo": {"rank": rank}, "traceEvents": [span()]}))
    with pytest.raises(DovetailError, match="no trace in Chrome's format") as refused:
        read_chrome([path])
    assert str(path) in refused.value.what
    assert refused.value.found
    assert refused.value.hint


def test_chrome_events_with_damaged_numbers_are_counted(tmp_path):
    about = {"Collective name": "allreduce", "Group size": 10**12}
    bad = [span(args=about), span(args=about | {"Group size": 2, "In msg nelems": 1 << 62}), span(ts=float("inf"))]
    bad += [span(ts=float("nan")), span(dur=1e300)]
    (tmp_path / "t.json").write_text(json.dumps([span(), *bad]))
    found = read_chrome([tmp_path / "t.json"])
    assert (found.num_rows, found.meta["faults"]) == (1, ["5 events are broken"])


def test_advice_leaves_out_collectives_that_a_rank_never_made(run, tmp_path):
    """The rank's file is missing, or it ended earlier: in a replay the others would wait for it forever."""
    copied(run, tmp_path)
    (tmp_path / "host-1.dvt").unlink()
    found = merge(tmp_path)
    assert found.num_ranks == 1
    assert advise(found).replayed_s > 0
