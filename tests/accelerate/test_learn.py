"""Learning from whole runs: the best wins if five pairs say so; the limit, failures and broken files are respected."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest

from dovetail.accelerate.counts import Bucket, Counts
from dovetail.accelerate.learn import (
    LOST,
    NOTHING,
    WON,
    learn,
    recall_settings,
    said,
    save_settings,
    settings_item,
)
from dovetail.accelerate.running import Ran

pytestmark = pytest.mark.usefixtures("own_cache")
COUNTS = Counts("MPICH Version: 5.0.2", ("a",), 2, 1.0, 2.0, (Bucket("Alltoall", 2, 10, 100, 1.0),))
GOOD = "brucks"


@dataclass
class Pretended:
    """A command that takes a second, or as long as `seconds` says of the algorithm that its knobs name."""

    seconds: dict[str, float]
    codes: dict[str, int] = field(default_factory=dict)
    words: tuple[str, ...] = ("mpiexec", "-n", "2", "./a.out")
    runs: int = 0

    def run(self, knobs=None, *, counted=True, shown=True):
        self.runs += 1
        assert not shown
        algorithm = (knobs or {}).get("MPIR_CVAR_ALLTOALL_INTRA_ALGORITHM", "")
        return Ran(self.codes.get(algorithm, 0), self.seconds.get(algorithm, 1.0), (COUNTS,))


def learnt(command, limit_s=100.0, counts=COUNTS):
    return learn(command, Ran(0, 1.0, (counts,)), limit_s, reorder=False, note=lambda text: None)


def test_the_best_wins():
    command = Pretended({GOOD: 0.8, "pairwise": 0.9})
    found, why_not = learnt(command)
    assert (found.verdict, why_not) == (WON, "")
    assert found.knobs["MPIR_CVAR_ALLTOALL_INTRA_ALGORITHM"] == GOOD
    assert found.ratio.value == pytest.approx(0.8)
    assert said(found.knobs) in found.tried


def test_slower_or_equal_is_remembered():
    for seconds in ({}, {GOOD: 1.1, "pairwise": 1.2, "scattered": 1.3}):
        found, _ = learnt(Pretended(seconds))
        assert (found.verdict, found.knobs) == (LOST, {})
        assert found.tried


@pytest.mark.parametrize(("limit_s", "tried"), [(9.0, 0), (10.0, 1), (15.9, 1), (16.0, 2), (18.0, 3)])
def test_the_limit_is_kept(limit_s, tried):
    command = Pretended({})
    found, why_not = learnt(command, limit_s)
    assert command.runs <= limit_s
    assert len(found.tried if found else ()) == tried
    assert ("--learn" in why_not) == (found is None)


def test_a_setting_under_which_the_program_fails_is_dropped():
    found, _ = learnt(Pretended({GOOD: 0.5, "pairwise": 0.9}, {GOOD: 1}))
    assert found.knobs["MPIR_CVAR_ALLTOALL_INTRA_ALGORITHM"] == "pairwise"


def test_a_program_that_cannot_be_repeated():
    found, why_not = learnt(Pretended({}, {"": 4}))
    assert found is None
    assert "exit code 4" in why_not


def test_nothing_to_try():
    command = Pretended({})
    found, _ = learnt(command, counts=Counts(COUNTS.library, ("a",), 2, 1.0, 2.0, ()))
    assert (found.verdict, command.runs) == (NOTHING, 0)


def test_saved_and_read_again(tmp_path, monkeypatch):
    """Another command, another file by the same name, or other variables of the user's are another item."""
    program = tmp_path / "a.out"
    program.write_bytes(b"1")
    words = ["mpiexec", "-n", "2", str(program)]
    place = settings_item(words, reorder=False)
    found, _ = learnt(Pretended({GOOD: 0.5}))
    save_settings(place, found, words)
    assert recall_settings(settings_item(words, reorder=False)).value == found
    assert found.fits(COUNTS)
    others = [settings_item([*words, "1"], reorder=False), settings_item(words, reorder=True)]
    with monkeypatch.context() as patch:
        patch.setenv("MPIR_CVAR_NOLOCAL", "1")
        others.append(settings_item(words, reorder=False))
    program.write_bytes(b"2")
    others.append(settings_item(words, reorder=False))
    assert len({place.key, *(other.key for other in others)}) == 5


@pytest.mark.parametrize("knobs", [{"LD_PRELOAD": "x.so"}, {"FI_PROVIDER": "$(rm x)"}])
def test_a_changed_file_sets_no_other_variable(knobs):
    place = settings_item(["mpiexec", "a"], reorder=False)
    found, _ = learnt(Pretended({GOOD: 0.5}))
    path = save_settings(place, found, ["mpiexec", "a"])
    document = json.loads(path.read_text())
    document["document"]["knobs"] = knobs
    path.write_text(json.dumps(document))
    read = recall_settings(place)
    assert read.value is None
    assert "configures no MPI library" in read.why_not
