"""The library's own program beside ours: on planted times, and on real ranks under each MPI."""

from __future__ import annotations

import json
import subprocess
from contextlib import contextmanager

import pytest

from dovetail.collective.operators import AllReduce
from dovetail.prober.baselines import INSTALLED, MPICH, OPEN_MPI, Timing, knobs_of
from dovetail.run.job import JobResult, Outcome
from dovetail.tuner import baselines
from dovetail.tuner.baselines import PLAIN, compare, level_note
from dovetail.tuner.measure import Entry

SIZES = (64, 4096)


NEAR, FAR = 6e-8, 2.7e-7


class Ranks:
    """An executor on which ours take 3 µs, or 15 µs while the cores are far apart: in the launches of `far`."""

    starts_mpi, launched_by, far, launches = True, "planted", (), 0

    def execute(self, job):
        self.launches += 1
        is_far = self.launches in self.far
        found = tuple(Outcome(each.name, (15e-6 if is_far else 3e-6,) * job.rounds, ()) for each in job.variants)
        apart_s = (FAR if is_far else NEAR,) * job.rounds if self.far else ()
        return JobResult(found, job.rounds, 0, exchange_s=apart_s)


class Library:
    """The library's program: seconds by level and by word in its knobs."""

    def __init__(self, times):
        self.times, self.launches = times, []

    def time(self, kind, sizes, ranks, *, level="single", knobs=INSTALLED, rounds=5, stamps=False, **_):
        self.launches.append((level, knobs))
        key = next((word for word in self.times if word in str(knobs)), level)
        seconds, apart_s = self.times.get(key, 9e-6), (NEAR,) * rounds if stamps else ()
        return {} if seconds is None else {size: Timing(size, (seconds,) * rounds, 0, apart_s) for size in sizes}


def compared(monkeypatch, ranks=None, **times):
    library = Library({"multiple": 8e-6, "single": 4e-6} | times)

    @contextmanager
    def planted(launch):
        yield library

    monkeypatch.setattr(baselines, "baselines", planted)
    entries = []
    for size in SIZES:
        operator = AllReduce(size, nodes=1)
        entries.append((Entry(operator.title, operator, 2, operator.serial(2), {}), operator.serial(2), 3e-6))
    about = {"rounds": 6, "budget_s": 60.0, "seed": 0, "say": lambda *_: None}
    return library, *compare(entries, ranks or Ranks(), "MPICH Version: 5.0.2", **about)


@pytest.mark.parametrize("far", [(1,), (1, 2, 3)])
def test_only_rounds_with_cores_equally_far_apart_are_compared(monkeypatch, far):
    """Launches are repeated until there are enough of them."""
    ranks = Ranks()
    ranks.far = far
    _, found, notes = compared(monkeypatch, ranks)
    assert notes == ()
    assert all(each.is_alike for each in found.values())
    assert found[64].to_json()["ours_s"] == 3e-6
    assert found[64].to_json()["exchange_s"] == NEAR


def test_rounds_that_stay_unlike_are_named(monkeypatch):
    ranks = Ranks()
    ranks.far = range(1, 99)
    _, found, (note,) = compared(monkeypatch, ranks)
    assert "at 64, 4096 bytes" in note
    assert not found[64].to_json()["is_alike"]


def test_the_library_is_shown_at_its_best(monkeypatch):
    library, found, _ = compared(monkeypatch, recursive_doubling=2e-6)
    assert sorted(found) == [*SIZES]
    document = found[64].to_json()
    assert [document[f"{name}_s"] for name in ("installed", "multiple", "best_knobs", "ours")] == [
        4e-6,
        8e-6,
        2e-6,
        3e-6,
    ]
    assert "INTRA_ALGORITHM=recursive_doubling" in document["knobs"]
    assert document["speedup_of_best"] == pytest.approx(2 / 3)  # and ours is not called faster
    assert [level for level, _ in library.launches[-6:]] == ["single", "multiple", "single"] * 2  # alternating


def test_knobs_that_gain_nothing_or_fail_are_not_named(monkeypatch):
    _, found, _ = compared(monkeypatch, recursive_doubling=3.99e-6, recexch=None)
    assert {each.setting == PLAIN and each.best.median_s == 4e-6 for each in found.values()} == {True}


def test_the_library_at_its_best_may_ask_for_another_level(monkeypatch):
    """MPICH's calls yield the core at MPI_THREAD_MULTIPLE only, which ranks that outnumber the cores need."""
    _, found, _ = compared(monkeypatch, multiple=2e-6)
    document = found[64].to_json()
    assert (document["best_knobs_s"], document["knobs"]) == (2e-6, "MPI_THREAD_MULTIPLE")


def test_a_level_that_costs_is_named_with_its_factor(monkeypatch):
    _, found, _ = compared(monkeypatch)
    (note,) = level_note(found, "MPICH Version:   5.0.2")
    assert "(2.0 times) at MPI_THREAD_MULTIPLE" in note
    assert 'mpi4py.rc.thread_level = "serialized"' in note
    assert level_note(compared(monkeypatch, multiple=4.1e-6)[1], "MPICH") == ()


def test_ranks_that_are_no_processes_of_mpi_are_compared_with_nothing(monkeypatch):
    monkeypatch.setattr(Ranks, "starts_mpi", False)
    assert compared(monkeypatch)[1:] == ({}, ())


def test_the_user_s_own_knobs_are_what_is_installed(monkeypatch):
    monkeypatch.setenv("MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM", "recexch")
    library, _, _ = compared(monkeypatch)
    assert not any("INTRA_ALGORITHM" in str(knobs) for _, knobs in library.launches)


@pytest.mark.mpi
@pytest.mark.usefixtures("own_cache")
def test_the_program_on_ranks(mpi):
    """Every collective, checked; a knob that the library knows, and one that it does not."""
    script = """
import json, pathlib, sys
from dovetail.prober.baselines import baselines
from dovetail.prober.calls import measured

points, known, unknown = [f"{kind}:{size}" for kind in sys.argv[1].split(",") for size in (64, 6000)], {}, {}
for name in ("MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM", "OMPI_MCA_coll"):
    known[name], unknown[name] = {"O": "^han", "M": "recexch"}[name[0]], "none"
with baselines(sys.argv[2]) as program:
    command, folder = sys.argv[2].replace("{ranks}", "2").split(), program.program.parent
    print(*measured(command, [str(program.program), "multiple", "int64", "2", "1e-5", "9", *points], folder, 60.0))
    found = [program.time("all_reduce", [64], 2, knobs=knobs, rounds=2, batch_s=1e-5) for knobs in (known, unknown)]
print(json.dumps([len(each) for each in found]))
"""
    kinds, launch = ",".join(MPICH), " ".join(mpi.mpiexec(0)[:-1]) + " {ranks}"
    command = [mpi.python, "-c", script, kinds, launch]
    done = subprocess.run(command, env=mpi.env, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    document, knobs = map(json.loads, done.stdout.splitlines())
    assert (document["provided"], document["dtype"], len(document["rows"])) == ("multiple", "int64", 2 * len(MPICH))
    assert all(len(row["seconds"]) == 2 and row["median_s"] > 0 and not row["num_wrong"] for row in document["rows"])
    assert knobs == [1, 0]


def test_every_library_has_knobs_for_every_collective():
    assert MPICH.keys() == OPEN_MPI.keys()
    assert all(knobs_of(library, kind) or kind == "all_to_next" for kind in MPICH for library in ("MPICH", "Open MPI"))
