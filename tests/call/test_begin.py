"""Non-blocking calls on real ranks under each MPI: run by a thread or in `wait`; processes that end with open calls."""

import needs
import pytest

import dovetail as dt

RANKS = needs.RANKS / "begin_ranks.py"
pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("own_cache")]


@pytest.mark.parametrize("ranks", [1, 2, pytest.param(4, marks=pytest.mark.thorough)])
def test_all_calls(mpi, ranks):
    done = mpi.run(ranks, "-m", "mpi4py", RANKS)
    assert "all the same" in done.stdout, done.stdout[-2000:] + done.stderr[-3000:]


@pytest.mark.parametrize("level", ["funneled", "serialized"])
def test_mpi_for_one_thread_at_a_time(mpi, level):
    done = mpi.run(2, "-m", "mpi4py", "-rc", f"thread_level={level}", RANKS)
    assert "all the same" in done.stdout, done.stdout[-2000:] + done.stderr[-3000:]


def test_dropped_requests_end_with_the_process(mpi):
    done = mpi.run(2, RANKS, "ends")
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stderr.count("nobody waited for it") == 2


def test_a_rank_that_fails_ends_the_job(mpi):
    done = mpi.run(2, RANKS, "fails")
    assert done.returncode != 0
    assert "nobody catches this" in done.stderr
    assert "ends with calls that were begun" in done.stderr


@pytest.mark.parametrize(("fault", "seen_by"), [("result", "test_library"), ("silent", "test_blocking_raises")])
def test_planted_faults(fault, seen_by):
    done = needs.mpi("mpich").run(2, "-m", "mpi4py", RANKS, fault, seen_by)
    assert done.returncode != 0
    assert f"in {seen_by}" in done.stderr, done.stderr[-2000:]


class TestFace:
    def test_every_collective_and_product_can_be_begun(self):
        blocking = [name for name in dt.__all__ if f"begin_{name}" in dt.__all__]
        assert len(blocking) == 12
        assert dt.begin_matmul_all_reduce.__name__ == "begin_matmul_all_reduce"

    def test_a_missing_argument_raises_at_once(self):
        with pytest.raises(TypeError, match="comm"):
            dt.begin_all_reduce([1.0])

    def test_an_operator_that_is_no_product_names_bind(self):
        with pytest.raises(AttributeError, match=r"dovetail.bind\(dovetail.Jacobi2d"):
            _ = dt.begin_jacobi2d
