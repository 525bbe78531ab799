"""Levels of MPI's thread support: what jobs ask for, and every door at each of them, under each MPI."""

import needs
import pytest

from dovetail.run.job import Job, Variant
from dovetail.run.options import LEVELS, RunOptions

RANKS = needs.RANKS / "level_ranks.py"


@pytest.mark.mpi
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("level", LEVELS)
def test_every_door(mpi, level):
    done = mpi.run(2, "-W", "ignore::RuntimeWarning", "-m", "mpi4py", "-rc", f"thread_level={level}", RANKS, level)
    assert f"all at {level}" in done.stdout, done.stdout[-2000:] + done.stderr[-3000:]


@pytest.mark.mpi
@pytest.mark.usefixtures("own_cache")
def test_jobs_ask_for_what_they_need(mpi):
    done = mpi.run(1, "-c", JOBS)
    assert done.stdout.split() == ["funneled", "multiple", "serialized"], done.stdout + done.stderr[-3000:]


JOBS = """
from run_programs import workload_of

from dovetail.ir.shapes import ring_all_reduce
from dovetail.run.job import Job, Variant
from dovetail.run.mpi.executor import MpiExecutor
from dovetail.run.options import RunOptions

program = ring_all_reduce(2, 1)
workload = workload_of(program, (8,), "float32")
for progress, level in (("poll", None), ("thread", None), ("thread", "serialized")):
    variant = Variant("ring", program, workload, RunOptions(progress), check=True)
    result = MpiExecutor(level=level).execute(Job((variant,), rounds=1, warmup=0))
    assert not result.outcomes[0].is_wrong
    print(result.facts["thread_level"])
"""


def test_a_job_needs_what_its_most_demanding_variant_needs():
    poll, thread = (Variant(each, None, None, RunOptions(each)) for each in ("poll", "thread"))
    assert Job((poll,)).level == "funneled"
    assert Job((poll, thread)).level == Job((thread,)).level == "multiple"
