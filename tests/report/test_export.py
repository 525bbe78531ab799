"""Exports for other tools and pages: Chrome traces, SVG pictures, plots of curves."""

import json
import re
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timelines import HOSTILE, SUMMARY, Tags, overlapped, pair, run_of

from dovetail.cost import Curve, Samples, fit
from dovetail.ir import Kind
from dovetail.report import Provenance, chrome_trace, curves_page, svg, write_perfetto
from dovetail.report.picture import GUTTER, LETTER, RIGHT, _axis
from dovetail.timeline import Timeline

# --- Chrome traces


def test_chrome_trace_has_a_process_per_rank_and_a_thread_per_lane(tmp_path):
    program, timelines = pair()
    document = json.loads(write_perfetto(tmp_path / "t.json", timelines, program).read_text())
    named = [e for e in document["traceEvents"] if e["ph"] == "M"]
    processes = {e["args"]["name"]: e["pid"] for e in named if e["name"] == "process_name"}
    assert list(processes) == [f"{label} rank {rank}" for label in ("predicted", "measured") for rank in (0, 1)]
    assert len(set(processes.values())) == 4
    for pid in processes.values():
        threads = [e["args"]["name"] for e in named if e["name"] == "thread_name" and e["pid"] == pid]
        assert threads == ["compute", "send", "recv"]


def test_chrome_trace_spans_are_in_microseconds_and_name_their_op():
    program, timelines = pair()
    events = chrome_trace(timelines, program)["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    assert len(spans) == sum(t.num_spans for t in timelines)
    last = max(spans, key=lambda e: e["ts"] + e["dur"])
    assert last["ts"] + last["dur"] == pytest.approx(timelines[1].makespan_s * 1e6)
    send = next(e for e in spans if e["name"] == "send")
    assert send["args"] == {
        "op": 1,
        "text": "send P[0:1] to 1 after compute.0",
        "written_at": "tiles.py:7",
        "num_bytes": 4096,
    }


def inside(ts, span):
    return span["ts"] <= ts < span["ts"] + span["dur"]


def test_chrome_trace_flows_join_each_send_to_its_receive():
    program, timelines = pair()
    events = chrome_trace(timelines, program)["traceEvents"]
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert starts.keys() == ends.keys()
    assert len(starts) == 2 * (program.columns["kind"] == Kind.send).sum()
    spans = {(e["pid"], e["tid"], e["ts"]) for e in events if e["ph"] == "X"}
    threads = {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"}
    assert len({tid for _, tid in threads}) == len(threads)  # unique in the trace, as Perfetto requires
    assert not {tid for _, tid in threads} & {pid for pid, _ in threads}
    assert all(isinstance(key, int) for key in starts)
    for key, start in starts.items():
        assert (start["pid"], start["tid"], start["ts"]) in spans
        assert ends[key]["pid"] != start["pid"]
        assert ends[key]["ts"] >= start["ts"]
        taken = next(
            e for e in events if e["ph"] == "X" and e["tid"] == ends[key]["tid"] and inside(ends[key]["ts"], e)
        )
        assert taken["name"] == "recv_reduce"


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e-3), min_size=2, max_size=40))
def test_chrome_trace_spans_of_a_thread_do_not_overlap_by_rounding(lengths):
    end = np.cumsum(lengths)
    columns = {name: np.zeros(len(end), dtype="i4") for name in ("rank", "lane", "name", "op", "num_bytes")}
    columns |= {"start_s": np.concatenate([[0], end[:-1]]), "end_s": end}
    spans = [
        e for e in chrome_trace([Timeline("measured", 1, ("a",), ("x",), columns)])["traceEvents"] if e["ph"] == "X"
    ]
    for before, after in pairwise(spans):
        assert round(1e3 * before["ts"]) + round(1e3 * before["dur"]) <= round(1e3 * after["ts"])


def test_overlapping_spans_get_separate_threads():
    columns = {name: np.zeros(2, dtype="i4") for name in ("rank", "lane", "name", "num_bytes")}
    columns |= {"op": np.array([-1, -1]), "start_s": np.array([0.0, 1.0]), "end_s": np.array([2.0, 3.0])}
    events = chrome_trace([Timeline("measured", 1, ("net",), ("poll",), columns)])["traceEvents"]
    assert [e["args"]["name"] for e in events if e["name"] == "thread_name"] == ["net", "net (2)"]


# --- pictures


def test_svg_is_well_formed_and_labelled():
    program, timelines = pair()
    root = ElementTree.fromstring(svg(timelines, program, title="A <b>", provenance=SUMMARY.provenance))
    texts = ["".join(e.itertext()) for e in root.iter("{http://www.w3.org/2000/svg}text")]
    for text in ("A <b>", "rank 0", "rank 1", "predicted", "measured", "commit e40cb77", "compute", "send, put"):
        assert text in texts
    rects = root.findall(".//{http://www.w3.org/2000/svg}rect")
    assert len(rects) == 1 + sum(t.num_spans for t in timelines) + 2 + 3  # ground, spans, legend


def test_times_on_the_axis_are_not_cut_off_at_the_right():
    found = 0
    for end_s in np.linspace(1, 2, 101):  # the last tick is anywhere before the end
        text = "\n".join(_axis(end_s, 700, 12.0, 99.0))
        for x, label in re.findall(r'<text class="muted" x="([\d.]+)" y="22.0">([^<]+)', text):
            assert float(x) + LETTER * len(label) <= GUTTER + 700 * end_s + RIGHT
            found += 1
    assert found > 600


def test_svg_survives_hostile_names_and_no_spans():
    program = overlapped(name=HOSTILE)
    ElementTree.fromstring(svg([run_of(program)], program, title=HOSTILE, provenance=Provenance(HOSTILE)))
    ElementTree.fromstring(svg([]))
    ElementTree.fromstring(svg([run_of(overlapped(2, 0))]))


def test_svg_of_many_spans_stays_small():
    program, timelines = pair(2, 5000)
    assert len(svg(timelines, program)) < 3e5


# --- plots


def curve():
    rng = np.random.default_rng(0)
    return fit(Samples.of({2**k: list((1e-5 + 2**k / 1e9) * rng.uniform(1, 1.02, 5)) for k in range(2, 20)}))


def test_curves_page_shows_samples_fit_breaks_range_and_residuals():
    text = curves_page({"p2p:tcp": curve()}, title="Costs", provenance=SUMMARY.provenance)
    figure = json.loads(re.search(r'id="figures">(.*?)</script>', text, re.DOTALL)[1])[0]
    assert {"timings", "medians", "measured fit", "residual"} <= {trace["name"] for trace in figure["data"]}
    shown = Tags(text).text
    for words in ("p2p:tcp", "valid from", "512 KiB", "median error", "e40cb77", "dovetail tune"):
        assert words in shown


def test_fit_is_drawn_inside_its_range_only():
    known = Curve("rows", ((Curve.through([0, 1], [0, 1]).segments)[0],), low=10, high=100, label="published")
    text = curves_page({"k": known}, title="x")
    traces = json.loads(re.search(r'id="figures">(.*?)</script>', text, re.DOTALL)[1])[0]["data"]
    line = next(t for t in traces if t["name"] == "published fit")
    assert (min(line["x"]), max(line["x"])) == (10, 100)


def test_curve_names_cannot_become_html():
    hostile = Tags(curves_page({HOSTILE: curve()}, title=HOSTILE))
    assert "img" not in hostile.tags
    assert hostile.tags.count("script") == 3
    assert not [a for a in hostile.attributes if a[1] in ("src", "href")]
