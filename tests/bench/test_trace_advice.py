"""The bench of advice, small: programs and twins are run and traced; kept runs are advised again, not run again."""

import importlib
import json
import subprocess
import sys

import needs
import pytest

BENCH = needs.ROOT / "bench" / "traces"


@pytest.mark.mpi
@pytest.mark.thorough
def test_a_replay_by_the_trace_and_by_a_machine(tmp_path):
    needs.need("mpich")
    words = ["--rounds", "1", "--only", "overlap", "--machine", "two-hosts-1gbit", "--out", tmp_path / "found.json"]
    command = [sys.executable, str(BENCH / "trace_replay.py"), *map(str, words)]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert [row["program"] for row in rows] == ["overlap 0", "overlap 1"]
    assert all(abs(row["by_trace"]) < 0.25 for row in rows)
    assert all(row["least"] <= row["by_machine"] <= row["most"] for row in rows)
    assert all(row["by_machine"] != row["by_trace"] for row in rows), "a network is not shared memory"


@pytest.mark.mpi
def test_programs_of_others_are_replayed_where_they_are_there(tmp_path):
    mpi, out, asked = needs.mpi("mpich"), tmp_path / "found.json", tmp_path / "programs.json"
    source, program = needs.ROOT / "tests" / "ranks" / "trace_polls.c", tmp_path / "polls"
    subprocess.run([mpi.mpicc, source, "-o", program], check=True)
    command = [*mpi.mpiexec(1), str(program)]
    there = {"polls": {"command": command, "about": "one rank"}, "gone": {"command": [*command[:-1], "/no/program"]}}
    asked.write_text(json.dumps(there))
    words = ["--rounds", "1", "--programs", asked, "--machine", "shared-memory-2", "--out", out]
    done = subprocess.run(
        [sys.executable, str(BENCH / "trace_replay.py"), *map(str, words)], text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "gone: left out: there is no /no/program" in done.stdout
    (row,) = json.loads(out.read_text())["rows"]
    assert (row["program"], row["about"], row["ranks"]) == ("polls", "one rank", 1)
    assert row["by_trace"] == pytest.approx(row["by_trace_s"] / row["traced_s"] - 1)
    assert row["by_machine"] == pytest.approx(row["by_machine_s"] / row["traced_s"] - 1)


@pytest.mark.mpi
@pytest.mark.thorough
def test_two_programs(tmp_path):
    needs.need("mpich")
    out = tmp_path / "found.json"
    words = ["--rounds", "1", "--only", "overlap,stencil", "--runs", tmp_path / "runs", "--out", out]
    command = [sys.executable, str(BENCH / "trace_advice.py"), *map(str, words)]
    reported = []
    for _ in range(2):
        done = subprocess.run(command, text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        reported.append(json.loads(out.read_text())["rows"])
    assert "fault_plain" in (tmp_path / "runs" / "overlap" / "times.json").read_text()
    assert reported[0] == reported[1]
    assert [row["fault"] for row in reported[0]] == ["overlap", "stencil"]


def test_a_run_that_was_cut_goes_on_where_it_ended(tmp_path, monkeypatch):
    """Its second round ends half way; what that left is not taken for a part of the next."""
    monkeypatch.syspath_prepend(str(BENCH))
    bench, ran = importlib.import_module("trace_advice"), []

    def run(program, wrapped, name, folder):
        assert not folder.exists()
        folder.mkdir(parents=True)
        ran.append(folder.name)
        if len(ran) == 2:
            raise KeyboardInterrupt
        return {"fault_plain": float(len(ran))}

    monkeypatch.setattr(bench, "run", run)
    monkeypatch.setattr(bench, "compiled", lambda folder: ("program", "wrapped"))
    with pytest.raises(KeyboardInterrupt):
        bench.run_rounds("merge", 3, tmp_path, lambda: False)
    assert bench.run_rounds("merge", 3, tmp_path, lambda: True) == 1
    assert bench.run_rounds("merge", 3, tmp_path, lambda: False) == 3
    assert ran == ["0", "1", "1", "2"]
    assert json.loads((tmp_path / "merge" / "times.json").read_text()) == {"fault_plain": [1.0, 3.0, 4.0]}
