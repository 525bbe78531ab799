"""Benches of collectives say what was not measured. (Their timings are no tests.)"""

import importlib
import os
import sys
from types import ModuleType, SimpleNamespace

import needs
import pytest


@pytest.fixture
def collectives(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(needs.ROOT / "bench")
    return importlib.import_module("collectives")


def row(num_bytes: int, library_s: float, tuned_s: float) -> dict[str, object]:
    times = {"library_s": library_s, "tuned_s": tuned_s, "ratio": library_s / tuned_s}
    return {"num_bytes": num_bytes, **times, "num_wrong": 0, "named_s": {}}


class TestAbout:
    def test_the_fastest_library_is_held_against_the_fastest_choice(self, collectives):
        one = {"asked": 2, "rows": [row(8, 2.0, 1.0), row(64, 1.0, 1.0)]}
        other = {"asked": 2, "rows": [row(8, 1.5, 1.5), row(64, 0.5, 0.5)]}
        found = collectives.about({"a": one, "b": other}, ["a", "b"])
        assert (found["worst"], found["best"], found["a"]["best"]) == (1.0, 1.5, 2.0)
        assert found["holds"]
        assert found["missing"] == []

    @pytest.mark.parametrize(
        "other",
        [{"asked": 2, "rows": [row(8, 2.0, 1.0)]}, {"asked": 2, "rows": []}, {"failed": "why"}, None],
        ids=["a size lacks", "all sizes lack", "failed", "not begun"],
    )
    def test_nothing_holds_where_a_size_is_missing(self, collectives, other):
        whole = {"asked": 2, "rows": [row(8, 2.0, 1.0), row(64, 2.0, 1.0)]}
        found = collectives.about({"a": whole} | ({"b": other} if other else {}), ["a", "b"])
        assert found["missing"] == ["b"]
        assert not found["holds"]

    def test_wrong_elements_are_never_good(self, collectives):
        rows = [row(8, 2.0, 1.0) | {"num_wrong": 1}]
        assert not collectives.about({"a": {"asked": 1, "rows": rows}}, ["a"])["holds"]


def test_calls_are_counted_once_they_are_warm(monkeypatch):
    """The first calls make engines and connections, and take a thousand times as long."""
    monkeypatch.syspath_prepend(needs.ROOT / "bench")
    eager, made = importlib.import_module("eager"), 0

    def batch(comm: object, call: object, count: int) -> float:
        nonlocal made
        cold = min(max(6 - made, 0), count)
        made += count
        return (cold * 1e-3 + (count - cold) * 1e-6) / count

    monkeypatch.setattr(eager, "batch", batch)
    assert 4000 < eager.calls_in(None, print, 5e-3) < 6000


def test_what_a_worker_says_names_how_many_sizes_were_asked_for(collectives, monkeypatch):
    """The name that `about` reads is the one that workers write."""
    monkeypatch.setattr("sys.argv", ["collectives.py", "--hosts", "0", "--ranks", "2", "--min", "1K", "--max", "4K"])
    args = collectives.arguments()
    args.worker = "all_gather"
    tuned = SimpleNamespace(contest=SimpleNamespace(judged=()), notes=())
    monkeypatch.setattr("dovetail.tune.collectives.tune_collective", lambda *_, **__: tuned)
    monkeypatch.setattr(collectives, "compared", lambda *_: ([], {}))
    assert collectives.worker(args)["asked"] == 2


def test_a_worker_that_takes_too_long_may_end_its_ranks(collectives, tmp_path):
    word = "import sys, time\ntry: open(sys.argv[1] + 'begun', 'w').close(); time.sleep(600)\n"
    word += "finally: open(sys.argv[1] + 'ended', 'w').close()"
    limit_s = 1.0
    while not (tmp_path / "begun").exists():  # on a slow machine it may be over before it has begun
        found = collectives.ended([sys.executable, "-c", word, f"{tmp_path}/"], dict(os.environ), limit_s)
        assert found == (None, "", "")
        limit_s *= 2
    assert (tmp_path / "ended").exists()
    assert collectives.ended([sys.executable, "-c", "print(8)"], dict(os.environ), 240.0) == (0, "8\n", "")


def test_results_of_another_operator_have_their_own_files(monkeypatch):
    monkeypatch.syspath_prepend(needs.ROOT / "bench")
    overlap = importlib.import_module("overlap")
    assert (overlap.named("guard", "matmul_all_reduce"), overlap.of("matmul_all_reduce")) == ("guard", {})
    assert overlap.named("guard", "other") == "guard-other"
    assert overlap.of("other") == {"operator": "other"}
