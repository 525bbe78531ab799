"""`dovetail run` of a program's file, and the same from Python: prove, run on ranks, check, time."""

import json
import subprocess
from dataclasses import replace

import mscclpp_plans
import numpy as np
import pytest
from ir_programs import rebuilt, specs_of
from run_programs import library_call

from dovetail.collective import build, msccl
from dovetail.core import OperatorError, save_json, save_text
from dovetail.ir import Builder, Kind, Region, to_text
from dovetail.run.job import JobResult, Outcome
from dovetail.run.mpi.executor import MpiExecutor
from dovetail.run.timing import even_slots, held_bytes, measuring_job


def written(place, form):
    """Write a ring on two ranks to a file."""
    ring = build("ring_all_reduce", 2)
    if form == "xml":
        return save_text(place / "ring.xml", msccl.write(ring, "msccl"))
    if form == "json":
        return save_json(place / "ring.json", ring.to_json())
    return save_text(place / "ring.txt", to_text(ring))


def unlooked(program, num_wrong):
    """A result as an executor returns it."""
    timed = Outcome("timed", (1e-3, 2e-3, 3e-3), (), 0.5, 1e-6, num_wrong)
    return JobResult((timed, replace(timed, name="traced")), 3, 0, {"mpi": "none"})


@pytest.mark.mpi
@pytest.mark.needs("mpich")
@pytest.mark.parametrize("form", ["txt", "json", "xml"])
def test_a_file_runs(call, tmp_path, form):
    words = "run", written(tmp_path, form), "--size", "64K", "--rounds", "2"
    code, out, err = call(*words, "--json", "--out", tmp_path / "out")
    assert code == 0, err
    found = json.loads(out)
    assert found["schema"] == "dovetail.program_run/1"
    assert (found["collective"], found["ranks"], found["num_bytes"]) == ("all_reduce", 2, 65536)
    assert found["num_wrong"] == 0
    assert found["max_rel_error"] <= found["tolerance"]
    assert found["algbw_gb_per_s"] == pytest.approx(65536 / found["measured_s"] / 1e9)
    assert found["busbw_gb_per_s"] == pytest.approx(found["algbw_gb_per_s"])  # twice a half
    assert call("show", found["timeline"])[0] == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["measured.json"]


@pytest.mark.mpi
@pytest.mark.needs("mpich")
@pytest.mark.parametrize("plan", [mscclpp_plans.all_reduce, mscclpp_plans.all_gather])
def test_a_plan_of_puts_and_gets_runs(call, tmp_path, plan):
    """Ranks of an MSCCL++ plan access one another's memory; here, puts and gets become messages."""
    code, out, err = call("run", save_json(tmp_path / "plan.json", plan()), "--rounds", "1", "--json")
    assert code == 0, err
    assert json.loads(out)["num_wrong"] == 0


@pytest.mark.mpi
def test_from_python_under_each_mpi(mpi, tmp_path):
    """One function measures an uneven library collective; it needs only the Program."""
    save_json(tmp_path / "p.json", library_call("all_to_all", [[1, 3], [0, 2]]).to_json())
    text = f"""
from dovetail.core import load_json
from dovetail.ir import Program
from dovetail.run import measure

if __name__ == "__main__":
    result = measure(Program.from_json(load_json({str(tmp_path / "p.json")!r})), 4096, "int32", rounds=2)
    timed, traced = result["timed"], result["traced"]
    print(timed.num_wrong, timed.median_s > 0, traced.timelines[0].num_spans, traced.timelines[0].label)
"""
    (tmp_path / "measure.py").write_text(text)
    command = [str(mpi.python), str(tmp_path / "measure.py")]
    done = subprocess.run(command, env=mpi.env, text=True, capture_output=True, timeout=120, check=False)
    assert done.stdout.split() == ["0", "True", "2", "measured"], done.stderr[-2000:]


