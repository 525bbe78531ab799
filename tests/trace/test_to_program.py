"""The replay of an unchanged trace of a real program has about its traced makespan, on every MPI."""

from __future__ import annotations

import needs
import pytest
from traced_programs import SOURCE, compiled, traced

from dovetail.sim import simulate
from dovetail.trace.analysis.model_of_trace import model_of
from dovetail.trace.to_program import to_program

pytestmark = pytest.mark.mpi
FAULTS = needs.ROOT / "bench" / "traces" / "trace_faults.c"
NAMES = {"merge": 2, "block": 2, "temporal_block": 2, "post_earlier": 3, "overlap": 2, "nonblocking": 2,
         "rendezvous": 2, "eager": 2, "progress": 2, "imbalance": 2, "slow_link": 3}  # fmt: skip


def off(trace) -> float:
    model = model_of(trace)
    replayed = simulate(*to_program(model)).makespan_s
    return replayed / model.makespan_s - 1


def test_calls_of_every_kind(mpi, tmp_path):
    program = compiled(mpi, SOURCE, tmp_path / "program")
    assert abs(off(traced(mpi, tmp_path / "out", 4, program)[1])) < 0.25


def test_a_dozen_programs(mpi, tmp_path):
    """Half of the programs are within 5 %; each that is far off is traced again, up to three times."""
    program = compiled(mpi, FAULTS, tmp_path / "program")
    found = []
    for i, (name, ranks) in enumerate(NAMES.items()):
        command = [program, name, i % 2, 1 if name == "progress" else 10]
        runs = (abs(off(traced(mpi, tmp_path / f"{name}{k}", ranks, *command)[1])) for k in range(4))
        found.append(next((each for each in runs if each < 0.2), 1.0))
    assert sorted(found)[len(found) // 2] < 0.05
    assert max(found) < 0.25
