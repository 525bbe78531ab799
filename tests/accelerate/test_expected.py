"""What levers may save: skew is never gained, what cannot gain is known before a run, predictions by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dovetail.accelerate.advised import with_levers
from dovetail.accelerate.counts import Bucket, Counts
from dovetail.accelerate.expected import COUNTED_S, Times, freed_s, is_replaceable, launch_of, prospects, with_times
from dovetail.advise.advise import Advice
from dovetail.advise.finding import Finding

WORDS = ("mpiexec", "-n", "2", "./a.out")
REDUCE = Bucket("Allreduce", 2, 3, 1000, 0.4, 1000, 0.4, 0.1)
GATHER = Bucket("Allgather", 2, 7, 1000, 0.6)
MEMORY, INSTALLED = ("memory", {}, ""), ("installed", {}, "")


def counts_of(*buckets, library="MPICH Version: 5.0.2", hosts=("a",), ranks=2):
    return Counts(library, hosts, ranks, 1.0, float(ranks), buckets)


def test_skew_is_not_gained():
    """Calls that take half as long save half of what is not skew, and no more than the calls alone save."""
    assert Times(REDUCE, 2e-3, 1e-3).saved_s == pytest.approx(0.15)
    assert Times(REDUCE, 2e-5, 1e-5).saved_s == pytest.approx(0.01)
    assert Times(REDUCE, 1e-5, 2e-5).saved_s == pytest.approx(-0.01)


def test_predictions_by_lever():
    """Shared memory is used only where it is faster, a knob for all sizes; counting costs."""
    found = prospects(counts_of(REDUCE, GATHER), "single", WORDS)
    knob = next(each for each in found.knobs.candidates if each.call == "Allgather")
    keys = ("Allreduce", 3), ("Allgather", 7)
    times = [
        (INSTALLED, dict.fromkeys(keys, 1e-4)),
        (MEMORY, dict(zip(keys, (2e-4, 5e-5), strict=True))),
        (("knobs", knob.knobs, "Allgather"), {keys[1]: 1.5e-4}),
    ]
    memory, knobs = with_times(found, times).expected
    cost_s = 2000 * COUNTED_S / 2
    assert (memory.is_memory, memory.saves_s) == (True, pytest.approx(0.025 - cost_s))
    assert (knobs.knobs, knobs.saves_s) == (knob.knobs, pytest.approx(-0.025 - cost_s))


def test_cores_that_are_left_shorten_all_else():
    """Two ranks on a core, 0.4 s of work: 0.8 of 1.2 s of waiting for it are others' polling, and half of it ends."""
    calls = Bucket("Allgather", 2, 7, 1000, 0.4), Bucket("Wait", 0, 7, 1000, 1.2)
    alone = Counts("MPICH Version: 5.0.2", ("a",), 2, 1.0, 2.0, calls)
    crowded = replace(alone, crowd=2.0, core_waits_s=1.2)
    assert (alone.held_share, crowded.held_share) == (0.0, pytest.approx(0.4))
    assert replace(crowded, core_waits_s=0.3).held_share == 0.0  # no longer than the others work
    assert replace(alone, core_waits_s=1.2).held_share == 0.0
    rows = [Times(calls[0], 4e-4, 2e-4)]
    assert freed_s(alone, rows) == 0
    assert freed_s(crowded, rows) == pytest.approx(1.6 * 0.4 * 0.5)
    assert freed_s(crowded, [Times(calls[0], 2e-4, 4e-4)]) == 0
    key = "Allgather", 7
    memory = with_times(prospects(crowded, "single", WORDS), [(INSTALLED, {key: 4e-4}), (MEMORY, {key: 2e-4})])
    assert memory.expected[0].saves_s == pytest.approx((0.2 + 0.32 - 2000 * COUNTED_S) / 2)


