"""Executors by name: those of packages, and --on in the verbs. What each must do is in test_conformance."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import dovetail
from dovetail.cli import main
from dovetail.collective import build
from dovetail.core import OperatorError
from dovetail.matmul import MatmulAllReduce
from dovetail.run.check import check_results
from dovetail.run.executor import EXECUTORS, Executor, executor_on
from dovetail.run.job import Job, Variant
from dovetail.run.timing import even_slots


def job_of(operator, ranks):
    """A serial schedule, checked against its post-conditions and its reference program where it has one."""
    schedule = operator.serial(ranks)
    program = operator.program(schedule, ranks)
    reference = operator.reference(schedule, ranks)
    against = reference and (reference, operator.workload(reference, schedule))
    variant = Variant("one", program, operator.workload(program, schedule), check=True, against=against)
    return Job((variant,), rounds=1, warmup=0)


def test_results_are_checked_in_one_place():
    """A rank's results are compared with its own post-conditions, and with the reference's outputs where it has one."""
    ring = build("ring_all_reduce", 2)
    variant = Variant("v", ring, even_slots(ring, 32, "float32"), check=True)
    ones = np.ones((2, 4), np.float32)
    held = {0: {buffer.name: 2 * ones for buffer in ring.buffers}}
    assert check_results(variant, held, lambda name, rank: ones).ok
    assert not check_results(variant, held, lambda name, rank: 2 * ones).ok
    both = replace(variant, against=(ring, variant.workload))
    for factor in (2, 3):
        found = check_results(both, held, lambda name, rank: ones, lambda n=factor: {0: {"input": n * ones}})
        assert found.ok == (factor == 2)


class Echo(Executor):
    """A package's executor: no more than what runs a job."""

    def execute_unverified(self, job):
        return executor_on("threads").execute_unverified(job)


def test_a_package_adds_an_executor(monkeypatch, request, call, tmp_path):
    points = [
        SimpleNamespace(name="echo", value="test_executors_of_others:Echo"),
        SimpleNamespace(name="mpi", value="test_executors_of_others:Echo", dist=SimpleNamespace(name="thief")),
        SimpleNamespace(name="poor", value="test_executors_of_others:Poor"),
    ]
    others = SimpleNamespace(Echo=Echo, Poor=type("Poor", (), {}))
    monkeypatch.setitem(__import__("sys").modules, "test_executors_of_others", others)
    monkeypatch.setattr("dovetail.core.registry.entry_points", lambda group: points if group == EXECUTORS.group else ())
    EXECUTORS.forget()
    request.addfinalizer(EXECUTORS.forget)
    with pytest.warns(RuntimeWarning, match=r"'mpi' of package thief is ignored"):
        assert type(executor_on("echo")) is Echo
    with pytest.warns(RuntimeWarning, match=r"it lacks takes, launched_by"):
        assert EXECUTORS.usable == ("mpi", "shared", "threads", "numpy", "cuda", "echo")
    with pytest.raises(OperatorError, match="'poor' of another package is not a class of executors"):
        executor_on("poor")
    assert executor_on("echo").in_folder(tmp_path).execute(job_of(MatmulAllReduce(8, 6, 4), 2))["one"].seconds
    code, _, err = call("probe", "--on", "ecco")
    assert code == 2
    assert "did you mean 'echo'?" in err


def test_verbs_that_measure_take_an_executor(call, tmp_path):
    code, out, err = call("bench", "all_reduce", "--ranks", "2", "--on", "threads", "--algorithm", "ring_all_reduce",
                          "--min", "1K", "--max", "1K", "--rounds", "1", "--json")  # fmt: skip
    assert code == 0, err
    assert json.loads(out)["rows"][0]["num_wrong"] == 0
    code, _, err = call("probe", "--on", "threads", "--calls")
    assert code == 2
    assert "--calls needs ranks that a command starts" in err
    assert main(["tune", "matmul_all_reduce", "--ranks", "2", "--on", "numpy", "--trace", str(tmp_path)]) == 2


def test_no_verb_and_no_generic_room_names_an_executor():
    """Executors are found by name, and asked what their protocol says."""
    package = Path(dovetail.__file__).parent
    asked = re.compile("MpiExecutor|getattr\\((executor|runner|self.executor)")
    paths = [path for room in ("cli", "tuner", "prober") for path in (package / room).rglob("*.py")]
    assert len(paths) > 40
    assert [path.name for path in paths if asked.search(path.read_text())] == []
    assert asked.search('trace = getattr(executor, "trace", None)')
