"""The bench of pipelines, small: every way of every grain is measured, and what is said of them follows."""

import json
import subprocess
import sys

import needs
import pytest

BENCH = needs.ROOT / "bench" / "loops"


@pytest.fixture
def pipelines(monkeypatch):
    monkeypatch.syspath_prepend(BENCH)
    import pipelines

    return pipelines


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("problem", "size", "ranks"),
    [("sync_p2p", "60x50", 2), pytest.param("triple_nest", "8x8x90", 4, marks=pytest.mark.thorough)],
)
def test_small(problem, size, ranks, pipelines, tmp_path):
    needs.need("mpich")
    out = tmp_path / "found.json"
    words = [problem, "--size", size, "--ranks", ranks, "--rounds", 2, "--grains", "1,8,32", "--out", out]
    command = [sys.executable, str(BENCH / "pipelines.py"), *map(str, words)]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    pipelines.keep(out, json.loads(out.read_text())["runs"][0])  # another takes the place of the first
    (run,) = json.loads(out.read_text())["runs"]
    assert [(row["way"], row["grain"]) for row in run["rows"][:-1]] == [
        (way, grain) for way in ("blocking", "synchronous", "non_blocking") for grain in (1, 8, 32)
    ]
    assert run["rows"][-1]["way"] == "dovetail"
    assert all(0 < row["least_s"] <= row["median_s"] <= row["most_s"] for row in run["rows"])
    assert all(row["predicted_blocking_s"] > 0 for row in run["rows"])
    assert f"positions in {-(-int(size.split('x')[-1]) // run['summary']['ours_grain'])} tiles" in run["explained"]


def row(way, grain, seconds, predicted):
    return {
        "way": way,
        "grain": grain,
        "median_s": seconds,
        "predicted_blocking_s": predicted,
        "predicted_overlapped_s": 9,
    }


def test_summary(pipelines):
    ladder = {1: (8.0, 7.0), 2: (5.05, 5.0), 4: (5.0, 6.0), 8: (9.0, 9.0)}
    rows = [row(way, grain, *each) for way in pipelines.WAYS for grain, each in ladder.items()]
    found = pipelines.summary([*rows, row("dovetail", 3, 4.0, 5.0)])
    assert found["speedup"] == 1.25
    assert found["predicted_grain"]["blocking"] == 2
    assert found["best_grain"]["blocking"] == 4
    assert found["steps_off"]["blocking"] == 0  # grain 2 is as good as the best
    assert found["prediction_error"] == 0.25
    two = [{"summary": found}, {"summary": found | {"speedup": 0.9, "prediction_error": 0.05}}]
    assert pipelines.over_all(two) == {
        "cases": 2,
        "within_5_percent": 1,
        "worst": 0.9,
        "median_error": pytest.approx(0.15),
        "within_a_step": 2,
    }
