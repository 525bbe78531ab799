"""Reports: structure, escaping, size, and errors of the disk."""

import io
import json
import math
import os
import re
import zlib
from base64 import b64decode

import numpy as np
import pytest
from effort import assert_quick
from hypothesis import given, settings
from hypothesis import strategies as st
from random_programs import programs
from timelines import HOSTILE, SUMMARY, Tags, overlapped, pair, run_of

from dovetail.core import EnvironmentFault, parse_bytes, parse_seconds
from dovetail.cost import Curve
from dovetail.ir import Builder, Kind, Region, to_text
from dovetail.ir.text.lines import op_lines
from dovetail.report import (
    Losses,
    Row,
    Summary,
    is_colour_terminal,
    num_bytes,
    page,
    plain_table,
    rich_table,
    seconds,
    seconds_column,
    summary_table,
    write_curves,
    write_page,
    write_perfetto,
    write_svg,
)
from dovetail.report.span_classes import COMPUTE, OTHER, span_groups
from dovetail.report.tracks import tracks
from dovetail.timeline import Span, Timeline, attribute, from_spans


def payload(text):
    """Return the header and arrays of a page, decoded as by the page's script."""
    data = zlib.decompress(b64decode(re.search(r'id="data">([A-Za-z0-9+/=]*)<', text)[1]))
    size = int.from_bytes(data[:4], "little")
    head = json.loads(data[4 : 4 + size])
    body = data[4 + size :]
    arrays = {
        name: np.frombuffer(body, dtype, count, offset) for name, (dtype, offset, count) in head["arrays"].items()
    }
    return head, arrays


# --- units and tables


@settings(deadline=None)
@given(st.floats(1e-9, 1e6))
def test_seconds_read_back_to_three_digits(value):
    assert parse_seconds(seconds(value).replace("µ", "u")) == pytest.approx(value, rel=5.1e-3)


@settings(deadline=None)
@given(st.integers(0, (1 << 40) - 1))
def test_bytes_read_back_to_three_digits(value):
    assert parse_bytes(num_bytes(value)) == pytest.approx(value, rel=5.1e-3)


@settings(deadline=None)
@given(st.lists(st.none() | st.floats(1e-7, 1e3), min_size=1))
def test_a_column_has_one_width_and_aligned_decimal_points(values):
    cells = seconds_column(values)
    assert len({len(cell) for cell in cells}) == 1
    assert len({cell.index(".") for cell in cells if "." in cell}) <= 1


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_missing_numbers_are_dashes(value):
    assert seconds(value) == num_bytes(value) == "–"


def test_plain_table_is_golden():
    assert summary_table(SUMMARY).splitlines() == [
        "schedule   predicted  measured  ideal gain  why",
        "---------  ---------  --------  ----------  ------------------------------------",
        "serial       52.0 ms   53.0 ms         0 %  always a candidate",
        "optimal *    33.0 ms   35.2 ms        74 %  longer tiles as messages get cheaper",
    ]


def test_predicted_emulated_and_measured_have_their_own_columns():
    summary = Summary((Row("serial", predicted_s=1.0, emulated_s=2.0),))
    header = summary_table(summary).splitlines()[0].split()
    assert header == ["schedule", "predicted", "emulated"]


def test_rich_table_has_the_same_cells():
    text = summary_table(SUMMARY, terminal=True, width=120)
    bare = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert "\x1b[" in text
    for cell in ("serial", "33.0 ms", "74 %", "longer tiles as messages get cheaper"):
        assert cell in bare


@pytest.mark.parametrize("make", [plain_table, rich_table])
def test_a_name_cannot_control_the_terminal(make):
    plain, hostile = make(["name"], [["\\x1b[31mred\\n"]]), make(["name"], [["\x1b[31mred\n"]])
    assert plain == hostile
    assert "[bold]x" in make(["[bold]x"], [["[red]"]])


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
    ids=["terminal", "NO_COLOR", "empty NO_COLOR", "dumb"],
)
def test_colours_are_only_for_terminals_that_show_them(environ, wanted):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    assert is_colour_terminal(Terminal(), environ) is wanted
    assert not is_colour_terminal(io.StringIO(), environ)


# --- the summary


