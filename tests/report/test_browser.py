"""Pages in a real browser: drawing, mouse and keys, no requests, and speed with many spans."""

from base64 import b64encode
from hashlib import sha256

import pytest
from browser import launched
from timelines import overlapped, pair, run_of

from dovetail.cost import Curve
from dovetail.report import Losses, Row, Summary, write_curves, write_page

pytestmark = [pytest.mark.browser, pytest.mark.needs("chromium")]
HOSTILE = '<img src="http://x.invalid/" onerror="document.title=1"></script>'


@pytest.fixture(scope="module")
def browser():
    with launched() as opened:
        yield opened


@pytest.fixture
def opened(browser, tmp_path):
    """The browser with a page of two timelines open."""
    program, timelines = pair()
    browser.open(write_page(tmp_path / "page.html", title="Two timelines", timelines=timelines, program=program))
    return browser


def box(browser, element="overlay"):
    return browser.run(f"(r => [r.left, r.top, r.width, r.height])({element}.getBoundingClientRect())")


def colours(browser):
    """Return the number of pixels of each colour on the canvas of rows."""
    code = """(() => {
        const data = main.getContext("2d").getImageData(0, 0, main.width, main.height).data, count = new Map();
        for (const pixel of new Uint32Array(data.buffer)) count.set(pixel, (count.get(pixel) ?? 0) + 1);
        return Object.fromEntries([...count].map(([p, n]) => [[p & 255, (p >> 8) & 255, (p >> 16) & 255].join(), n]));
    })()"""
    return browser.run(code)


def window(browser):
    browser.frames(3)
    return tuple(map(float, browser.run("view.dataset.window").split()))


def point(browser, row, time_s):
    """Return the pixel at `time_s` in the middle of strip `row` (0 is the topmost)."""
    left, top, width, _ = box(browser)
    t0, t1 = window(browser)
    gutter, rows = browser.run("[+view.dataset.gutter, view.dataset.rows.split(' ').map(Number)]")
    return left + gutter + (time_s - t0) / (t1 - t0) * (width - gutter), top + rows[row]


def test_page_draws_solid_measured_and_pale_predicted(opened):
    assert opened.complaints == []
    assert len(opened.requests) == 1
    found = colours(opened)
    assert found["75,124,179"] > 2000  # compute, measured
    assert found["179,200,223"] > 2000  # compute, predicted
    assert found["221,138,60"] > 2000  # send, measured


def test_hover_shows_op_rank_lane_bytes_and_the_other_timeline(opened):
    opened.mouse.move(*point(opened, 2, 1.5e-3))  # rank 0, send, predicted
    opened.frames()
    text = opened.run("tip.innerText")
    for words in (
        "send P[0:1] to 1 after compute.0",
        "predicted",
        "rank",
        "send",
        "1.00 ms",
        "4 KiB",
        "+10.0 %",
        "tiles.py:7",
    ):
        assert words in text
    opened.mouse.move(*point(opened, 2, 7e-3))
    assert opened.run("tip.hidden")


def test_wheel_zooms_about_the_pointer_and_drag_pans(opened):
    whole, at = window(opened), point(opened, 2, 2e-3)
    opened.mouse.move(*at)
    opened.mouse.wheel(0, -200)
    zoomed = window(opened)
    assert whole[0] < zoomed[0] < 2e-3 < zoomed[1] < whole[1]
    assert point(opened, 2, 2e-3)[0] == pytest.approx(at[0], abs=1)
    opened.mouse.down()
    opened.mouse.move(at[0] - 100, at[1])
    opened.mouse.up()
    panned = window(opened)
    assert panned[0] > zoomed[0]
    assert panned[1] - panned[0] == pytest.approx(zoomed[1] - zoomed[0])


def test_keys_zoom_pan_and_walk_from_span_to_span(opened):
    opened.run("view.focus()")
    whole = window(opened)
    opened.key("+")
    opened.frames(20)
    zoomed = window(opened)
    assert zoomed[1] - zoomed[0] < 0.7 * (whole[1] - whole[0])
    opened.key("ArrowRight")
    opened.frames(20)
    assert window(opened)[0] > zoomed[0]
    opened.key("0")
    opened.frames(20)
    assert window(opened) == pytest.approx(whole)
    opened.key(".")
    opened.key(".")
    assert "A[1:2]" in opened.run("detail.innerText")


def test_alignment_stretches_the_shorter_timeline(opened):
    before = colours(opened)["179,200,223"]
    opened.run("document.querySelector('[data-align=length]').click()")
    opened.frames()
    assert colours(opened)["179,200,223"] == pytest.approx(1.1 * before, rel=0.03)


def test_grouping_by_timeline_keeps_every_strip(opened):
    before = opened.run("view.dataset.rows").split()
    opened.run("document.querySelector('[data-group=timeline]').click()")
    assert len(opened.run("view.dataset.rows").split()) == len(before) == 12


def test_dark_theme_is_followed(browser, tmp_path):
    program, timelines = pair()
    path = write_page(tmp_path / "page.html", title="x", timelines=timelines, program=program)
    browser.page.emulate_media(color_scheme="dark")
    try:
        browser.open(path)
        assert colours(browser)["106,159,216"] > 2000
        assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(23, 25, 28)"
    finally:
        browser.page.emulate_media(color_scheme="light")


