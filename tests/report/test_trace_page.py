"""The page of traces in a real browser: lanes, messages, search, sums, and speed with a million calls."""

from __future__ import annotations

import numpy as np
import pytest
from browser import launched
from late_ranks import Program
from trace_files import event, pair, write_process

from dovetail.report.trace_page import span_texts, trace_details, write_trace_page
from dovetail.trace import Trace, merge
from dovetail.trace.to_timeline import span_rows
from dovetail.trace.trace import COLUMNS, no_columns

pytestmark = [pytest.mark.browser, pytest.mark.needs("chromium")]


@pytest.fixture(scope="module")
def browser():
    with launched() as opened:
        yield opened


def exchange(tmp_path) -> Trace:
    """Return a trace of two ranks that send to each other, each within an interval; rank 1 is late."""
    for rank in (0, 1):
        late = 10**6 * rank
        events = [event("begin", late + 1, 3, 5)]
        events += [
            event("begin", late + 2, 4),
            event("send", pair(1 - rank, 7), 0, 4096),
            event("end", late + 10, 4, 9),
        ]
        events += [event("end", late + 11, 3), event("begin", late + 20, 2), event("recv", pair(-1, -1), 0, 1 << 20)]
        events += [event("done", pair(1 - rank, 7), 0, 4096), event("end", 10**6 + 500, 2)]
        write_process(tmp_path, rank, {1: events})
    return merge(tmp_path).read()


def test_messages_and_texts_belong_to_their_spans(tmp_path):
    details = trace_details(exchange(tmp_path))
    assert details.texts == [
        *("work 5", "MPI_Isend to 1, tag 7", "MPI_Recv from any, tag any"),
        *("work 5", "MPI_Isend to 0, tag 7", "MPI_Recv from any, tag any"),
    ]
    assert sorted(zip(details.sender.tolist(), details.taker.tolist(), strict=True)) == [(1, 5), (4, 2)]


def shown(browser) -> int:
    """Return the number of drawn pixels of the overlay."""
    code = 'overlay.getContext("2d").getImageData(0, 0, overlay.width, overlay.height).data'
    browser.frames(3)
    return int(browser.run(f"{code}.filter((v, i) => i % 4 === 3 && v).length"))


@pytest.mark.parametrize(("to", "text"), [(1, "to 1 and from 1, tag 7"), (-2, "from 1, tag 7")])
def test_a_call_that_sends_and_receives_shows_both(tmp_path, to, text):
    """At the edge of a grid, a rank may send to nobody (MPI_PROC_NULL) and still receive."""
    for rank in (0, 1):
        events = [event("begin", 1, 14), event("send", pair(to if rank == 0 else 0, 7), 0, 8)]
        events += [event("recv", pair(1 - rank, 7), 0, 8), event("done", pair(1 - rank, 7), 0, 8), event("end", 9, 14)]
        write_process(tmp_path, rank, {1: events})
    trace = merge(tmp_path).read()
    assert span_texts(trace, span_rows(trace))[0] == f"MPI_Sendrecv {text}"


def test_lanes_messages_and_sums(browser, tmp_path):
    trace = exchange(tmp_path)
    browser.open(write_trace_page(tmp_path / "page.html", [trace, trace], ["before", "after"]))
    assert (browser.complaints, len(browser.requests)) == ([], 1)
    text = browser.run("document.body.innerText")
    for words in ("before and after", "late sender", "MPI_Recv", "share of run", "from \\ to", "4 KiB"):
        assert words in text
    assert shown(browser) == 0
    browser.page.click("#messages")
    assert shown(browser) > 100
    browser.page.click("#messages")
    assert shown(browser) == 0


def test_search_fades_other_spans_and_goes_from_match_to_match(browser, tmp_path):
    browser.open(write_trace_page(tmp_path / "page.html", [exchange(tmp_path)], ["exchange"]))
    browser.page.fill("#find", "isend tag")
    browser.page.press("#find", "Enter")
    assert browser.run("found.innerText").startswith("2 spans")
    assert "MPI_Isend to 1, tag 7" in browser.run("detail.innerText")
    browser.page.press("#find", "Enter")
    assert "MPI_Isend to 0, tag 7" in browser.run("detail.innerText")
    assert browser.run("legend.innerText").strip() == "send"
    browser.page.press("#find", "Escape")
    assert "receive" in browser.run("legend.innerText")


def test_a_click_on_a_finding_shows_its_calls(browser, tmp_path):
    """Other spans fade; each click goes to the next call, and the click after the last shows all again."""
    program = Program(2)
    for step in range(6):
        program.work(0, 5)
        program.work(1, 2 + 0.1 * step)
        program.all_reduce()
    trace = program.trace(tmp_path)
    browser.open(write_trace_page(tmp_path / "page.html", [exchange(tmp_path / "other"), trace], ["other", "late"]))
    assert (browser.complaints, len(browser.requests)) == ([], 1)
    assert "Causes of waits" in browser.run("document.body.innerText")
    finding = "button.finding[data-timeline='1']"
    calls = browser.run(f'JSON.parse(document.querySelector("{finding}").dataset.calls)')
    longest_ms = [round((end - start) * 1e3, 2) for _, start, end in calls]
    assert longest_ms[0] == pytest.approx(3.01, abs=0.02)
    assert longest_ms == sorted(longest_ms, reverse=True)
    seen = []
    for _, start, end in calls:
        browser.page.click(finding)
        browser.page.wait_for_timeout(250)
        t0, t1 = map(float, browser.run("view.dataset.window").split())
        assert t0 <= start + 1e-9
        assert t1 >= end - 1e-9
        assert browser.run("legend.innerText").strip() == "collective"
        seen.append(browser.run("detail.innerText"))
    assert all("MPI_Allreduce" in text and "late" in text for text in seen)
    assert len(set(seen)) == len(calls)
    browser.page.click(finding)
    assert browser.run(f'document.querySelector("{finding}").getAttribute("aria-pressed")') == "false"
    assert "send" in browser.run("legend.innerText")


def many(count: int) -> Trace:
    """Return a trace of `count` calls on four ranks, without messages."""
    columns = {name: np.zeros(count, dtype) for name, dtype in COLUMNS.items()} | {"kind": np.zeros(count, "u1")}
    at = np.arange(count)
    columns |= {"rank": (at % 4).astype("i4"), "name": (at // 4 % 3).astype("i4"), "start_s": at * 1e-7}
    columns |= {"end_s": at * 1e-7 + 3e-7, "request": np.full(count, -1), "comm": np.full(count, -1, "i4")}
    assert set(columns) == set(no_columns())
    return Trace(4, ("MPI_Send", "MPI_Recv", "work"), (), columns)


@pytest.mark.slow
@pytest.mark.thorough
def test_a_million_calls_are_drawn_as_quickly_as_a_few_thousand(browser, tmp_path):
    def draw_ms(count):
        browser.open(write_trace_page(tmp_path / f"{count}.html", [many(count)], ["many"]))
        browser.page.focus("#view")
        times = []
        for key in ("+", "+", "-", "+", "-"):
            browser.page.press("#view", key)
            browser.page.wait_for_timeout(300)
            times.append(float(browser.run("document.documentElement.dataset.drawMs")))
        return min(times)

    few, all_ = draw_ms(8000), draw_ms(1000000)
    assert all_ < 10 * few + 5
