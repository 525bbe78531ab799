"""bench/gpu where there is no device: PyTorch's way with NumPy in its place, and what is written of made-up results."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from needs import ROOT

from dovetail.ir import Kind
from dovetail.matmul import AllGatherMatmul, MatmulReduceScatter
from dovetail.run.engine import native_forms


@pytest.fixture(autouse=True)
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench" / "gpu"))


class Tensor:
    """What rivals.py asks of a tensor."""

    def __init__(self, array, where):
        self.array, self.where = array, where

    def to(self, dtype):
        return Tensor(self.array.astype(dtype), self.where)

    def pin_memory(self):
        return Tensor(self.array, "pinned")

    def copy_(self, other, non_blocking):
        assert non_blocking
        assert {self.where, other.where} == {"cuda", "pinned"}
        COUNTED.append(("to the " + self.where, other.array.nbytes))
        self.array[...] = other.array

    def chunk(self, parts):
        size = -(-len(self.array) // parts)
        return [Tensor(self.array[i : i + size], self.where) for i in range(0, len(self.array), size)]

    def __getitem__(self, span):
        return Tensor(self.array[span], self.where)

    def __setitem__(self, span, other):
        self.array[span] = other.array

    def __iadd__(self, other):
        self.array += other.array
        return self


COUNTED = []
CORRECT = (
    "refusals",
    "checks",
    "corpus",
    "full_size",
    "families",
    "products",
    "alone",
    "sanitized",
)  # sections that say right or wrong


def mm(a, b, out):
    assert {a.where, b.where, out.where} == {"cuda"}
    COUNTED.append(("flops", 2 * a.array.shape[0] * a.array.shape[1] * b.array.shape[1]))
    out.array[...] = a.array @ b.array


class Event:
    def __init__(self, enable_timing=False):
        self.recorded = False

    def record(self):
        self.recorded = True

    def elapsed_time(self, other):
        assert self.recorded
        assert other.recorded
        return 1.0


class Stream:
    def wait_stream(self, other):
        assert isinstance(other, Stream)

    def wait_event(self, event):
        assert event.recorded

    def __enter__(self):
        pass

    def __exit__(self, *fault):
        pass


def pretended_torch():
    cuda = SimpleNamespace(Event=Event, Stream=Stream, current_stream=Stream, stream=lambda stream: stream)
    cuda.is_available, cuda.synchronize = (lambda: True), (lambda: None)
    made = SimpleNamespace(cuda=cuda, mm=mm, float16=np.float16, float32=np.float32)
    made.randn = lambda *shape, device="host": Tensor(np.ones(shape, np.float32), device)
    made.empty = lambda *shape, dtype, device="host": Tensor(np.zeros(shape, dtype), device)
    return made


def asked_of(operator, ranks):
    """Flops and bytes to and from one rank, as the serial program of an operator has them."""
    serial = operator.serial(ranks)
    asked = operator.program(serial, ranks)
    forms = native_forms(asked, 0, operator.workload(asked, serial))[0]
    flops = sum(2 * m * k * n for _, m, k, n, _ in forms.tolist())
    assert (asked.columns["kind"] == Kind.collective).any()
    return flops


@pytest.mark.parametrize("chunks", [1, 2, 4, 8])
@pytest.mark.parametrize(
    "operator", [AllGatherMatmul(64, 32, 16, "float16"), MatmulReduceScatter(64, 32, 16, "float16")]
)
def test_pytorch_does_the_same_work(monkeypatch, operator, chunks):
    monkeypatch.setitem(sys.modules, "torch", pretended_torch())
    from rivals import two_streams

    COUNTED.clear()
    assert two_streams(operator, 4, chunks) == pytest.approx([1e-3] * 5)
    totals = {name: sum(size for other, size in COUNTED if other == name) for name, _ in COUNTED}
    runs, rows = 7, operator.m // 4
    sent = 2 * 3 * rows * (operator.k if isinstance(operator, AllGatherMatmul) else operator.n)
    assert totals == {"flops": runs * asked_of(operator, 4), "to the cuda": runs * sent, "to the pinned": runs * sent}


def test_without_pytorch_there_is_no_rival(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    from rivals import two_streams

    assert two_streams(AllGatherMatmul(64, 32, 64), 4, 1) is None


def test_tables_of_made_up_results(tmp_path, monkeypatch):
    import measure

    for row in ({"section": "a", "line": "one", "x": 1}, {"section": "a", "ended": "done", "took_s": 2.0}):
        measure.append(tmp_path, **row)
    measure.append(tmp_path, section="b", line="two", bad=True)
    pages = tmp_path / "pages"
    pages.mkdir()
    measure.write(tmp_path, pages)
    assert not (tmp_path / "pages.tar.gz").exists()
    (pages / "page.html").write_text("a page")
    document = measure.write(tmp_path, pages)
    assert document["sections"]["a"] == {"rows": [{"line": "one", "x": 1}], "ended": "done", "took_s": 2.0}
    assert (tmp_path / "table.txt").read_text() == "a (2.0 s)\n  one\n\nb (? s): cut short\n  two\n"
    assert (tmp_path / "pages.tar.gz").exists()
    monkeypatch.setattr(sys, "argv", ["measure.py", "--out", str(tmp_path), "--only", "nothing"])
    with pytest.raises(SystemExit, match="no section nothing: there are device, engines"):
        measure.main()


def summed(name, num_bytes, protocol, seconds):
    about = {"name": name, "num_bytes": num_bytes, "protocol": protocol, "seconds": seconds, "plain_sum_s": 1.0}
    return about | {"moved_per_s": 1 / seconds, "plain_per_s": 1.0}


def test_verdicts_of_made_up_results():
    """Each figure that is asked of a device, met or missed; what was not measured is said, too."""
    from verdicts import ASKED, SHARE, verdicts

    alone = {"title": "a", "ranks": 8, "ideal_gain": 0.9, "measured_s": 1.0, "serial_s": 1.5}
    alone |= {"compute_s": 1.0, "comm_s": 1.9}
    found = {
        "checks": [{"bad": False}, {"bad": True}],
        "calls": [{"graph": False, "seconds": 1.0}, {"graph": True, "seconds": 9e-6}],
        "planned_call": [{"title": "a", "over_s": 40e-6}, {"title": "no PyTorch"}],
        "interpreter": [
            summed("ring", 1 << 10, "LL", 1.0),
            summed("ring", 1 << 10, "Simple", 2.0),
            summed("ring", 1 << 26, "LL", 3.0),
            summed("ring", 1 << 26, "Simple", 1.1),
        ],
        "alone": [alone, {**alone, "title": "b", "ideal_gain": None, "measured_s": 1.6, "compute_s": 4.0}],
        "pytorch": [{"title": "a", "seconds": 1.2}, {"title": "a", "seconds": 0.9}, {"line": "no time was left"}],
        "schedules": [
            {"chooser": "measured", "regret": 0.01, "shapes": 16},
            {"chooser": "FiCCO, fitted", "regret": 0.5},
        ],
    }
    rows = list(verdicts(found))
    assert {row["what"]: (round(row["found"], 3), row["met"]) for row in rows if "found" in row} == {
        "checks: parts that are wrong or were not tried, of 2": (1, False),
        "µs of the calling thread for a graph's replay": (9.0, True),
        "µs of a planned call over streams by hand, a": (40.0, False),
        "share of a plain sum's bytes per second, ring of 64 MiB": (round(1 / 1.1, 3), True),
        "median share of the ideal gain, 2 shapes": (0.45, False),
        "longer over shorter of product and transfers, a": (1.9, True),
        "longer over shorter of product and transfers, b": (2.105, False),
        "tuned over serial, a, 8 ranks": (0.667, True),
        "tuned over serial, b, 8 ranks": (1.067, False),
        "tuned over PyTorch's best chunking, a": (1.111, False),
        "regret of measured, 16 shapes": (0.01, True),
    }
    assert [row["up_to"] for row in rows if "what" not in row] == [1 << 10, None]
    unsaid = [row["what"] for row in rows if row.get("met", 0) is None]
    never = [name for name in CORRECT if name != "checks"]
    assert unsaid == [*never, f"{SHARE}, all pairs", f"{SHARE}, sums", "regret of simulation"]
    assert [(row["what"], row["met"]) for row in verdicts({})] == [(what, None) for what in ASKED]


FINE = {
    "title": "a",
    "ranks": 8,
    "ideal_gain": 0.9,
    "measured_s": 1.0,
    "serial_s": 1.5,
    "compute_s": 1.0,
    "comm_s": 1.1,
}


@pytest.mark.parametrize(
    ("section", "good", "planted", "what"),
    [
        *((name, {"bad": False}, {"bad": True}, f"{name}: parts") for name in CORRECT),
        ("calls", {"graph": True, "seconds": 9.9e-6}, {"graph": True, "seconds": 10.1e-6}, "µs of the calling thread"),
        ("planned_call", {"title": "a", "over_s": 29e-6}, {"title": "a", "over_s": 31e-6}, "µs of a planned call"),
        ("interpreter", {"moved_per_s": 0.81}, {"moved_per_s": 0.79}, "share of a plain sum"),
        ("alone", {}, {"ideal_gain": 0.84}, "median share"),
        ("alone", {}, {"comm_s": 2.1}, "longer over shorter"),
        ("alone", {"measured_s": 1.52}, {"measured_s": 1.54}, "tuned over serial"),
        ("products", {"measured_s": 1.52}, {"measured_s": 1.54}, "tuned over serial"),
        ("pytorch", {"title": "a", "seconds": 1.01}, {"title": "a", "seconds": 0.99}, "tuned over PyTorch"),
        ("schedules", {"chooser": "measured", "regret": 0.019}, {"regret": 0.021}, "regret of measured"),
        ("schedules", {"chooser": "simulation", "regret": 0.019}, {"regret": 0.021}, "regret of simulation"),
    ],
)
def test_a_planted_miss_is_reported(section, good, planted, what):
    """One row of a section is wrong, or too slow: its verdict, and no other, says so."""
    from verdicts import verdicts

    rest = {"interpreter": summed("ring", 1 << 26, "Simple", 1.0), "alone": FINE, "products": FINE}
    row = {**rest.get(section, {"shapes": 1}), **good}
    others = {"alone": [FINE]} if section == "pytorch" else {}
    before, after = (list(verdicts(others | {section: [each]})) for each in (row, {**row, **planted}))
    assert not [each["line"] for each in before if each.get("met") is False]
    (missed,) = [each for each in after if each.get("met") is False]
    assert missed["what"].startswith(what)
    assert missed["line"].startswith("MISSED")


def test_choosers_are_judged_by_rounds_that_they_did_not_see():
    from shapes import Contest, regrets, scaled

    assert scaled(16384, 131072, 2048, 1 << 27, False)[2] == 2048
    rows, depth, _ = scaled(1607680, 8192, 7168, 1 << 30, True)
    assert (rows % 512, depth % 512) == (0, 0)
    assert 2 * (rows * depth + depth * 7168 + rows * 7168) <= 1 << 30
    families = ("serial", "uniform-fused-1D", "hetero-fused-1D", "hetero-unfused-1D")
    seconds = dict(zip(families, ((4.0,) * 4, (1.0, 1.0, 3.0, 3.0), (2.0,) * 4, (5.0,) * 4), strict=True))
    operator = AllGatherMatmul(64, 32, 64, "float16")
    held = Contest("made up", operator, seconds, "serial", (64, 32, 1e12, 989e12))
    assert held.measured == "uniform-fused-1D"
    found = {row["chooser"]: row["regret"] for row in regrets([held])}
    assert found["measured"] == pytest.approx(0.5)
    assert found["simulation"] == pytest.approx(1.0)
    assert found["FiCCO, fitted"] == pytest.approx(0.0)