def test_summary_round_trips_through_json():
    assert Summary.from_json(json.loads(json.dumps(SUMMARY.to_json()))) == SUMMARY


# --- tracks, op texts


@pytest.mark.slow
@settings(deadline=None)
@given(programs())
def test_op_lines_are_those_of_the_text_form(program):
    kind = np.where(program.columns["kind"] == Kind.compute, Kind.nop, program.columns["kind"])  # rows without calls
    program = program.with_columns({**program.columns, "kind": kind.astype("u1")}, program.lines)
    lines = iter(line[2:].split(" at ")[0] for line in to_text(program).splitlines() if line.startswith("  "))
    texts = op_lines(program, source=False)
    for rows in program.queues().values():
        assert [texts[row] for row in rows] == [next(lines) for _ in rows]


def test_op_lines_quote_names_and_show_ranks_groups_and_blocks():
    b = Builder("odd", 3)
    b.buffer("two words", "input", 64)
    lane, call = b.lane("net-1", "net"), b.collective("all_reduce", (0, 2))
    kernels = [b.kernel("k", ["all"]), b.kernel("k", ["each"])]
    region = Region("two words", 0, 2, stride=8, blocks=3)
    first = b.add(Kind.collective, 0, lane, reads=[region], writes=[region], call=call)
    for kernel in kernels:
        b.add(Kind.compute, 1, lane, reads=[region], writes=[region], call=kernel, after=[first])
    b.add(Kind.send, 1, lane, reads=[region], chan_out=b.channel(0, 2, 1))
    program = b.build()
    assert op_lines(program, source=False) == [
        line[2:] for line in to_text(program).splitlines() if line.startswith("  ")
    ]


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 3)), min_size=1, max_size=30))
def test_tracks_hold_every_span_once_and_none_over_another(spans):
    start, length = np.array(spans).T
    zeros = np.zeros(len(start), dtype="i4")
    columns = {"rank": zeros, "lane": zeros, "op": zeros, "name": zeros, "num_bytes": zeros, "start_s": start}
    timeline = Timeline("measured", 1, ("net",), ("x",), {**columns, "end_s": start + length})
    found, order = tracks(timeline)
    assert sorted(order) == list(range(len(start)))
    for track in found:
        rows = order[track.first : track.first + track.num_spans]
        assert np.all(start[rows][1:] >= (start + length)[rows][:-1] - 1e-8)


# --- the page


def test_page_holds_table_losses_reasons_and_provenance():
    program, timelines = pair()
    shown = Tags(page(title="A tune", timelines=timelines, program=program, summary=SUMMARY)).text
    for words in ("A tune", "always a candidate", "optimal", "chosen", "74 %", "predicted", "measured", "35.2 ms"):
        assert words in shown
    for words in ("dovetail tune", "two hosts", "e40cb77", "2.00 µs", "optimal beats serial", "± 0.20, +6.7 %", "head"):
        assert words in shown


def test_an_op_named_after_a_kernel_is_compute_even_without_its_program():
    spans = [Span(0, "own", "frobnicate", 0.0, 1.0, op=0), Span(0, "own", "frobnicate", 1.0, 2.0)]
    assert span_groups(from_spans("measured", 1, spans), None).tolist() == [COMPUTE, OTHER]


def test_page_payload_is_the_timelines():
    program, timelines = pair()
    head, arrays = payload(page(title="x", timelines=timelines, program=program))
    assert [t["label"] for t in head["timelines"]] == ["predicted", "measured"]
    assert len(head["programs"]) == 1
    for number, timeline in enumerate(timelines):
        _, order = tracks(timeline)
        np.testing.assert_array_equal(arrays[f"t{number}.start"], timeline.columns["start_s"][order])
        np.testing.assert_array_equal(arrays[f"t{number}.op"], timeline.columns["op"][order])
        assert sum(track[4] for track in head["timelines"][number]["tracks"]) == timeline.num_spans
    assert bytes(arrays["p0.text"]).decode().split("\n") == op_lines(program, source=False)


