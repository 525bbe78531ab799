"""Pipelines on real ranks, in C and Python; their model in C and Python; the grains chosen for planted costs."""

import ctypes
import random
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import needs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import some

from dovetail.call.pipeline import FOLDER, library
from dovetail.pipeline.recurrence import Link, pipeline_s

RANKS = needs.RANKS / "pipeline_ranks.py"
SOURCES = sorted(map(str, FOLDER.glob("*.c")))


def built(mpi, source, at) -> Path:
    """Compile a C program and the library with mpicc, without a warning."""
    words = ["-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", "-I", str(FOLDER), str(source), *SOURCES, "-o", str(at)]
    done = subprocess.run([mpi.mpicc, *words], env=mpi.env, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return at


def launched(mpi, ranks, program):
    command = [*mpi.mpiexec(ranks), str(program)]
    return subprocess.run(command, env=mpi.env, text=True, capture_output=True, timeout=120, check=False)


@pytest.mark.mpi
class TestRanks:
    @pytest.mark.parametrize("ranks", [1, 2, 3, 4])
    def test_program_without_python(self, mpi, tmp_path, ranks):
        done = launched(mpi, ranks, built(mpi, needs.ROOT / "examples" / "sync_p2p.c", tmp_path / "sync_p2p"))
        corners = re.findall(r"corner (\d+), (\d+) expected", done.stdout)
        assert done.returncode == 0, done.stderr
        assert len(corners) == 5
        assert all(ours == expected for ours, expected in corners)
        assert "positions in" in done.stdout

    @pytest.mark.parametrize("ranks", [2, 3, 4])
    def test_from_python(self, mpi, ranks):
        done = mpi.run(ranks, "-m", "mpi4py", RANKS)
        assert "all the same" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]
        assert done.returncode == 0

    def test_one_rank(self, mpi):
        done = mpi.run(1, "-m", "mpi4py", RANKS, "test_every_grain", "test_short_ones")
        assert "all the same" in done.stdout, done.stderr[-2000:]

    def test_a_missing_message_is_noticed(self):
        done = needs.mpi("mpich").run(2, "-m", "mpi4py", RANKS, "planted_unsent")
        assert done.returncode != 0
        assert "all the same" not in done.stdout


class _CLink(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int) for name in ("source", "target")),
        *((name, ctypes.c_double) for name in ("half_s", "gap_s", "send_s", "recv_s")),
        *((name, ctypes.c_int) for name in ("waits", "progresses", "leaves", "enters")),
    ]


def by_c(steps, compute_s, links, overlapped):
    function = library().dovetail_pipeline_s
    function.restype = ctypes.c_double
    held = (_CLink * len(links))(*(_CLink(*link) for link in links))
    costs = (ctypes.c_double * len(compute_s))(*compute_s)
    return function(ctypes.c_int64(steps), len(compute_s), costs, len(links), held, int(overlapped))


def a_case(seed):
    chance = random.Random(seed)
    ranks = chance.randint(1, 6)
    order = chance.sample(range(ranks), ranks)
    pairs = sorted((order[a], order[b]) for a in range(ranks) for b in range(a + 1, ranks) if chance.random() < 0.5)
    links = [
        Link(a, b, *(chance.uniform(0, 3) for _ in range(4)), *(chance.random() < 0.5 for _ in range(4)))
        for a, b in pairs
    ]
    return chance.randint(0, 160), [chance.uniform(0, 3) for _ in range(ranks)], links


