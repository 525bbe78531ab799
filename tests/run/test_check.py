"""Results are held against what post-conditions ask, element by element; planted faults are counted."""

from __future__ import annotations

import pickle
import subprocess

import needs
import numpy as np
import pytest

from dovetail.collective import build
from dovetail.collective.operators import AllReduce
from dovetail.ir import Builder, Kind, Region, Slot, Term, Workload
from dovetail.run import execute, fresh_inputs
from dovetail.run.check import check_rank
from dovetail.run.job import Job, JobResult, Variant
from dovetail.run.options import RunOptions
from dovetail.tuner.measure import Entry


def ran(program, dtype="float32", op="sum", elements=5):
    """A run of a program on this machine's threads: its workload, its inputs and what each rank holds in the end."""
    workload = Workload({b.name: (Slot((elements,), dtype),) * program.num_ranks for b in program.buffers})
    inputs = fresh_inputs(program, workload, seed=3)
    outputs = execute(program, inputs, workload=workload, reduce_op=op).outputs
    return workload, inputs, outputs


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32"])
@pytest.mark.parametrize("op", ["sum", "min", "max", "prod"])
def test_right_results_pass_and_planted_ones_do_not(dtype, op):
    program = build("ring_all_reduce", 3)
    workload, inputs, outputs = ran(program, dtype, op)
    for rank in range(3):
        held = {"input": outputs["input"][rank]}
        found = check_rank(program, workload, rank, held, lambda name, at: inputs[name][at], op)
        assert found.num_wrong == 0, found
        held["input"][1, 2] += 3
        found = check_rank(program, workload, rank, held, lambda name, at: inputs[name][at], op)
        assert found.num_wrong == 1
        assert found.max_rel_error > found.tolerance


def test_what_is_only_moved_must_be_equal_to_the_bit():
    program = build("ring_all_gather", 3)
    workload, inputs, outputs = ran(program)
    held = {"output": outputs["output"][0], "input": inputs["input"][0]}
    asked = program, workload, 0, held, lambda name, at: inputs[name][at]
    assert check_rank(*asked).num_wrong == 0
    held["output"][2, 0] = np.nextafter(held["output"][2, 0], np.float32(2))
    held["output"][0, 1] = np.nan
    assert check_rank(*asked).num_wrong == 2


def lying() -> Job:
    """A program that says it is an all_reduce, and only sends each rank's array to the other."""
    b = Builder("lying", 2)
    b.buffer("input", "input", 1), b.buffer("output", "output", 1)
    b.post((0, 1), Region("output", 0, 1), [Term(None, ((rank, Region("input", 0, 1)),)) for rank in (0, 1)])
    for rank in (0, 1):
        send, recv = b.lane("send", "net"), b.lane("recv", "net")
        b.add(Kind.send, rank, send, reads=[Region("input", 0, 1)], chan_out=b.channel(rank, 1 - rank))
        b.add(Kind.recv, rank, recv, writes=[Region("output", 0, 1)], chan_in=b.channel(1 - rank, rank))
    workload = Workload({name: (Slot((1000,), "float32"),) * 2 for name in ("input", "output")})
    return Job((Variant("lying", b.build(), workload, RunOptions(spans=False), True),), rounds=2)


@pytest.mark.mpi
def test_a_job_counts_wrong_elements_on_all_ranks(mpi, tmp_path):
    operator = AllReduce(4000)
    entry = Entry(operator.title, operator, 2, operator.serial(2), {})
    schedules = [operator.by(name) for name in ("library", "ring_all_reduce", "recursive_doubling_all_reduce")]
    honest = Job(tuple(entry.variant(each, 20, check=True) for each in schedules), rounds=2)
    ask, answer = tmp_path / "ask", tmp_path / "answer"
    ask.write_bytes(pickle.dumps([(honest, None, True), (lying(), None, False)]))
    command = [str(mpi.python), str(needs.RANKS / "mpi_job.py"), str(ask), str(answer)]
    done = subprocess.run(command, env=mpi.env, text=True, capture_output=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    right, wrong = pickle.loads(answer.read_bytes())
    assert isinstance(right, JobResult), right
    assert [outcome.num_wrong for outcome in right.outcomes] == [0, 0, 0]
    assert all(outcome.timelines == () for outcome in right.outcomes)
    assert all(outcome.median_s > 0 for outcome in right.outcomes)
    assert wrong["lying"].num_wrong > 1900  # a rank's own part may be 0