def test_page_makes_no_requests():
    program, timelines = pair()
    tags = Tags(page(title="x", timelines=timelines, program=program, summary=SUMMARY))
    assert not {"link", "img", "iframe", "object", "base", "a"} & set(tags.tags)
    assert not [a for a in tags.attributes if a[1] in ("src", "href", "srcset", "action")]
    policy = next(a[2] for a in tags.attributes if a[1] == "content" and "default-src" in a[2])
    assert policy.startswith("default-src 'none'")
    assert "http" not in "".join(tags.raw)


def test_names_cannot_become_html():
    program = overlapped(name=HOSTILE, line=HOSTILE)
    timeline = run_of(program)
    timeline.meta["commit"] = timeline.meta["schedule"] = HOSTILE
    summary = Summary((Row(HOSTILE, 1.0, why=HOSTILE),), (Losses("predicted", 1.0, {HOSTILE: 1.0}),), (HOSTILE,))
    tame = Tags(page(title="x", timelines=[run_of(overlapped())], program=overlapped(), summary=SUMMARY))
    hostile = Tags(page(title=HOSTILE, timelines=[timeline], program=program, summary=summary))
    assert set(hostile.tags) <= set(tame.tags)
    assert hostile.tags.count("script") == tame.tags.count("script")
    assert not [a for a in hostile.attributes if a[1].startswith("on")]
    assert hostile.text.count("</script><script>alert(1)</script>") >= 5
    assert hostile.text.count("{{data}}") >= 5  # filled-in text is not filled again


def test_planted_fault_unescaped_names_are_noticed(monkeypatch):
    """Planted fault: without escaping, the test above fails."""
    monkeypatch.setattr("dovetail.report.html.escape", lambda text: text)
    tags = Tags(page(title=HOSTILE))
    assert "img" in tags.tags
    assert [a for a in tags.attributes if a[1] == "onerror"]


def test_each_timeline_may_have_its_own_program():
    serial, tiled = overlapped(2, 1), overlapped(2, 4)
    timelines = [run_of(serial, "measured"), run_of(tiled, "measured"), run_of(tiled)]
    head, _ = payload(page(title="x", timelines=timelines, program=[serial, tiled, None]))
    assert [t["program"] for t in head["timelines"]] == [0, 1, -1]
    with pytest.raises(ValueError, match="2 programs for 3 timelines"):
        page(title="x", timelines=timelines, program=[serial, tiled])


def test_page_without_spans_says_so():
    program = overlapped(2, 0)
    text = Tags(page(title="x", timelines=[run_of(program)], program=program)).text
    assert "no spans" in text


def test_losses_come_from_an_attribution():
    program, (timeline, _) = pair()
    from dovetail.timeline import Alone

    zeros = np.zeros(program.num_ops)
    alone = Alone(zeros + 1e-3, zeros, zeros, zeros > 0, 3e-3, 2e-3)
    losses = Losses.of(timeline, attribute(timeline, program, alone))
    assert losses.makespan_s == pytest.approx(timeline.makespan_s)
    assert losses.label == "predicted"
    assert "lane" in losses.where


def test_a_page_of_a_hundred_thousand_spans_is_small_and_quickly_written(tmp_path):
    program, timelines = pair(num_ranks=8, num_tiles=2084)
    assert sum(t.num_spans for t in timelines) > 100_000
    about = {"title": "large", "timelines": timelines, "program": program, "summary": SUMMARY}
    path = assert_quick(lambda: write_page(tmp_path / "page.html", **about), 350)
    assert path.stat().st_size < 6e6


# --- files


@pytest.mark.parametrize("kind", ["page", "svg", "perfetto", "curves"])
def test_an_error_of_the_disk_is_reported_and_leaves_the_old_file(kind, tmp_path, monkeypatch):
    program, timelines = pair()
    write = {
        "page": lambda path: write_page(path, title="x", timelines=timelines, program=program),
        "svg": lambda path: write_svg(path, timelines, program),
        "perfetto": lambda path: write_perfetto(path, timelines, program),
        "curves": lambda path: write_curves(path, {"copy": Curve.through([0, 9], [0, 1])}, title="x"),
    }[kind]
    path = tmp_path / "old"
    path.write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(EnvironmentFault, match="No space left on device"):
            write(path)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("old", "old")]
    with pytest.raises(EnvironmentFault, match="cannot write"):
        write(path / "below a file")
    assert write(tmp_path / "new" / "there").stat().st_size > 500
