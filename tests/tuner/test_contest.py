"""The contest: its noise guard, heats and finals on planted times, and how it divides a budget."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from collective_machine import star

from dovetail.collective.operators import AllReduce
from dovetail.core import PlanError, RunError
from dovetail.run.job import Job, JobResult, Outcome
from dovetail.run.load import Load
from dovetail.timeline import Timeline
from dovetail.tuner.collectives import entries_of, row_of, selection_of
from dovetail.tuner.contest import beats, contest, finalists, judge, pooled
from dovetail.tuner.measure import LAUNCHES, Entry, Measurer, fill

OPERATOR = AllReduce(1024, nodes=1)
LIBRARY, RING, TREE = (
    OPERATOR.serial(4),
    OPERATOR.by("ring_all_reduce", channels=2),
    OPERATOR.by("double_tree_all_reduce", slice_bytes=65536),
)
SIZES = (1024, 16384, 1 << 20)


def entry(size: int = 64, predicted=None) -> Entry:
    operator = replace(OPERATOR, num_bytes=size)
    return Entry(operator.title, operator, 4, LIBRARY, predicted or {})


def entries(*sizes: int) -> list[Entry]:
    return entries_of([replace(OPERATOR, num_bytes=size) for size in sizes], star(4), 4)[0]


def test_the_timeline_nearest_to_the_median_of_several_launches_is_kept():
    def launch(seconds, shown_s):
        columns = {"op": np.zeros(1, int), "end_s": np.array([shown_s])}
        return Outcome("x", seconds, (Timeline("measured", 1, ("compute",), (), columns),), 0.0, 0.0)

    found = pooled([launch((9.0, 8.0), 8.5), launch((1.0, 1.25, 1.5), 1.25), launch((1.0,), 1.0)])
    assert (found.seconds, found.timelines[0].makespan_s) == ((9.0, 8.0, 1.0, 1.25, 1.5, 1.0), 1.25)
    assert pooled([outcome(1.0), outcome(2.0)]).timelines == ()


# The guard


def outcome(seconds: float, *, wrong: int = 0, noise: float = 0.0, seed: int = 0) -> Outcome:
    times = seconds * (1 + noise * np.random.default_rng(seed).standard_normal(9))
    return Outcome("x", tuple(times), (), 0.0, 0.0, num_wrong=wrong)


def taken(launches, tried=None):
    return judge(entry(), launches, tried or {}).schedule


@pytest.mark.parametrize(
    ("ours_s", "noise", "wins"),
    [(0.5, 0.0, True), (0.98, 0.0, True), (0.995, 0.0, False), (1.0, 0.0, False), (0.95, 0.3, False)],
)
def test_ours_must_beat_the_library_by_more_than_the_noise(ours_s, noise, wins):
    library, ours = outcome(1.0, noise=noise, seed=1), outcome(ours_s, noise=noise, seed=2)
    assert beats([(ours, library)]) is wins
    assert taken([{LIBRARY: library, RING: ours}]) == (RING if wins else LIBRARY)


@pytest.mark.parametrize("rounds", [1, 2, 5, 13])
def test_few_rounds_make_no_winner_of_an_equal(rounds):
    """For any number of rounds, about one of forty equal schedules is taken for faster, not one of five."""
    random = np.random.default_rng(rounds)

    def timed():
        return Outcome("x", tuple(np.exp(0.05 * random.standard_normal(rounds))), ())

    assert np.mean([beats([(timed(), timed()) for _ in range(2)]) for _ in range(1000)]) < 0.07


def test_a_drift_common_to_both_is_no_noise():
    drift = np.linspace(1, 3, 9)
    library, ours = (Outcome("x", tuple(s * drift), ()) for s in (1.0, 0.97))
    assert beats([(ours, library)])


def test_a_wrong_schedule_is_never_chosen():
    found = judge(entry(), [{LIBRARY: outcome(1.0), RING: outcome(0.1, wrong=3), TREE: outcome(0.5)}], {})
    assert found.schedule == TREE
    assert found.wrong == {RING: 3}
    assert taken([{LIBRARY: outcome(1.0), RING: outcome(0.1, wrong=3)}]) == LIBRARY


def test_a_library_that_is_slow_in_only_one_launch_is_not_beaten():
    ours, slow, quick = outcome(1.0), outcome(2.0), outcome(0.9)
    launches = [{LIBRARY: slow, RING: ours}, {LIBRARY: quick, RING: ours}]
    assert taken(launches) == LIBRARY
    assert taken(launches[:1] * 2) == RING
    assert taken(launches[:1] * 2, {RING: 1.0, LIBRARY: 0.9}) == LIBRARY


# On planted times


class Planted:
    """An executor whose runs take `seconds(bytes, family)`, and that records its jobs."""

    def __init__(self, seconds):
        self.seconds, self.jobs = seconds, []

    def execute(self, job: Job) -> JobResult:
        self.jobs.append(job)
        outcomes = []
        for each in job.variants:
            size, name = re.search(r"of (\d+) bytes.*: (\w+)", each.name).groups()
            seconds = self.seconds(int(size), name)
            outcomes.append(Outcome(each.name, (seconds,) * job.rounds, (), 0.0, 0.0, num_wrong=0))
        return JobResult(tuple(outcomes), job.rounds, 0, {"mpi": "planted", "host": "here"})


def test_the_contest_takes_the_fastest_at_each_size():
    asked = entries(*SIZES)
    least, middle, most = SIZES
    best = {least: "serial"} | {size: asked[at].listed[1].family for at, size in ((1, middle), (2, most))}
    executor = Planted(lambda size, name: 1e-5 if name == best[size] else 2e-5)
    found = contest(asked, executor)
    assert {each.entry.operator.num_bytes: each.schedule.family for each in found.judged} == best
    names = ["library", *list(best.values())[1:]]
    assert [selection_of(found).lookup("all_reduce", 4, size).algorithm for size in SIZES] == names
    assert found.judged[1].speedup == pytest.approx(2.0)
    assert all(each.check for each in executor.jobs[-LAUNCHES].variants)
    assert not any(each.check for each in executor.jobs[-1].variants)
    assert all(job.num_ranks == 4 for job in executor.jobs)


class Beside(Planted):
    """As Planted, but another program runs beside one launch of each final."""

    def execute(self, job: Job) -> JobResult:
        share = 0.3 if len(self.jobs) % 2 else 0.0
        return replace(super().execute(job), disturbed=4, load=Load(share, 0.0, "core 1", "core 1"))


def test_load_by_other_programs_is_reported_once():
    found = contest(entries(*SIZES), Beside(lambda *_: 1e-5))
    assert [row_of(each)["foreign_load"] for each in found.judged] == [0.3] * len(SIZES)
    assert [row_of(each)["steal"] for each in found.judged] == [0.0] * len(SIZES)
    assert found.notes == ("Other programs used 30 % of core 1: repeat on a quiet machine.",)


def test_a_spent_budget_leaves_sizes_out_and_reports_them():
    found = contest(entries(64, 16 << 20, 32 << 20), Planted(lambda *_: 1e-5), budget_s=0.0)
    assert [each.entry.operator.num_bytes for each in found.judged] == [64]
    assert str(16 << 20) in found.notes[0]


def test_a_contest_without_entries_raises():
    with pytest.raises(PlanError):
        contest([], Planted(lambda *_: 1e-5))


class Breaking(Planted):
    """An executor whose jobs fail if one of `names` runs."""

    def __init__(self, *names: str):
        super().__init__(lambda *_: 1e-5)
        self.names = names

    def execute(self, job: Job) -> JobResult:
        for each in job.variants:
            if any(name in each.name for name in self.names):
                raise RunError(f"rank 1 failed: variant '{each.name}', round 0: rank 1 stalled")
        return super().execute(job)


def test_a_schedule_that_breaks_its_job_is_left_out_and_named():
    names = "ring_all_reduce", "recursive_doubling_all_reduce"
    found = contest(entries(1024), Breaking(*names))
    assert found.judged[0].entry.operator.num_bytes == 1024
    assert not {schedule for schedule in found.judged[0].tried if schedule.family in names}
    assert [note.split(":")[0] for note in found.notes] == [
        f"{name} was left out for all_reduce of 1024 bytes, float32" for name in names[::-1]
    ]


def test_a_serial_schedule_that_breaks_the_job_raises():
    with pytest.raises(RunError, match="library"):
        contest(entries(1024), Breaking("library"))
    found = contest(entries(1024, 16 << 20), Breaking("16777216 bytes, float32: serial"))
    assert [each.entry.operator.num_bytes for each in found.judged] == [1024]
    assert "16777216" in found.notes[0]


@pytest.mark.parametrize(("alone_s", "wins"), [(0.5e-5, False), (2e-5, True), (9e-5, True)])
def test_a_helper_thread_must_beat_serial_at_the_level_of_serial(alone_s, wins):
    """Planted: serial takes 40 µs in jobs of the level that the helper thread needs, `alone_s` in a job of its own."""

    class OfMpi(Planted):
        starts_mpi = True

        def execute(self, job: Job) -> JobResult:
            self.seconds = lambda size, name: alone_s if len(job.variants) == 1 else times[name]
            return super().execute(job)

    times = {"serial": 4e-5, RING.family: 1e-5}
    found = contest([entry(1024, {replace(RING, progress="thread"): 1e-5})], OfMpi(None)).judged[0]
    assert found.keeps_serial is not wins
    assert found.serial.median_s == min(alone_s, 4e-5)


# How a budget is divided


def test_finalists_are_the_fastest_and_the_winners_of_neighbouring_sizes():
    a, b, c = (OPERATOR.by(name) for name in OPERATOR.families[1:4])
    tried = {1: {c: 1.0}, 2: {LIBRARY: 1.0, a: 2.0, b: 3.0}, 3: {}, 4: {b: 1.0}}
    all_four = [entry(size, {b: 1.0, c: 2.0}) for size in (1, 2, 3, 4, 5)]
    assert finalists(2, tried, all_four[2], all_four) == [a, b, c]
    assert finalists(3, tried, all_four[3], all_four) == [b, c, a]


def test_long_runs_get_the_time_that_short_ones_leave():
    assert fill([1.0, 9.0, 2.0], 8.0) == [1.0, 5.0, 2.0]
    schedules = [OPERATOR.by(name, channels) for name in OPERATOR.families[1:5] for channels in (1, 2)]
    asked = [entry(size, dict.fromkeys(schedules, size * 1e-8)) for size in (1024, 16 << 20)]
    measurer = Measurer(asked, Planted(lambda *_: 1.0), 0, 9)
    assert measurer.run_s(1) == pytest.approx(0.168, rel=0.01)
    measurer.fastest_s[0] = 2 * 1024e-8
    assert measurer.run_s(1) == pytest.approx(0.336, rel=0.01)  # predictions were wrong by a factor of two so far
    assert measurer.heat_s([0]) < 1.5 < measurer.heat_s([1])


def test_a_heat_beyond_the_budget_is_left_out():
    executor = Planted(lambda *_: 2.0)
    asked = [entry(16 << 20, {OPERATOR.by("ring_all_reduce", n): 1.0 + n for n in (1, 2, 4)})]
    measurer = Measurer(asked, executor, 0, 9)
    assert measurer.heat([0], 10.0) == {0: {}}
    assert not executor.jobs
    assert len(measurer.heat([0], 35.0)[0]) == 3  # the library and two algorithms
    assert (executor.jobs[0].warmup, executor.jobs[0].budget_s) == (0, 35.0)