class TestRecurrence:
    @given(st.integers(0, 10**6), st.booleans())
    @settings(max_examples=some(60), deadline=None)
    def test_c_equals_python(self, seed, overlapped):
        needs.need("mpich")
        steps, compute_s, links = a_case(seed)
        assert by_c(steps, compute_s, links, overlapped) == pytest.approx(
            pipeline_s(steps, compute_s, links, overlapped=overlapped), rel=1e-12, abs=1e-12
        )

    def test_a_planted_difference_is_noticed(self):
        """Planted: a rank is slower in one of the two models."""
        needs.need("mpich")
        steps, compute_s, links = 9, [1.0, 1.0], [Link(0, 1, 0.5, 0.1, 0.1, 0.1)]
        assert by_c(steps, [1.0, 1.25], links, False) != pytest.approx(
            pipeline_s(steps, compute_s, links, overlapped=False)
        )

    @pytest.mark.parametrize("shared", ["leaves", "enters"])
    @pytest.mark.parametrize("waits", [False, True])
    def test_messages_on_one_wire_wait_for_one_another(self, shared, waits):
        """Two ranks receive, or send, messages that take longer than computing: on one wire they take twice as long."""
        ends = [(0, 1), (0, 2)] if shared == "leaves" else [(0, 2), (1, 2)]
        apart = [Link(*each, 1.0, 1.0, 0.0, 0.0, waits) for each in ends]
        together = [link._replace(**{shared: True}) for link in apart]
        alone, both = (pipeline_s(50, [0.1] * 3, links, overlapped=True) for links in (apart, together))
        assert 49 < alone < 52
        assert 99 < both < 102

    @pytest.mark.parametrize("waits", [False, True])
    def test_ranks_take_turns(self, waits):
        """Without latency each rank begins one step after the previous one; waits for receivers change nothing."""
        links = [Link(rank, rank + 1, 0.0, 0.0, 0.0, 0.0, waits) for rank in range(3)]
        assert pipeline_s(10, [1.0] * 4, links, overlapped=False) == 13.0

    def test_long_runs_grow_linearly(self):
        links = [Link(0, 1, 0.5, 0.1, 0.25, 0.25, waits=True)]
        short, long = (pipeline_s(steps, [1.0, 1.5], links, overlapped=True) for steps in (1000, 2000))
        assert long - short == pytest.approx(
            1000
            * (pipeline_s(90, [1.0, 1.5], links, overlapped=True) - pipeline_s(89, [1.0, 1.5], links, overlapped=True))
        )

    def test_eager_sends_overlap_already(self):
        """Sends that do not wait make blocking and overlapped programs equal; sends that wait do not (seed 003)."""
        grid = [(a, b) for a in range(4) for b in range(4)]
        places = [(4 * a + b, 4 * c + d) for a, b in grid for c, d in ((a + 1, b), (a, b + 1)) if c < 4 and d < 4]

        def seconds(waits, overlapped, progresses=True):
            links = [Link(s, t, 2.1, 0.0, 0.05, 0.05, waits, progresses) for s, t in places]
            return pipeline_s(37, [3.1] * 16, links, overlapped=overlapped)

        assert seconds(False, True) == pytest.approx(seconds(False, False))
        assert seconds(True, True) < 0.6 * seconds(True, False)
        assert seconds(True, True, progresses=False) > 1.5 * seconds(True, True)


def test_trials_settle_on_the_fastest(tmp_path):
    """For any prediction, with disturbed passes, and if the best grain lies in another local minimum."""
    mpi = needs.mpi("mpich")
    done = launched(mpi, 1, built(mpi, needs.RANKS / "pipeline_trials.c", tmp_path / "trials"))
    rows = [list(map(float, line.split())) for line in done.stdout.splitlines()]
    assert len(rows) == 142, done.stderr
    rows, noisy = rows[:42], rows[42:]
    assert all(taken <= 1.03 * best for _, _, taken, best, *_ in rows), [row for row in rows if row[2] > 1.03 * row[3]]
    assert all(measured == pytest.approx(taken) for _, _, taken, _, measured, *_ in rows)
    assert all(passes <= 170 for *_, passes in rows)
    assert sum(taken > 1.03 * best for _, _, taken, best, *_ in noisy) <= 6  # 13 without the final trials


