"""Timing a collective that was not tuned: the error names library and file, and a command that works."""

from __future__ import annotations

import pytest

from dovetail.collective.operators import AllReduce
from dovetail.core import DovetailError
from dovetail.run.executor import executor_on
from dovetail.store.selection import Row, Selection
from dovetail.tuner.simulated import SimExecutor
from dovetail.tuner.timing import tuned_rule

OPERATOR = AllReduce(4096, nodes=1)
TABLE = Selection({}, (Row("all_reduce", 4, 1, 0, 1 << 20),))


@pytest.fixture(autouse=True)
def _cache(own_cache, monkeypatch):
    monkeypatch.delenv("DOVETAIL_SELECTION", raising=False)


def refusal(executor=None, library: str = "MPICH 5") -> str:
    with pytest.raises(DovetailError) as caught:
        tuned_rule(OPERATOR, 2, library, ["a", "a"], executor or executor_on("shared"))
    return str(caught.value)


@pytest.mark.parametrize(
    ("executor", "options"),
    [
        (executor_on("mpi"), ""),
        (executor_on("mpi", launch="srun -n {ranks}"), " --launch 'srun -n {ranks}'"),
        (executor_on("shared"), " --on shared"),
        (executor_on("threads"), " --on threads"),
        (SimExecutor(None), ""),
    ],
    ids=["mpi", "launch", "shared", "threads", "unregistered"],
)
def test_the_command_chooses_the_same_ranks(executor, options):
    said = refusal(executor, "MPICH Version: 5\n")
    assert "all_reduce on 2 ranks has not been tuned here for messages by MPICH Version: 5\n" in said
    assert f"dovetail tune all_reduce --ranks 2{options}, or --algorithm library" in said
    assert "found" not in said


def test_the_variable_is_named(monkeypatch, tmp_path):
    file = tmp_path / "selection.json"
    for given in (file, tmp_path):
        monkeypatch.setenv("DOVETAIL_SELECTION", str(given))
        if given == file:
            assert f"found       DOVETAIL_SELECTION names no file: {file}\n" in refusal()
            TABLE.save(file)
        assert f"found       no row for it in the table that DOVETAIL_SELECTION names: {file}\n" in refusal()
    file.write_text("{")
    assert f"found       DOVETAIL_SELECTION: selection {file} is not JSON\n" in refusal()
