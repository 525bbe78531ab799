"""Tuning and timing collectives: in simulation, by the command, and on real ranks."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace

import needs
import pytest
from collective_machine import star, with_library
from sim_executor import SimExecutor

from dovetail.cli import main
from dovetail.collective.operators import AllGather, AllReduce
from dovetail.core import DovetailError, OperatorError
from dovetail.cost import Curve, Segment
from dovetail.machine import Machine, load
from dovetail.planner import Plan
from dovetail.store.selection import Choice, Selection, recall_selection
from dovetail.tuner import tune
from dovetail.tuner.collectives import entries_of, tune_collective
from dovetail.tuner.timing import bus_factor, time_collective

CALM = needs.SUPPORT / "calm.py"
POINTS = AllReduce.points(min="1K", max="1M", factor=32)


@pytest.fixture(autouse=True)
def cache(own_cache, monkeypatch):
    monkeypatch.delenv("DOVETAIL_SELECTION", raising=False)


# In simulation


@pytest.mark.parametrize(("latency_s", "bytes_per_s"), [(1e-3, 1e7), (1e-7, 1e12)], ids=["slow", "fast"])
def test_the_faster_of_both_is_taken_and_saved_for_later_runs(tmp_path, latency_s, bytes_per_s):
    machine = with_library(star(4), "all_reduce", latency_s, bytes_per_s)
    found = tune_collective(
        POINTS, 4, out=tmp_path, executor=SimExecutor(machine, noise=0.01, ahead=True), machine=machine
    )
    names = [each.schedule.family for each in found.contest.judged]
    ours = latency_s > 1e-5
    assert len(names) == 3
    assert all((name != "serial") is ours for name in names)
    kept = recall_selection("none", [f"host{rank}" for rank in range(4)]).value
    assert kept == Selection.load(tmp_path / "selection.json") == found.selection
    assert (kept.lookup("all_reduce", 4, 32 << 10).algorithm != "library") is ours
    assert {row.dtype for row in kept.rows} == {"float32"}  # times of reducing collectives depend on it
    document = found.to_json()
    assert [row["num_bytes"] for row in document["rows"]] == [1 << 10, 32 << 10, 1 << 20]
    assert (document["collective"], document["nodes"], document["dtype"]) == ("all_reduce", 4, "float32")
    assert all(row["measured_s"] <= row["library_s"] for row in document["rows"])
    timed = time_collective(POINTS, 4, executor=SimExecutor(machine, ahead=True))
    assert [each.choice.algorithm for each in timed] == [row["algorithm"] for row in document["rows"]]


def test_one_size_is_tuned_like_any_other_operator(tmp_path):
    machine = with_library(star(4), "all_reduce", 1e-3, 1e7)
    found = tune(AllReduce(1 << 20), 4, out=tmp_path, executor=SimExecutor(machine, ahead=True), machine=machine)
    assert found.plan.family == found.judged.schedule.family != "serial"
    assert found.speedup > 1.5
    assert (found.compute_s, found.losses) == (0.0, {})
    assert json.loads((tmp_path / "tune.json").read_text())["measured_s"] == found.planned.median_s
    assert Plan.from_json(json.loads((tmp_path / "plan.json").read_text())).schedule == found.plan.schedule


def test_timings_are_in_the_terms_of_nccl_tests():
    machine = with_library(star(4), "all_reduce", 1e-3, 1e9)
    (timed,) = time_collective([AllReduce(4_000_000)], 4, "library", executor=SimExecutor(machine))
    assert timed.choice == Choice()
    assert timed.seconds == pytest.approx(5e-3)
    assert timed.bandwidths == pytest.approx((0.8, 1.2))
    assert timed.to_json()["count"] == 1_000_000
    ring = Choice(channels=2, slice_bytes=65536)
    (timed,) = time_collective([AllGather(4096)], 4, "ring_all_gather", parameters=ring, executor=SimExecutor(machine))
    assert timed.choice == ring._replace(algorithm="ring_all_gather")


def test_a_collective_that_was_not_tuned_cannot_be_timed_as_tuned():
    machine = with_library(star(4), "all_reduce", 1e-3, 1e9)
    with pytest.raises(DovetailError, match="all_reduce on 4 ranks has not been tuned here"):
        time_collective(POINTS, 4, executor=SimExecutor(machine))


def test_no_sizes_raise(tmp_path):
    with pytest.raises(OperatorError, match="no sizes"):
        tune_collective([], 4, out=tmp_path, executor=SimExecutor(star(4)), machine=star(4))


def test_bandwidths_are_those_of_nccl_tests():
    assert [bus_factor(name, 8) for name in ("all_reduce", "reduce_scatter", "all_to_all")] == [1.75, 0.875, 0.875]
    assert bus_factor("broadcast", 8) == bus_factor("all_to_next", 8) == 1.0


# The command


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tune", "all_reduce", "--ranks", "2", "--m", "64"], "--m"),
        (["tune", "all_reduce", "--ranks", "2", "--schedule", "mc2"], "--schedule"),
        (["tune", "all_reduce", "--ranks", "2", "--min", "64K", "--max", "1K"], "--min"),
        (["tune", "all_reduce", "--ranks", "2", "--trace", "out"], "--trace"),
        (["tune", "all_reduce", "--ranks", "1"], "ranks"),
        (["tune", "all_reduce", "--ranks", "3", "--nodes", "2"], "nodes"),
        (["tune", "all_reduces", "--ranks", "2"], "all_reduce"),
        (["tune", "matmul_all_reduce", "--ranks", "2", "--m", "64"], "--k and --n"),
        (["tune", "matmul_all_reduce", "--ranks", "2", "--m", "4", "--k", "4", "--n", "4", "--min", "1K"], "--min"),
        (["bench", "all_gater", "--ranks", "2"], "all_gather"),
        (["bench", "all_gather", "--ranks", "2", "--algorithm", "ring_all_gater"], "ring_all_gather"),
    ],
)
def test_misuse_is_reported_before_anything_runs(words, said, capsys, monkeypatch):
    monkeypatch.setattr("dovetail.run.mpi.executor.MpiExecutor.execute", lambda *_: pytest.fail("ranks were started"))
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err


# On real ranks


def dovetail(mpi: needs.Mpi, *words: object) -> subprocess.CompletedProcess[str]:
    command = [str(mpi.python), CALM, *map(str, words)]
    return subprocess.run(command, env=mpi.env, text=True, capture_output=True, timeout=280, check=False)


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("collective", "ranks"), [("all_reduce", 2), pytest.param("all_gather", 3, marks=pytest.mark.thorough)]
)
def test_tune_then_bench(mpi, collective, ranks, tmp_path):
    machine = replace(load("shared-memory-2"), ranks=ranks, nodes=(0,) * ranks)
    (tmp_path / "machine.json").write_text(json.dumps(machine.to_json()))
    span = ["--min", "64", "--max", "4K", "--factor", "64", "--ranks", ranks]
    limits = ["--rounds", 3, "--budget", 1, "--machine", tmp_path / "machine.json", "--out", tmp_path / "o"]
    done = dovetail(mpi, "tune", collective, *span, *limits, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["rows"]
    assert all(row["measured_s"] <= row["library_s"] for row in document["rows"])
    assert all(not row["wrong"] for row in document["rows"])
    beside = [row["beside"] for row in document["rows"] if row["beside"]]
    assert beside
    assert all(each["best_knobs_s"] <= each["installed_s"] and each["ours_s"] > 0 for each in beside)
    assert document["rows"][0]["at_multiple"]["num_bytes"] == document["rows"][0]["num_bytes"]
    assert all(row["max_rel_error"] is not None for row in document["rows"])
    found = Selection.load(tmp_path / "o" / "selection.json")
    assert {row.level for row in found.rows} == {"serialized", "multiple"}
    assert found.lookup(collective, ranks, 64) is not None
    assert (tmp_path / "o" / "nccl_tuner.conf").read_text().startswith("# collective_type")
    timed = dovetail(mpi, "bench", collective, *span, "--rounds", 2, "--json")
    assert timed.returncode == 0, timed.stderr
    rows = json.loads(timed.stdout)["rows"]
    assert [row["num_wrong"] for row in rows] == [0] * len(rows)
    chosen = [row["algorithm"] for row in document["rows"]]
    assert [row["algorithm"] for row in rows][: len(chosen)] == chosen


def line(seconds, slope):
    return Curve("bytes", (Segment(0.0, seconds, slope),), label="prior").to_json()


def test_an_algorithm_through_memory_is_predicted_by_its_own_costs():
    keys = "p2p:shm", "exchange:shm", "reduce", "copy"
    costs = {"all_reduce:2": line(1e-5, 1e-9), **dict.fromkeys(keys, line(1e-6, 1e-10))}
    costs |= {f"shared:{key}": line(1e-8, 1e-11) for key in keys}
    (entry,), _ = entries_of([AllReduce(1 << 20)], Machine("one", 2, (0, 0), costs=costs), 2, shared=True)
    ways = {(Choice.of(each).algorithm, Choice.of(each).transport): s for each, s in entry.predicted.items()}
    both = [
        (ways[name, "mpi"], ways[name, "shared"]) for name, way in ways if way == "mpi" and (name, "shared") in ways
    ]
    assert both
    assert all(by_memory < by_mpi / 5 for by_mpi, by_memory in both)
    assert list(entry.predicted.values()) == sorted(entry.predicted.values())  # a short heat measures the first alone