def test_a_wrong_result_is_reported(call, tmp_path, monkeypatch):
    ring = written(tmp_path, "txt")
    for wrong, code in ((0, 0), (3, 1)):
        monkeypatch.setattr(MpiExecutor, "execute", lambda self, job, n=wrong: unlooked(job, n))
        found, out, _ = call("run", ring, "--size", "1M")
        assert found == code
        assert ("3 elements are WRONG" in out) == bool(wrong)
        assert "all_reduce on 2 ranks" in out
        assert "busbw" in out
        assert json.loads(call("run", ring, "--json")[1])["num_wrong"] == wrong


def test_a_program_that_is_no_collective_has_no_bandwidth(call, tmp_path, monkeypatch):
    b = Builder("lone", 2)
    b.buffer("x", "input", 1), b.buffer("t", "scratch", 1)
    net = b.lane("net", "net")
    b.add(Kind.send, 0, net, reads=[Region("x", 0, 1)], chan_out=b.channel(0, 1))
    b.add(Kind.recv, 1, net, writes=[Region("t", 0, 1)], chan_in=b.channel(0, 1))
    monkeypatch.setattr(MpiExecutor, "execute", lambda self, job: unlooked(job, None))
    _, out, _ = call("run", save_text(tmp_path / "lone.txt", to_text(b.build())))
    assert "no standard collective" in out
    assert "busbw" not in out
    assert "Nothing was checked" in out


def test_another_size_than_asked_is_said(call, tmp_path, monkeypatch):
    monkeypatch.setattr(MpiExecutor, "execute", lambda self, job: unlooked(job, 0))
    ring = written(tmp_path, "txt")
    assert "4088 bytes are run, not 4095: each slot has equally many" in call("run", ring, "--size", "4095")[2]
    assert call("run", ring, "--size", "4K")[2] == ""


class TestRefusals:
    def test_an_invalid_program(self, call, tmp_path):
        ops = specs_of(build("ring_all_reduce", 2))
        bad = rebuilt(build("ring_all_reduce", 2), [replace(op, after=[]) for op in ops][:-1])
        code, _, err = call("run", save_text(tmp_path / "bad.txt", to_text(bad)), "--launch", "false")
        assert code == 1
        assert "ProgramError" in err

    def test_kernels(self, call, tmp_path):
        b = Builder("kernels", 1)
        b.buffer("x", "input", 1), b.buffer("y", "output", 1)
        regions = {"reads": [Region("x", 0, 1)], "writes": [Region("y", 0, 1)]}
        b.add(Kind.compute, 0, b.lane("c", "compute"), **regions, call=b.kernel("matmul", ("each",)))
        code, _, err = call("run", save_text(tmp_path / "k.txt", to_text(b.build())))
        assert code == 2
        assert "does not contain the sizes of its kernels" in err
        assert "kernels matmul" in err

    def test_invalid_options(self, call, tmp_path):
        ring = written(tmp_path, "txt")
        assert "did you mean 'float32'" in call("run", ring, "--dtype", "floot32")[2]
        assert call("run", ring, "--size", "lots")[0] == 2
        assert "at least 1 byte" in call("run", ring, "--size", "0")[2]
        assert call("run", tmp_path / "none.txt")[0] != 0


class TestSizes:
    @pytest.mark.parametrize(("num_bytes", "held"), [(1 << 20, 1 << 20), (1004, 1000), (1, 8)])
    def test_the_size_is_of_the_larger_buffer(self, num_bytes, held):
        ring = build("ring_all_gather", 2)
        assert held_bytes(ring, even_slots(ring, num_bytes, "float32")) == held

    def test_each_timing_covers_several_runs(self):
        ring = build("ring_all_reduce", 2)
        slots = (even_slots(ring, n, "int8") for n in (8, 1 << 24))
        small, large = (measuring_job(ring, each, 3, 1.0, 0).variants[0] for each in slots)
        assert small.options.repeats > large.options.repeats == 1
        assert small.check
        assert np.prod(large.workload.slots["input"][0].shape) * 2 == 1 << 24

    def test_programs_with_kernels_have_no_size(self):
        b = Builder("k", 1)
        b.kernel("matmul", ("each",))
        with pytest.raises(OperatorError, match="sizes of kernels"):
            even_slots(b.build(), 8, "int8")
