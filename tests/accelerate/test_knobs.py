"""Which knobs are worth a run: by what the ranks spent time in, never over the user's own, sums in their order."""

from __future__ import annotations

import pytest

from dovetail.accelerate.counts import Bucket, Counts
from dovetail.accelerate.knobs import promising

MPICH, OPEN_MPI = "MPICH Version: 5.0.2", "Open MPI v5.0.11"
WORDS = ["mpiexec", "-n", "2", "./a.out"]


@pytest.fixture(autouse=True)
def _nothing_is_set(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("OMPI_MCA_btl_tcp_progress_thread", "MPIR_CVAR_CH4_OFI_ENABLE_RMA"):
        monkeypatch.delenv(name, raising=False)


def counts(*buckets: Bucket, library: str = MPICH, hosts: tuple[str, ...] = ("a",)) -> Counts:
    return Counts(library, hosts, 4, 1.0, 4.0, buckets)


def names(found):
    return [name for each in found.candidates for name in each.knobs]


@pytest.mark.parametrize(
    ("library", "word"), [(MPICH, "MPIR_CVAR_ALLTOALL_"), (OPEN_MPI, "OMPI_MCA_coll_tuned_alltoall_")]
)
def test_a_collective_with_a_share_of_the_time(library, word):
    found = promising(counts(Bucket("Alltoall_c", 4, 10, 100, 0.3), library=library), WORDS)
    assert any(name.startswith(word) for name in names(found))
    assert {each.call for each in found.candidates} == {"Alltoall"}


def test_nothing_else_is_tried():
    """Small shares, calls that no knob serves, one rank, and time that is spent waiting for the last rank."""
    assert not promising(counts(Bucket("Alltoall", 4, 10, 100, 0.19)), WORDS).candidates
    assert not promising(counts(Bucket("Alltoallw", 4, 10, 100, 3.0)), WORDS).candidates
    assert not promising(counts(Bucket("Barrier", 4, -1, 100, 3.0)), WORDS).candidates
    assert not promising(counts(Bucket("Bcast", 1, 10, 100, 3.0)), WORDS).candidates
    assert not promising(counts(Bucket("Alltoall", 4, 10, 100, 3.0, 10, 0.3, 0.29)), WORDS).candidates
    assert promising(counts(Bucket("Alltoall", 4, 10, 100, 3.0, 10, 0.3, 0.2)), WORDS).candidates


def test_sums_keep_their_order_unless_allowed():
    """Between two ranks there is one order only."""
    more, two = (counts(Bucket("Allreduce", size, 10, 100, 3.0)) for size in (3, 2))
    refused = promising(more, WORDS)
    assert not refused.candidates
    assert "--reorder" in " ".join(refused.left_out)
    assert promising(more, WORDS, reorder=True).candidates
    assert promising(two, WORDS).candidates
    mixed = counts(Bucket("Allreduce", 2, 10, 100, 3.0), Bucket("Allreduce", 4, 10, 1, 0.1))
    assert not promising(mixed, WORDS).candidates


def test_an_unknown_library_has_no_knobs():
    found = promising(counts(Bucket("Alltoall", 4, 10, 100, 3.0), library="Intel(R) MPI Library 2021.19"), WORDS)
    assert (found.candidates, found.left_out) == ((), ("no knobs are known for Intel(R) MPI Library 2021.19",))


def test_what_the_user_sets_is_left_alone(monkeypatch, tmp_path):
    """By the environment, by a word of the command, or in Open MPI's file of parameters."""
    spent = counts(Bucket("Send", 0, 20, 100, 3.0), library=OPEN_MPI, hosts=("a", "b"))
    name = "OMPI_MCA_btl_tcp_progress_thread"
    assert names(promising(spent, WORDS)) == [name]
    with monkeypatch.context() as patch:
        patch.setenv(name, "0")
        found = promising(spent, WORDS)
        assert (found.candidates, found.left_out) == ((), (f"{name} is set by the user",))
    assert not promising(spent, ["mpirun", "--mca", "btl_tcp_progress_thread", "0", *WORDS[1:]]).candidates
    file = tmp_path / ".openmpi" / "mca-params.conf"
    file.parent.mkdir()
    file.write_text("# btl_tcp_progress_thread = 1\n")
    assert promising(spent, WORDS).candidates
    file.write_text("btl_tcp_progress_thread = 0\n")
    assert not promising(spent, WORDS).candidates


def test_messages_between_hosts():
    sends = Bucket("Send", 0, 20, 100, 3.0)
    name = "MPIR_CVAR_CH4_OFI_ENABLE_RMA"
    assert names(promising(counts(sends, hosts=("a", "b")), WORDS)) == [name]
    assert not promising(counts(sends), WORDS).candidates
    assert not promising(counts(sends, Bucket("Win_create", 0, -1, 1, 0.0), hosts=("a", "b")), WORDS).candidates
