"""A plan inside the user's MPI program, on communicators of theirs, under each MPI."""

import needs
import pytest


@pytest.mark.mpi
def test_plans_on_communicators(mpi):
    done = mpi.run(4, needs.RANKS / "world_ranks.py", timeout_s=200)
    assert "all the same" in done.stdout, done.stdout[-2000:] + done.stderr[-3000:]