def test_faults_of_a_page_are_noticed(browser, tmp_path):
    """Planted faults: an exception, a script that the page's policy forbids, and a request to another host."""
    path = tmp_path / "page.html"
    policy = "default-src http://x.invalid; script-src 'sha256-{}'"
    script = "document.documentElement.dataset.ready = true; setTimeout(() => { throw Error('planted') })"
    digest = b64encode(sha256(script.encode()).digest()).decode()
    refused = f"<script>{script}</script><script>1 + 1</script><img src=http://x.invalid/a.png>"
    path.write_text(f'<meta http-equiv=Content-Security-Policy content="{policy.format(digest)}">{refused}')
    browser.open(path)
    browser.frames(3)
    reported = " ".join(browser.complaints)
    assert "planted" in reported
    assert "Content Security Policy" in reported
    assert browser.requests == [path.as_uri(), "http://x.invalid/a.png"]


def test_hostile_names_are_shown_and_not_run(browser, tmp_path):
    program = overlapped(name=HOSTILE, line=HOSTILE)
    timeline = run_of(program)
    timeline.meta["schedule"] = timeline.meta["machine"] = HOSTILE
    summary = Summary((Row(HOSTILE, 1.0, why=HOSTILE),), (Losses("predicted", 1.0, {HOSTILE: 0.1}),), (HOSTILE,))
    path = tmp_path / "page.html"
    browser.open(write_page(path, title=HOSTILE, timelines=[timeline], program=program, summary=summary))
    browser.mouse.move(*point(browser, 0, 0.5e-3))
    browser.frames()
    assert "<img src=" in browser.run("tip.innerText")
    assert browser.run("document.images.length") == 0
    assert browser.run("document.title").startswith("<img")
    assert browser.complaints == []
    assert browser.requests == [path.as_uri()]


def test_drawing_depends_on_pixels_more_than_on_spans(browser, tmp_path):
    """With fifty times the spans on the same strips, all visible, drawing must not take fifty times as long."""
    cost = {}
    for tiles in (40, 2084):
        program, timelines = pair(8, tiles)
        browser.open(write_page(tmp_path / f"{tiles}.html", title="x", timelines=timelines, program=program))
        times = []
        for _ in range(45):  # the least of many: others may have the cores
            browser.run("view.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowDown' }))")  # draws all anew
            browser.frames()
            times.append(float(browser.run("document.documentElement.dataset.drawMs")))
        cost[tiles] = min(times)
    assert cost[2084] < 8 * max(cost[40], 0.3)


def test_curves_are_drawn_offline(browser, tmp_path):
    curves = {
        "copy <b>": Curve.through([0, 1 << 20], [1e-6, 1e-3], label="prior"),
        "p2p": Curve.through([1, 9], [1, 2]),
    }
    path = tmp_path / "curves.html"
    browser.open(write_curves(path, curves, title="Curves"))
    browser.frames(5)
    assert browser.run("document.querySelectorAll('.plot .main-svg').length") >= 2
    assert browser.complaints == []
    assert browser.requests == [path.as_uri()]


LONG = "x" * 400
CLIPPED = """[...document.querySelectorAll("td, th, p, dd, h1, h2")].flatMap(cell => {
    const range = document.createRange();
    range.selectNodeContents(cell);
    const text = range.getBoundingClientRect(), page = document.documentElement.clientWidth;
    const isOut = cell.scrollWidth > cell.clientWidth + 1 || text.right > page && !cell.closest(".scroll");
    return isOut ? [cell.textContent] : [];
})"""


@pytest.mark.parametrize("width", [1400, 900, 400])
def test_no_text_of_the_tables_is_clipped(browser, tmp_path, width):
    """Long words, among them a formula, wrap."""
    why = "19.4 % slower, 2.71 ms more head, 814 µs more tail, and cil of " + "max(c,n)" * 20
    rows = [
        Row("serial", 0.0527, 0.0531, 0.0, "compute, then the library's all_reduce", spread_s=1e-4),
        Row("mc2 (min reading), library", 0.0427, 0.0431, 0.68, why, chosen=True, spread_s=1e-4),
        Row("uniform, ring", 0.0527, None, None, LONG),
    ]
    lost = tuple(Losses(label, 0.04, {"head": 1e-3, "cil": 2e-3}) for label in ("predicted", "measured"))
    summary = Summary(tuple(rows), lost, (why, LONG))
    program, timelines = pair()
    about = {"timelines": timelines, "program": program, "summary": summary}
    browser.page.set_viewport_size({"width": width, "height": 1000})
    try:
        browser.open(write_page(tmp_path / "page.html", title=LONG, **about))
        assert browser.run(CLIPPED) == []
        assert browser.run("document.documentElement.scrollWidth") <= width
        scrolled = "[...document.querySelectorAll('.scroll')].map(s => s.scrollWidth - s.clientWidth)"
        assert width < 900 or browser.run(scrolled) == [0, 0]  # nothing to scroll to
    finally:
        browser.page.set_viewport_size({"width": 1400, "height": 1000})
