"""Products called on arrays inside a user's MPI program, under each MPI and on several numbers of ranks."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.usefixtures("own_cache")
def test_products(mpi, ranks):
    done = mpi.run(ranks, HERE / "product_ranks.py", timeout_s=200)
    assert "all the same" in done.stdout, done.stdout[-2000:] + done.stderr[-3000:]