class Costs(NamedTuple):
    """Seconds of tiles of 1, 2, 4, … positions on each rank, and of messages of so many positions to the next rank."""

    length: int
    tiles_s: list[list[float]]  # by rank and level
    links: list[list[tuple[float, float, float, float, int, int]]]  # half, gap, send, receive; waits, progresses

    @classmethod
    def drawn(cls, seed):
        """Draw costs. Every third length is long. For odd seeds costs are linear, as on most machines, else random."""
        chance, ranks = random.Random(seed), 2 + seed % 4
        length = 400 + 37 * seed if seed % 3 == 0 else chance.randint(5, 60)
        each, latency, byte = (1e-6 * chance.randint(1, most) for most in (50, 500, 60))

        def wild(level):
            return chance.uniform(0.5, 2) if seed % 2 == 0 else 1.0

        def message(level):
            grown = byte * 2**level * wild(level)
            return latency + grown, grown, latency / 8, latency / 8, int(level > seed % 7), int(seed % 4 > 1)

        tiles_s = [[each * 2**level * wild(level) for level in range(LEVELS)] for _ in range(ranks)]
        return cls(length, tiles_s, [[message(level) for level in range(LEVELS)] for _ in range(ranks - 1)])

    def text(self):
        numbers = (number for each in (*self.tiles_s, *(row for link in self.links for row in link)) for number in each)
        return f"{len(self.tiles_s)} {self.length} {LEVELS} {' '.join(map(repr, numbers))}"

    def seconds(self, grain, overlapped):
        """Predict by the Python model: costs are linear between levels; the next longer message sets the protocol."""

        def at(levels):
            return float(np.interp(grain, [2**level for level in range(LEVELS)], levels))

        above = (grain - 1).bit_length()
        links = [
            Link(rank, rank + 1, *(at([row[k] for row in rows]) for k in range(4)), *rows[above][4:])
            for rank, rows in enumerate(self.links)
        ]
        return pipeline_s(-(-self.length // grain), [*map(at, self.tiles_s)], links, overlapped=overlapped)


LEVELS = 12
SAME = {"rel": 1e-12, "abs": 1e-15}


@pytest.fixture(scope="module")
def choices(tmp_path_factory):
    """Return costs, the C library's choice, and its predictions for every grain: (blocking, overlapped)."""
    mpi, folder = needs.mpi("mpich"), tmp_path_factory.mktemp("choices")
    costs = [Costs.drawn(seed) for seed in range(36)]
    (folder / "costs").write_text("\n".join(each.text() for each in costs))
    program = built(mpi, needs.RANKS / "pipeline_choice.c", folder / "choice")
    done = subprocess.run([program, folder / "costs"], env=mpi.env, text=True, capture_output=True, check=True)
    rows = [list(map(float, line.split())) for line in done.stdout.splitlines()]
    return [
        (each, row[:6], list(zip(row[6::2], row[7::2], strict=True))) for each, row in zip(costs, rows, strict=True)
    ]


def test_c_predicts_every_grain_as_python_does(choices):
    for costs, (grain, overlapped, *seconds), predicted in choices:
        assert len(predicted) == costs.length
        grains = range(1, costs.length + 1) if costs.length <= 60 else (1, 7, 16, 17, 100, int(grain), costs.length)
        for each in grains:
            ours = [costs.seconds(each, way) for way in (False, True)]
            assert predicted[each - 1] == pytest.approx(ours, **SAME)
        of_choice = predicted[int(grain) - 1]
        assert seconds == pytest.approx([of_choice[overlapped > 0], *seconds[1:3], predicted[-1][0]], **SAME)
        assert (overlapped > 0) == (seconds[2] < 0.99 * seconds[1])
        assert of_choice[overlapped > 0] == seconds[2 if overlapped else 1]


def ladder(seconds, ratio=5):
    """The grain of least predicted time, and that time, as `pipeline_grain.c` searches: every rung, then around the
    best one in halved steps, then with tiles that divide the length evenly. `seconds`: by grain, from 1 on."""
    length = best = len(seconds)

    def better(*others):
        fitting = [grain for grain in others if 1 <= grain <= length]
        return min([best, *fitting], key=lambda grain: seconds[grain - 1])

    rung = 1
    while rung < length:
        best, rung = better(rung), rung + 1 + rung // ratio
    step = 1 + best // 10
    while step:
        best, step = better(best - step, best + step), step // 2
    best = better(-(-length // -(-length // best)))
    return best, seconds[best - 1]


def test_c_climbs_the_ladder_of_grains_as_python_does(choices):
    for costs, (grain, overlapped, _, *found), predicted in choices:
        searched = [ladder(each) for each in zip(*predicted, strict=True)]
        assert [seconds for _, seconds in searched] == found[:2], costs.length
        assert grain == searched[overlapped > 0][0]


def test_a_planted_rung_is_seen(choices):
    """A ladder of wider steps finds other grains."""
    others = [ladder(each, ratio=1) for _, _, predicted in choices for each in zip(*predicted, strict=True)]
    found = [seconds for _, (_, _, _, *seconds), _ in choices for seconds in seconds[:2]]
    assert [seconds for _, seconds in others] != found


def test_a_planted_cost_is_noticed(choices):
    """Planted: a rank takes 0.1 % longer in one of the two models."""
    costs, _, predicted = choices[1]
    longer = [[each * 1.001 for each in costs.tiles_s[0]], *costs.tiles_s[1:]]
    assert predicted[0] != pytest.approx(
        [costs._replace(tiles_s=longer).seconds(1, way) for way in (False, True)], **SAME
    )


def test_grains_are_within_one_percent_of_the_best(choices):
    """The best of all grains, blocking and overlapped, for linear costs."""
    lines = choices[1::2]
    assert {int(row[1]) for _, row, _ in lines} == {0, 2}
    assert len({row[0] for _, row, _ in lines}) > 8
    for costs, (grain, _, chosen, *_), predicted in lines:
        assert chosen <= 1.011 * min(map(min, predicted)), (costs.length, grain)