def test_what_cannot_gain_is_known():
    """Calls that no lever serves; skew alone; shared memory that is not wanted, or slower; knobs that are."""
    late = Bucket("Allreduce", 2, 3, 1000, 0.9, 1000, 0.9, 0.89)
    for bucket in (Bucket("Sendrecv", 0, 10, 1000, 1.0), late):
        assert not prospects(counts_of(bucket), "single", WORDS).can_gain(replaces=True)
    small = Bucket("Allreduce", 2, 3, 1000, 0.05)  # enough for shared memory, too little for a knob
    found = prospects(counts_of(small), "single", WORDS)
    assert (found.can_gain(replaces=True), found.can_gain(replaces=False)) == (True, False)
    key = "Allreduce", 3
    for now_s, gains in ((1e-5, True), (9.9e-5, False)):
        known = with_times(found, [(INSTALLED, {key: 1e-4}), (MEMORY, {key: now_s})])
        assert known.can_gain(replaces=True) is gains
    found = prospects(counts_of(REDUCE), "single", WORDS)
    slow = [(("knobs", each.knobs, "Allreduce"), {key: 1e-3}) for each in found.knobs.candidates]
    known = with_times(found, [(INSTALLED, {key: 1e-4}), *slow])
    assert known.worth_trying.candidates == ()
    assert not known.can_gain(replaces=False)
    assert (
        with_times(found, [(INSTALLED, {key: 1e-4}), *slow[1:]]).worth_trying.candidates == found.knobs.candidates[:1]
    )


@pytest.mark.parametrize(
    ("bucket", "reorder", "is_one"),
    [
        (REDUCE, False, True),
        (Bucket("Allreduce", 4, 3, 1, 1.0), False, False),  # perhaps a sum of floating-point numbers
        (Bucket("Allreduce", 4, 3, 1, 1.0), True, True),
        (Bucket("Allreduce", 2, 25, 1, 1.0), False, False),
        (Bucket("Alltoall", 2, 15, 1, 1.0), False, True),
        (Bucket("Alltoall", 2, 16, 1, 1.0), False, False),
        (Bucket("Allgather", 2, 16, 1, 1.0), False, True),
        (Bucket("Barrier", 2, -1, 1, 1.0), False, True),
        (Bucket("Bcast", 2, 3, 1, 1.0), False, False),
        (Bucket("Allreduce", 1, 3, 1, 1.0), False, False),
    ],
)
def test_what_shared_memory_may_serve(bucket, reorder, is_one):
    assert is_replaceable(bucket, counts_of(), reorder=reorder) is is_one
    assert not is_replaceable(bucket, counts_of(hosts=("a", "b")), reorder=reorder)


def test_the_launcher_of_a_command(tmp_path):
    """The words before the program, unless a script hides it."""
    assert launch_of(["sh", "-c", "mpiexec -n 2 ./a.out"]) == ()
    assert launch_of(["mpiexec", "-n", "2", str(tmp_path / "none")]) == ()


class Traced:
    """Stands for a trace: `with_levers` asks for its counts only."""


def test_findings_that_a_lever_serves_end_in_the_command(tmp_path, monkeypatch):
    served = Finding("seldom", "a.c:3, MPI_Allreduce", "9 calls of MPI_Allreduce", "call it seldom", 1.0)
    late = Finding("imbalance", "a.c:3, MPI_Allreduce", "rank 1 is late", "balance", 1.0)
    advice = Advice((served, late), 1.0, 1.0)
    for module in ("counts_of_trace", "level_of"):
        monkeypatch.setattr(f"dovetail.accelerate.advised.{module}", lambda trace: trace)
    monkeypatch.setattr(
        "dovetail.accelerate.advised.prospects", lambda counts, level, words: prospects(counts, "single", words)
    )
    told = with_levers(advice, counts_of(REDUCE), tmp_path)
    line = f"`dovetail accelerate --replace --from {tmp_path} -- COMMAND`"
    assert [it.action for it in told.findings] == [f"call it seldom; or leave the program: {line}", "balance"]
    (note,) = with_levers(Advice((late,), 1.0, 1.0), counts_of(REDUCE), tmp_path).notes
    assert line in note
    skewed = Bucket("Allreduce", 2, 3, 1000, 0.4, 1000, 0.4, 0.4)
    assert with_levers(advice, counts_of(skewed), tmp_path) == advice
