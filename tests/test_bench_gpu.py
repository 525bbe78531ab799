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


def asked_of(wish, ranks):
    """Flops and bytes to and from one rank, as the serial program of a wish has them."""
    asked = wish.program(wish.serial(ranks), ranks)
    forms = native_forms(asked, 0, wish.workload(asked))[0]
    flops = sum(2 * m * k * n for _, m, k, n, _ in forms.tolist())
    assert (asked.columns["kind"] == Kind.collective).any()
    return flops


@pytest.mark.parametrize("chunks", [1, 2, 4, 8])
@pytest.mark.parametrize("wish", [AllGatherMatmul(64, 32, 16, "float16"), MatmulReduceScatter(64, 32, 16, "float16")])
def test_pytorch_does_the_same_work(monkeypatch, wish, chunks):
    monkeypatch.setitem(sys.modules, "torch", pretended_torch())
    from rivals import two_streams

    COUNTED.clear()
    assert two_streams(wish, 4, chunks) == pytest.approx(1e-3)
    totals = {name: sum(size for other, size in COUNTED if other == name) for name, _ in COUNTED}
    runs, rows = 7, wish.m // 4
    sent = 2 * 3 * rows * (wish.k if isinstance(wish, AllGatherMatmul) else wish.n)
    assert totals == {"flops": runs * asked_of(wish, 4), "to the cuda": runs * sent, "to the pinned": runs * sent}


def test_without_pytorch_there_is_no_rival(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    from rivals import two_streams

    assert two_streams(AllGatherMatmul(64, 32, 64), 4, 1) is None


def test_tables_of_made_up_results(tmp_path, monkeypatch):
    import measure

    for row in ({"section": "a", "line": "one", "x": 1}, {"section": "a", "ended": "done", "took_s": 2.0}):
        measure.append(tmp_path, **row)
    measure.append(tmp_path, section="b", line="two", bad=True)
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "page.html").write_text("a page")
    document = measure.write(tmp_path)
    assert document["sections"]["a"] == {"rows": [{"line": "one", "x": 1}], "ended": "done", "took_s": 2.0}
    assert (tmp_path / "table.txt").read_text() == "a (2.0 s)\n  one\n\nb (? s): cut short\n  two\n"
    assert (tmp_path / "pages.tar.gz").exists()
    monkeypatch.setattr(sys, "argv", ["measure.py", "--out", str(tmp_path), "--only", "nothing"])
    with pytest.raises(SystemExit, match="no section nothing: there are device, engines"):
        measure.main()
