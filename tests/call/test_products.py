"""Products called on arrays inside a user's MPI program, under each MPI and on several numbers of ranks."""

import needs
import pytest


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [1, 2, pytest.param(4, marks=pytest.mark.thorough)])
@pytest.mark.usefixtures("own_cache")
def test_products(mpi, ranks):
    done = mpi.run(ranks, needs.RANKS / "product_ranks.py", timeout_s=200)
    assert "all the same" in done.stdout, done.stdout[-2000:] + done.stderr[-3000:]
