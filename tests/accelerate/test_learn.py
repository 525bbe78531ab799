"""Learning from whole runs: the best wins if five pairs say so; the limit, failures and broken files are respected."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest

from dovetail.accelerate.contest import Ratio
from dovetail.accelerate.counts import Bucket, Counts, Replaced, Replacing
from dovetail.accelerate.knobs import promising
from dovetail.accelerate.learn import (
    LOST,
    NOT_TRIED,
    NOTHING,
    WON,
    Learned,
    learn,
    recall_settings,
    said,
    save_settings,
    settings_item,
)
from dovetail.accelerate.replacement import judge_replacing, judged
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
    found = promising(counts, command.words)
    return learn(command, Ran(0, 1.0, (counts,)), limit_s, found, note=lambda text: None)


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


@dataclass(frozen=True)
class Replacer:
    """A command that takes a second; with its collectives replaced, `replaced` seconds, or exit code `code`."""

    replaced: float
    code: int = 0
    start: tuple[str, ...] = ()

    def run(self, knobs=None, *, counted=True, shown=True):
        return Ran(self.code, self.replaced, (REPLACED,)) if counted else Ran(0, 1.0)


ROWS = (
    Replaced("Allreduce", 2, 3, "float64", "SUM", "replaced", 1000, 900, 3e-5, 1e-5, key=0x800A0104, block=24),
    Replaced("Allreduce", 2, 4, "float64", "SUM", "replaced", 20, 10, 3e-5, 1e-5, key=0x800A0105, block=24),
    Replaced("Barrier", 2, -1, "", "", "slower", 1000, 90, 1e-5, 2e-5, key=0x83000000, block=48),
)
REPLACED = Counts("MPICH Version: 5.0.2", ("a",), 2, 1.0, 2.0, (), replacing=Replacing(ROWS, {}, 0.0))
NOTHING_TRIED = Learned(NOT_TRIED, {}, REPLACED.library, REPLACED.hosts, REPLACED.ranks)


@pytest.mark.parametrize(("seconds", "verdict"), [(0.9, WON), (1.0, LOST), (1.1, LOST)])
def test_whole_runs_judge_replaced_collectives(seconds, verdict):
    found, why_not = judge_replacing(Replacer(seconds), NOTHING_TRIED, Ran(0, 1.0, (REPLACED,)), 100.0, print)
    assert (found.replacing, found.start, why_not) == (verdict, ("800a0104@2:24",), "")
    assert found.replaced.value == pytest.approx(seconds)
    place = settings_item(["mpiexec", "a"], reorder=False, replace=True)
    save_settings(place, found, ["mpiexec", "a"])
    assert recall_settings(place).value == found


def test_replaced_collectives_under_which_the_program_fails_are_not_used_again():
    found, _ = judge_replacing(Replacer(0.5, code=3), NOTHING_TRIED, Ran(0, 1.0, (REPLACED,)), 100.0, print)
    assert (found.replacing, found.replaced) == (LOST, None)
    found, why_not = judge_replacing(Replacer(0.5), NOTHING_TRIED, Ran(0, 1.0, (REPLACED,)), 9.0, print)
    assert (found.replacing, "--learn 11" in why_not) == ("", True)


def test_a_check_decides_what_later_runs_apply():
    """Too few pairs decide nothing; without a gain neither knobs nor replaced collectives are applied any more."""
    ran, tuned = Ran(0, 1.0, (REPLACED,)), Learned(WON, {"FI_A": "1"}, REPLACED.library, ("a",), 2)
    assert judged(None, Ratio((0.5,) * 4), ran, replaces=True) is None
    faster = judged(None, Ratio((0.5,) * 5), ran, replaces=True)
    assert (faster.verdict, faster.replacing, faster.start) == (NOT_TRIED, WON, ("800a0104@2:24",))
    slower = judged(tuned, Ratio((1.1,) * 5), ran, replaces=True)
    assert (slower.verdict, slower.knobs, slower.replacing) == (LOST, {}, LOST)
    assert judged(tuned, Ratio((0.9,) * 5), ran, replaces=False) == tuned
    elsewhere = Learned(WON, {"FI_A": "1"}, REPLACED.library, ("b",), 2)
    assert judged(elsewhere, Ratio((0.9,) * 5), ran, replaces=True).verdict == NOT_TRIED


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
