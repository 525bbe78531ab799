"""If one rank fails before a transfer, all ranks raise, wherever the fault occurs; no rank waits."""

import needs
import pytest
from needs import mpi

RANKS = needs.RANKS / "one_rank_fails.py"
pytestmark = pytest.mark.mpi
DOORS = ("products", "products_alike", "plans", "nests", "pipelines", "collectives")


@pytest.mark.parametrize("name", ["mpich", "openmpi"])
def test_all_ranks_raise(name):
    done = mpi(name).run(2, "-W", "ignore", RANKS, *DOORS)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["mpich", "openmpi"])
def test_collectives_without_comparison_of_arguments(name):
    done = mpi(name).run(3, "-W", "ignore", RANKS, "plain", "wrong_arguments")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_call_without_agreement_of_ranks_is_caught():
    done = mpi("mpich").run(2, "-W", "ignore", RANKS, "planted_silent")
    assert done.returncode
    assert "Timeout" in done.stderr
