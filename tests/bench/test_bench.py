"""Benches say what was not measured, and what they wanted. (Their timings are no tests.)"""

import doctest
import importlib
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import needs
import numpy as np
import pytest

from dovetail.core import RunError
from dovetail.machine import Link, Machine, load
from dovetail.planner import operator_class
from dovetail.planner.costs import Costs


@pytest.fixture
def collectives(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return bench("collectives", monkeypatch)


def bench(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    folder = needs.ROOT / "bench"
    (script,) = (*folder.glob(f"{name}.py"), *folder.glob(f"*/{name}.py"))
    for place in (folder, script.parent):
        monkeypatch.syspath_prepend(place)
    return importlib.import_module(name)


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
    eager, made = bench("eager", monkeypatch), 0

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
    tuned = SimpleNamespace(contest=SimpleNamespace(judged=()), notes=(), at_multiple=None, compared={})
    monkeypatch.setattr("dovetail.tuner.collectives.tune_collective", lambda *_, **__: tuned)
    monkeypatch.setattr(collectives, "compared", lambda *_: ([], {}))
    assert collectives.worker(args)["asked"] == 2


@pytest.mark.slow
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


@pytest.mark.parametrize("name", ["tuned", "overlap", "guard"])
def test_examples_in_benches_hold(name, monkeypatch):
    assert doctest.testmod(bench(name, monkeypatch)).failed == 0


SHAPE = (64, 32, 16, "float32")


def figures(ratio: float = 0.5, **more: object) -> dict[str, object]:
    """A row as `tuned` makes it, as far as benches read it."""
    times = {"serial_s": 1.0, "measured_s": ratio, "ratio": ratio, "speedup": 1 / ratio, "prediction_error": 0.1}
    kept = {"choices": {"parameters": {"by": "ring"}}, "schedule": "uniform", "right": True, "cpu": "c", "mpi": "m"}
    return times | kept | more


class TestResults:
    @pytest.fixture
    def tuned(self, monkeypatch) -> ModuleType:
        module = bench("tuned", monkeypatch)
        self.asked = list[str]()

        def tune(operator: object, budget_s: float) -> dict[str, object]:
            self.asked.append(operator.title)
            if operator.m == 13:
                raise RunError("rank 1 died")
            return figures()

        monkeypatch.setattr(module, "tuned", tune)
        return module

    def test_what_the_file_holds_is_not_measured_again(self, tuned, tmp_path):
        for again in (False, False, True):
            found = tuned.Results(tmp_path / "a.json", {"bench": "x", "rate": "none"}, again=again)
            found.measure("all_gather_matmul", SHAPE, 1.0, ["size", "ratio"])
        assert len(self.asked) == 2
        (row,) = json.loads((tmp_path / "a.json").read_text())["rows"]
        assert (row["operator"], row["shape"], row["ratio"]) == ("all_gather_matmul", list(SHAPE), 0.5)
        assert row["commit"]

    def test_what_others_disturbed_is_measured_again_and_the_calmer_row_kept(self, tuned, tmp_path, monkeypatch):
        loads = iter((0.4, 0.5, 0.05, 0.0))
        monkeypatch.setattr(tuned, "tuned", lambda *_: figures(foreign_load=next(loads), steal=None))
        kept = []
        for _ in range(4):
            found = tuned.Results(tmp_path / "a.json", {"bench": "x"})
            found.measure("all_gather_matmul", SHAPE, 1.0, ["ratio"])
            kept += [row["foreign_load"] for row in found.rows]
        assert kept == [0.4, 0.4, 0.05, 0.05]

    def test_every_row_is_on_disk_before_the_next_is_begun(self, tuned, tmp_path, capsys):
        found = tuned.Results(tmp_path / "a.json", {"bench": "x"})
        for m in (8, 13, 16):
            found.measure("matmul_all_reduce", (m, 8, 8, "float32"), 1.0, ["size", "ratio"])
            held = json.loads((tmp_path / "a.json").read_text())
            assert len(held["rows"]) == {8: 1, 13: 1, 16: 2}[m]
        assert held["failed"] == found.failed
        assert "rank 1 died" in held["failed"][0]
        assert "size 16 x 8 x 8  ratio 0.500" in capsys.readouterr().out

    def test_a_file_of_another_link_is_begun_anew(self, tuned, tmp_path):
        for rate in ("1gbit", "100mbit"):
            tuned.Results(tmp_path / "a.json", {"rate": rate}).measure("matmul_all_reduce", SHAPE, 1.0, ["ratio"])
        assert len(self.asked) == 2
        assert len(json.loads((tmp_path / "a.json").read_text())["rows"]) == 1


def test_the_guard_bench_fails_above_its_limit(monkeypatch, tmp_path, capsys):
    guard, tuned = bench("guard", monkeypatch), bench("tuned", monkeypatch)
    monkeypatch.setattr(tuned.signal, "signal", lambda *_: None)
    for ratio, code in ((1.0, 0), (1.031, 1)):
        monkeypatch.setattr(
            tuned,
            "tuned",
            lambda *_, ratio=ratio: figures(ratio, measured_spread=0.0, rounds=9, disturbed=0, foreign_load=0.0),
        )
        words = ["--operators", "matmul_all_to_all", "--shapes", ":2", "--again", "--out", f"{tmp_path}/guard.json"]
        monkeypatch.setattr("sys.argv", ["guard.py", *words])
        monkeypatch.setattr(tuned, "ENVIRONMENTS", {"mpich": Path(sys.prefix)})
        with pytest.raises(SystemExit) as ended:
            guard.main()
        assert ended.value.code == code
    assert "1.031" in capsys.readouterr().out


class TestFourHosts:
    @pytest.fixture
    def four(self, monkeypatch) -> ModuleType:
        return bench("four_hosts", monkeypatch)

    def machine(self, topology: str, flop_per_s: float) -> Machine:
        """Four hosts with the preset's links, and products of that speed."""
        preset = load("two-hosts-100mbit")
        curve = {"schema": "dovetail.curve/1", "x_unit": "flop", "segments": [[0.0, 1e-4, 1 / flop_per_s, 0.0]]}
        pairs = [(a, b) for a in range(4) for b in range(4) if a != b]
        if topology == "star":
            pairs = [way for a in range(4) for way in ((a, -1), (-1, a))]
        links = tuple(Link(a, b, "tcp") for a, b in pairs)
        costs = {key: preset.costs[key] for key in ("p2p:tcp", "exchange:tcp") if key in preset.costs}
        return Machine(topology, 4, (0, 1, 2, 3), links, costs | {"flops:matmul:float32": curve})

    def predicted(self, four: ModuleType, topology: str) -> dict[str, float]:
        operator = operator_class("all_gather_matmul")(*four.SIZE)
        speed = four.flop_per_s(operator, topology, "100mbit", 0.7)
        costs, _ = Costs.of(operator, self.machine(topology, speed), 4, extrapolate=True)
        return {name: seconds for name, (_, seconds) in four.of_families(costs).items()}

    def test_on_a_mesh_the_ring_is_predicted_to_lose_and_straight_messages_to_win(self, four):
        found = self.predicted(four, "mesh")
        serial = found["serial, messages"]
        assert found["shard-ring, ring"] > serial > min(s for name, s in found.items() if four.is_straight(name))

    def test_on_a_star_the_ring_is_predicted_to_win_against_serial(self, four):
        found = self.predicted(four, "star")
        assert found["shard-ring, ring"] < found["serial, messages"]

    def test_a_rank_multiplies_for_as_long_as_its_links_need_over_the_ratio(self, four):
        operator, block_bytes = operator_class("all_gather_matmul")(2048, 1024, 1024), 512 * 1024 * 4
        for topology, links in (("mesh", 3), ("star", 1)):
            compute_s = operator.flops / 4 / four.flop_per_s(operator, topology, "100mbit", 0.7)
            assert compute_s * 0.7 == pytest.approx(3 * block_bytes * 8 / 100e6 / links)

    @pytest.mark.parametrize(
        ("topology", "ring_s", "straight_s", "as_told"),
        [("mesh", 1.2, 0.7, True), ("mesh", 0.9, 0.7, False), ("mesh", 1.2, 1.1, False), ("star", 0.5, 0.7, False)],
    )
    def test_a_verdict_holds_prediction_and_paper_against_what_was_measured(
        self, four, topology, ring_s, straight_s, as_told
    ):
        measured = {
            "serial, messages": (1.0, 1.0),
            "shard-ring, ring": (1.2, ring_s),
            "uniform, messages": (0.7, straight_s),
        }
        rows = [{"schedule": n, "predicted_s": p, "measured_s": m} for n, (p, m) in measured.items()]
        row = {"topology": topology, "operator": "x", "schedules": four.with_speedups(rows)}
        assert four.verdict(row)["as_told"] is as_told

    def test_an_emulated_product_sleeps_as_long_as_asked(self, monkeypatch):
        emulated, slept = bench("emulated", monkeypatch), list[float]()
        monkeypatch.setattr(emulated.time, "sleep", slept.append)
        kernel = pickle.loads(pickle.dumps(emulated.form(0.5, 48.0)))
        c = np.full((2, 4), 7.0)
        kernel.call([np.ones((2, 3)), np.ones((3, 4))], [c])
        assert slept == [0.5 + 1.0]
        assert (c == 7.0).all()


@pytest.mark.mpi
def test_products_by_hand_are_those_of_a_call(tmp_path):
    """The worker refuses a loop by hand whose results differ."""
    out, words = tmp_path / "eager.json", ["--mpi", "mpich", "--sizes", "9", "--rounds", "3", "--batch", "1e-4"]
    path = needs.ROOT / "bench" / "calls" / "eager_products.py"
    done = subprocess.run([sys.executable, path, *words, "--out", out], capture_output=True, text=True, timeout=240)
    assert done.returncode in (0, 1), done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert [row["operator"] for row in rows] == ["all_gather_matmul", "matmul_reduce_scatter"]
    assert all(row["ops"] > row["lanes"] == 3 for row in rows)
