"""Puts and gets as messages: proved, and the same to the bit on threads as the reference makes of the original."""

import random

import ir_programs
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ir_programs import rebuilt, specs_of
from run_programs import KERNELS, assert_same, workload_of
from thorough import some

from dovetail.core import ProgramError
from dovetail.ir import Kind, parse, verify
from dovetail.passes import two_sided
from dovetail.run import execute, fresh_inputs
from dovetail.run.local import run_unverified
from dovetail.run.options import RunOptions

GET = """program take ranks 2
buffer x input 1
buffer t scratch 1
buffer y output 1
lane net net
lane other net
channel 0->1 0 depth 8
channel 1->0 0 depth 8
post 1 y[0:1] = x@0[0:1]
post 0 y[0:1] = x@0[0:1]
rank 0 lane net
  copy x[0:1] -> t[0:1]
  signal to 1
  wait from 1
  copy x[0:1] -> y[0:1]
rank 1 lane other
  wait from 0
  get from 0 t[0:1] -> y[0:1]
  signal to 0
"""


@pytest.mark.slow
@settings(max_examples=some(250), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32), st.integers(1, 16), st.sampled_from(["poll", "thread"]))
def test_random_programs(seed, num_ops, progress):
    asked = ir_programs.Maker(random.Random(seed), num_ops).program()
    made = two_sided(asked)
    made = made.with_depth(verify(made).min_fifo_depth or 1)
    assert verify(made).ok, verify(made)
    assert not np.isin(made.columns["kind"], (Kind.put, Kind.get)).any()
    workload = workload_of(asked, (3,), "int32")
    inputs = fresh_inputs(asked, workload, 1)
    with np.errstate(all="ignore"):
        expected = execute(asked, inputs, KERNELS, workload=workload).outputs
        found, _ = run_unverified(made, workload, inputs, KERNELS, RunOptions(progress=progress, stall_s=60))
    assert_same(found, expected)


def test_what_it_waits_for():
    """Without its waits, what comes out does not hold: a planted fault."""
    made = two_sided(parse(GET))
    assert verify(made).ok
    ops = specs_of(made)
    serving = next(spec for spec in ops if spec.kind == Kind.send)
    assert [op.kind for op in serving.after] == [Kind.signal]
    serving.after = []
    assert verify(rebuilt(made, ops)).failed == "races"


def test_without_puts_and_gets_it_is_the_same_program():
    asked = parse(GET.replace("  get from 0 t[0:1] -> y[0:1]\n", ""))
    assert two_sided(asked) is asked


def test_what_does_not_complete_is_refused():
    with pytest.raises(ProgramError, match="does not complete"):
        two_sided(parse(GET.replace("  signal to 1\n", "", 1)))
