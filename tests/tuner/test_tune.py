"""tune on a simulated machine: probe to report, the noise guard, the ideals, and what a tuning prints and writes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from sim_executor import SimExecutor, two_hosts

from dovetail.cli.tune import print_tuned, verdict
from dovetail.core import DovetailError, EnvironmentFault, json_text
from dovetail.cost import Curve, Segment
from dovetail.ir import Schedule
from dovetail.machine import Machine, load
from dovetail.matmul import MatmulAllReduce
from dovetail.planner import Plan, plan, search
from dovetail.planner.costs import Costs
from dovetail.planner.explain import explain
from dovetail.planner.rival import MEASURED_SLOWER, WITHIN_NOISE, Rival
from dovetail.report import summary_table
from dovetail.report.html import page
from dovetail.report.tuning import summary, write_tuning
from dovetail.run.job import Job, JobResult, Outcome
from dovetail.run.load import Load
from dovetail.tuner import TuneResult, neighbourhood, tune
from dovetail.tuner.contest import LEAST_GAIN_S, Judged, contest, fastest, judge
from dovetail.tuner.doubts import Contradiction, note_doubts
from dovetail.tuner.losses import adjusted_ideals_s, measured_losses, stretch
from dovetail.tuner.measure import Clock, Measurer
from dovetail.tuner.result import COMPUTE, MESSAGES, OWN
from dovetail.tuner.tune import beside_serial, chosen, entry_of, fresh_seed

OPERATOR = MatmulAllReduce(2048, 4096, 1024)
FEW = {"align": 128, "max_tiles": 6}  # its search takes milliseconds


@pytest.fixture(scope="module")
def machine() -> Machine:
    return load("two-hosts-1gbit")


@pytest.fixture(scope="module")
def planned(machine: Machine) -> Plan:
    made = plan(OPERATOR, machine, ranks=2, extrapolate=True)
    assert made.schedule != made.serial
    return made


@pytest.fixture(scope="module")
def costs(machine: Machine) -> Costs:
    return Costs.of(OPERATOR, machine, 2, extrapolate=True)[0]


@pytest.fixture(scope="module")
def serial(planned: Plan, costs: Costs) -> Plan:
    """The plan of the serial schedule."""
    return search.with_schedule(planned, planned.serial, costs)


# From probe to report


@dataclass(frozen=True)
class Slow(SimExecutor):
    """Every schedule but serial takes twice the predicted time."""

    def execute(self, job: Job) -> JobResult:
        found = super().execute(job)
        slower = [
            replace(o, seconds=tuple(2 * s for s in o.seconds)) if "exchange" in o.name or "ring" in o.name else o
            for o in found.outcomes
        ]
        return replace(found, outcomes=tuple(slower))


@pytest.fixture(scope="module")
def tuned(tmp_path_factory) -> TuneResult:
    executor = SimExecutor(two_hosts(), noise=0.01)
    return tune(OPERATOR, 2, out=tmp_path_factory.mktemp("tuned"), executor=executor, seed=7, **FEW)


def test_tune_finds_proves_and_saves_the_faster_schedule(tuned: TuneResult) -> None:
    assert tuned.plan.certificate.ok
    assert not tuned.keeps_serial
    assert tuned.plan.schedule == tuned.judged.schedule
    assert tuned.planned.median_s < 0.8 * tuned.serial.median_s
    assert tuned.ideal_gain is not None
    assert 0.6 < tuned.ideal_gain <= 1.0
    assert tuned.plan.predicted_s == pytest.approx(tuned.planned.median_s, rel=0.1)  # the probe found the machine
    assert set(tuned.judged.beside) >= {COMPUTE, MESSAGES}
    assert sum(tuned.losses.values()) == pytest.approx(tuned.planned.timelines[0].makespan_s - tuned.ideal_s)


def test_tune_writes_plan_and_timelines(tmp_path) -> None:
    said: list[float] = []
    executor = SimExecutor(two_hosts())
    found = tune(OPERATOR, 2, out=tmp_path, executor=executor, seed=7, say=lambda what, done: said.append(done), **FEW)
    assert {path.name for path in tmp_path.iterdir()} == {
        "plan.json",
        "machine.json",
        "predicted.json",
        "measured.json",
        "tune.json",
    }
    kept = Plan.from_json(json.loads((tmp_path / "plan.json").read_text()))
    assert kept.schedule == found.plan.schedule
    assert json.loads((tmp_path / "tune.json").read_text())["report"] == ""
    assert said == sorted(said)


def test_a_family_asked_for_by_name_is_measured_and_taken(tmp_path) -> None:
    executor = SimExecutor(two_hosts())
    found = tune(OPERATOR, 2, out=tmp_path, executor=executor, seed=7, schedule="uniform", by="library", max_tiles=3)
    assert (found.plan.family, found.plan.schedule["by"]) == ("uniform", "library")
    assert len(found.plan.tiles) <= 3
    assert OWN not in found.judged.beside
    assert set(found.judged.tried) == {found.plan.schedule, found.plan.serial}


def test_planted_fault_a_slower_schedule_is_not_taken(tmp_path) -> None:
    found = tune(OPERATOR, 2, out=tmp_path, executor=Slow(two_hosts()), seed=7, **FEW)
    assert found.plan.schedule["by"] == "library"
    by_ours = [rival for rival in found.plan.rivals if rival.schedule["by"] != "library" and rival.measured_s]
    assert by_ours
    assert all(rival.measured_s > found.planned.median_s for rival in by_ours)


def test_serial_is_kept_where_overlap_only_hurts(tmp_path) -> None:
    executor = SimExecutor(two_hosts(cil=4.0))
    found = tune(OPERATOR, 2, out=tmp_path, executor=executor, seed=7, by="library", **FEW)
    assert found.keeps_serial
    assert (found.ideal_gain, found.speedup) == (None, 1.0)


def test_on_one_rank_nothing_slower_than_serial_is_taken(tmp_path) -> None:
    one = replace(two_hosts(), ranks=1, nodes=(0,), links=())
    found = tune(MatmulAllReduce(64, 64, 64), 1, out=tmp_path, executor=SimExecutor(one), machine=one, seed=7)
    assert found.keeps_serial  # two tiles hide a copy of microseconds, less than a clock resolves
    assert found.plan.tiles == (64,)


def slowed(machine: Machine, factor: float, *names: str) -> Machine:
    """Return the machine with these costs `factor` times as high."""
    known = {name: Curve.from_json(machine.costs[name]) for name in names}
    slow = {
        name: replace(
            curve, segments=tuple(Segment(x, factor * s, factor * slope) for x, s, slope, _ in curve.segments)
        )
        for name, curve in known.items()
    }
    return machine.with_costs({name: curve.to_json() for name, curve in slow.items()})


def losses_of(now: Machine, probed: Machine, schedule: str, by: str) -> tuple[Judged, dict[str, float]]:
    """Return a final on the machine `now`, and its losses by the costs of the machine `probed`."""
    made = plan(OPERATOR, probed, ranks=2, schedule=schedule, by=by, max_tiles=3, extrapolate=True)
    found = contest([entry_of(made, schedule)], SimExecutor(now), keep=True, budget_s=0.0, seed=7).judged[0]
    return found, measured_losses(made, found, probed)


@pytest.mark.parametrize(("compute", "comm"), [(1.6, 1.0), (0.7, 2.0), (1.0, 0.6)])
def test_a_serial_run_loses_nothing_by_cutting_or_contention(compute: float, comm: float) -> None:
    """Also if the machine's speed changed since its costs were probed."""
    now = slowed(slowed(two_hosts(), compute, "flops:matmul:float32"), comm, "all_reduce:2")
    found, lost = losses_of(now, two_hosts(), "serial", "library")
    assert lost["dil"] == 0
    assert lost["cil"] == pytest.approx(0, abs=1e-9)
    ideal_s = max(found.beside[COMPUTE], found.beside[MESSAGES])
    assert math.fsum(lost.values()) == pytest.approx(found.serial.timelines[0].makespan_s - ideal_s)


@pytest.mark.parametrize("by", ["library", "ring"])
def test_a_change_of_speed_does_not_count_as_a_loss_by_cutting(by: str) -> None:
    """On a machine twice as slow as probed, every loss is twice as long."""
    speeds = "flops:matmul:float32", "p2p:tcp", "exchange:tcp", "reduce", "all_reduce:2"
    (_, calm), (_, slow) = (losses_of(slowed(two_hosts(), x, *speeds), two_hosts(), "uniform", by) for x in (1.0, 2.0))
    assert calm["dil"] > 0
    assert slow == pytest.approx({name: 2 * seconds for name, seconds in calm.items()}, rel=1e-3, abs=1e-6)


def test_json_has_the_documented_keys(tuned: TuneResult) -> None:
    document = tuned.to_json()
    assert (next(iter(document)), document["schema"]) == ("schema", "dovetail.tune/2")
    keys = {"schedule", "tiles", "steps", "predicted_s", "serial_s", "ideal_s", "losses", "rivals", "machine"}
    keys |= {"measured_s", "ideal_gain", "foreign_load", "steal", "max_rel_error", "report"}
    assert keys <= set(document)
    assert document["serial_s"] == tuned.serial.median_s
    assert document["predicted_serial_s"] == tuned.plan.serial_s


def test_a_saved_result_can_be_loaded(tuned: TuneResult, tmp_path) -> None:
    place = tuned.save(tmp_path)
    for path in (tmp_path, place):
        found = TuneResult.load(path)
        assert json_text(found.to_json()) == json_text(tuned.to_json())
        assert json_text(found.machine.to_json()) == json_text(tuned.machine.to_json())
        assert repr(found) == repr(tuned)
        assert "\n" not in repr(tuned)
        assert (found.judged.tried, found.keeps_serial) == (tuned.judged.tried, False)
        assert found.planned.timelines[0].makespan_s == tuned.planned.timelines[0].makespan_s


def test_errors_of_a_damaged_result_name_the_file(tuned: TuneResult, tmp_path) -> None:
    document = json.loads(tuned.save(tmp_path).read_text())
    del document["final"]["tried"]
    (tmp_path / "tune.json").write_text(json.dumps(document))
    with pytest.raises(DovetailError, match=r"tune .*/tune\.json: malformed tune document\n.*'tried'"):
        TuneResult.load(tmp_path)
    (tmp_path / "plan.json").unlink()
    with pytest.raises(DovetailError, match=r"cannot read plan .*/plan\.json"):
        TuneResult.load(tmp_path)


# What a tuning prints and writes


def test_the_page_and_its_path(tuned: TuneResult, tmp_path) -> None:
    found = write_tuning(tuned, tmp_path, "dovetail tune …")
    assert found.report == tmp_path / "report.html"
    assert "dovetail tune …" in found.report.read_text()
    assert json.loads((tmp_path / "tune.json").read_text())["report"] == str(found.report)
    assert verdict(found) == 0


def test_only_the_page_is_lost_if_it_cannot_be_written(tuned: TuneResult, tmp_path) -> None:
    (tmp_path / "full").write_text("in the way")
    found = write_tuning(tuned, tmp_path / "full")
    assert found.report is None
    assert found.notes[0].startswith("the report is incomplete: cannot write")
    with pytest.raises(EnvironmentFault, match="the report is incomplete"):
        verdict(found)


def test_rows_are_serial_planned_rivals_ideal(tuned: TuneResult) -> None:
    rows = summary(tuned).rows
    assert [row.schedule for row in (rows[0], rows[1], rows[-1])] == ["serial", tuned.plan.family, "ideal"]
    assert [row.chosen for row in rows].count(True) == 1
    assert rows[1].chosen
    assert rows[1].measured_s == tuned.planned.median_s
    assert not any(row.schedule.startswith("serial") for row in rows[1:])
    measured = [rival.measured_s for rival in tuned.plan.rivals if rival.measured_s]
    assert len(measured) >= 2
    assert set(measured) <= {row.measured_s for row in rows} | set(tuned.judged.tried.values())
    assert [entry.label for entry in summary(tuned).losses] == ["predicted", "measured"]


def test_a_wrong_result_is_reported(tuned: TuneResult, capsys) -> None:
    taken = replace(tuned.planned, max_rel_error=0.5, tolerance=1e-3)
    result = replace(tuned, judged=replace(tuned.judged, taken=taken))
    assert verdict(result) == 1
    assert "is wrong: error 0.5, 0.001 allowed" in capsys.readouterr().err


# The guard


def outcome(name: str, *seconds: float) -> Outcome:
    return Outcome(name, seconds if len(seconds) > 1 else seconds * 9, ())


def judged(made: Plan, serial_s: float, planned_s: float, **known: object) -> Judged:
    """Return the final in which serial and the plan took these seconds."""
    entry, both = entry_of(made, "auto"), {made.serial: outcome("serial", serial_s)}
    if made.schedule != made.serial:
        both[made.schedule] = outcome("planned", planned_s)
    sides = {COMPUTE: 0.5, MESSAGES: 0.5}
    return replace(judge(entry, [both], {}), beside=sides, rounds=9, **known)


@pytest.mark.parametrize(("planned_s", "lost"), [(0.5, False), (0.98, False), (0.995, True), (1.0, True), (1.2, True)])
def test_a_plan_must_beat_serial_by_more_than_the_noise(planned: Plan, planned_s: float, lost: bool) -> None:
    assert judged(planned, 1.0, planned_s).keeps_serial is lost


def test_a_serial_plan_is_always_kept(serial: Plan) -> None:
    assert "the schedules predicted to be faster were measured slower" in explain(serial)
    assert judged(serial, 1.0, 1.5).speedup == 1.0


def test_a_gain_shorter_than_the_call_does_not_count(planned: Plan) -> None:
    assert judged(planned, 2 * LEAST_GAIN_S, 1.1 * LEAST_GAIN_S).keeps_serial
    assert not judged(planned, 2e3 * LEAST_GAIN_S, 1.1e3 * LEAST_GAIN_S).keeps_serial


@pytest.mark.parametrize(("best_s", "family"), [(0.5, "optimal"), (0.99, "serial")])
def test_the_fastest_measured_is_chosen_unless_serial_is_as_good(
    planned: Plan, costs: Costs, best_s: float, family: str
) -> None:
    other = planned.schedule.with_parameters(tiles=(1024, 1024))
    launch = {planned.serial: outcome("serial", 1.0), other: outcome("other", best_s)}
    best = chosen(planned, judge(entry_of(planned, "auto"), [launch], {}), costs)
    assert best.family == family
    assert best.schedule == (other if family == "optimal" else planned.serial)
    assert best.certificate.ok


MOODS = (1.0, 2.1, 1.0, 2.0, 1.1, 2.2, 1.0, 2.0, 1.9)  # another program ran during half of the rounds


def test_a_gain_is_found_although_rounds_differ_in_speed(planned: Plan) -> None:
    both = [outcome(name, *(s * m for m in MOODS)) for name, s in (("serial", 1.0), ("planned", 0.9))]
    assert both[0].spread > 0.1
    found = judge(entry_of(planned, "auto"), [dict(zip((planned.serial, planned.schedule), both, strict=True))], {})
    assert not found.keeps_serial


def test_a_gain_that_few_rounds_leave_open_is_reported(planned: Plan) -> None:
    """The note gives the reason. There is no note if all rounds were made, or if no schedule was faster."""
    entry = entry_of(planned, "optimal")

    def notes(*planned_s: float, asked: int = 9) -> tuple[str, ...]:
        sides = [(0.5,) * len(planned_s)] * len(entry.beside)
        executor = Timed((1.0,) * len(planned_s), planned_s, *sides)
        found = contest([entry], executor, rounds=asked, budget_s=0.0)
        assert found.judged[0].keeps_serial
        return found.notes

    (reported,) = notes(0.5, 0.98)
    assert "took 26% less than serial at the median, but 6 rounds are too few" in reported
    assert notes(0.5, 0.98, asked=6) == notes(1.1, 0.98) == ()


# The measured variants


class Timed:
    """An executor in which each variant takes planted seconds, round by round."""

    def __init__(self, *seconds: Sequence[float]) -> None:
        self.seconds, self.jobs = seconds, list[Job]()

    def execute(self, job: Job) -> JobResult:
        self.jobs.append(job)
        rows = zip(job.variants, self.seconds, strict=True)
        return JobResult(tuple(Outcome(v.name, tuple(s), ()) for v, s in rows), len(self.seconds[0]), 0)


def test_schedules_are_compared_within_rounds(planned: Plan) -> None:
    """By medians over all rounds the faster schedule would seem 20 % slower."""
    entry = entry_of(planned, "auto")
    other = planned.schedule.with_parameters(tiles=(1024, 1024))
    heat = {
        planned.serial: outcome("serial", 1.0, 2.0, 1.0, 2.0, 1.5),
        other: outcome("other", 0.9, 1.8, 0.9, 1.8, 3.0),
    }
    measurer = Measurer([entry], Timed(), seed=1, rounds=9)
    tried = neighbourhood.search(measurer, 0, heat, Clock(0.0), lambda what, done: None)
    assert tried[other] / tried[planned.serial] == pytest.approx(0.9)


def test_serial_is_measured_once(serial: Plan) -> None:
    timed = Timed((1.0,) * 9, (0.5,) * 9, (0.4,) * 9)
    found = contest([entry_of(serial, "serial")], timed, keep=True, budget_s=0.0).judged[0]
    assert found.taken is found.serial
    assert (found.beside[COMPUTE], found.beside[MESSAGES]) == (0.5, 0.4)
    assert {len(job.variants) for job in timed.jobs} == {3}


def test_the_best_predicted_serial_and_both_sides_are_measured(planned: Plan) -> None:
    entry = entry_of(planned, "auto")
    assert entry.listed[0] == planned.schedule
    assert entry.serial not in entry.listed
    assert 2 <= len(entry.listed) <= 5
    assert set(entry.listed) <= {planned.schedule, *(rival.schedule for rival in planned.rivals)}
    assert entry_of(planned, "optimal").listed == (planned.schedule,)
    assert set(entry.beside) == {COMPUTE, MESSAGES} | ({OWN} if planned.schedule["by"] != "library" else set())


def test_a_stall_lasts_several_times_the_longest_prediction(planned: Plan) -> None:
    slow = entry_of(replace(planned, serial_s=100.0), "auto")
    for schedule in (slow.serial, planned.schedule, planned.schedule.with_parameters(tiles=(1024, 1024))):
        assert slow.variant(schedule).options.stall_s > 300


def test_the_job_of_run_has_serial_and_the_plan(planned: Plan) -> None:
    job = beside_serial(planned, rounds=3)
    assert [variant.name for variant in job.variants] == ["serial", "planned"]
    assert job.variants[0].program == OPERATOR.program(planned.serial, 2)
    assert planned.serial["by"] == "library"
    assert job.variants[1].program == planned.program
    assert all(variant.check and variant.options.spans for variant in job.variants)
    assert job.rounds == 3


# Ideals and sentences


def test_adjusted_ideals_use_the_measured_slowdowns(planned: Plan, machine: Machine) -> None:
    factors = {"cil:compute": 1.5, "cil:net": 1.25}
    flat = {key: Curve("bytes", (Segment(0, f, 0),), high=1e9, rising=False).to_json() for key, f in factors.items()}
    cil = stretch(planned, machine.with_costs(flat))
    whole, shared = adjusted_ideals_s(0.4, 0.4, cil)
    assert whole == pytest.approx(0.6)
    # both run for 0.5 s, until messages end; by then 0.5 / 1.5 s of compute are done, and 0.4 - 1/3 s are left
    assert shared == pytest.approx(0.5 + 0.4 - 0.5 / 1.5)


def result_of(made: Plan, found: Judged, machine: Machine) -> TuneResult:
    notes = tuple(f"{text}." for text in found.load.warnings)
    return TuneResult(made, found, {}, {}, 0.6, 0.5, machine, 7, notes)


def kept(made: Plan, serial_s: float, planned_s: float) -> Judged:
    """Return the final of a schedule that is taken in any case, because it was asked for by name."""
    entry = entry_of(made, "optimal")
    both = {made.serial: outcome("serial", serial_s), made.schedule: outcome("planned", planned_s)}
    return replace(judge(entry, [both], {}, keep=True), beside={COMPUTE: 0.5, MESSAGES: 0.5}, rounds=9)


def test_ideal_gain_is_the_share_of_the_possible_gain(planned: Plan, machine: Machine) -> None:
    assert result_of(planned, judged(planned, 1.0, 0.6), machine).ideal_gain == pytest.approx(0.8)
    assert result_of(planned, judged(planned, 1.0, 0.6), machine).gain_of(0.2) == pytest.approx(0.5)
    assert result_of(planned, kept(planned, 0.5, 0.5), machine).ideal_gain == 0.0  # nothing to gain
    assert result_of(planned, kept(planned, 1.0, 1.1), machine).ideal_gain == 0.0  # asked for by name


def test_no_share_is_printed_of_a_disturbed_ideal(planned: Plan, machine: Machine) -> None:
    """The schedule took 0.2 s, its computation alone 0.5 s: overlap cannot do that, so no share is attributed to it."""
    result = result_of(planned, judged(planned, 1.0, 0.2), machine)
    document, shown = result.to_json(), summary(result)
    assert document["ideal_gain"] is document["adjusted_gain"] is document["shared_gain"] is None
    assert "The chosen schedule took 200.0 ms, the longer of its parts alone 500.0 ms" in document["notes"][-1]
    assert "the parts alone were disturbed" in document["notes"][-1]
    assert [row.ideal_gain for row in shown.rows] == [None] * len(shown.rows)
    assert "perfect overlap" not in summary_table(shown)
    assert replace(result, seed=8).notes == result.notes  # once
    assert summary(result_of(planned, judged(planned, 1.0, 0.499), machine)).rows[-1].why == "perfect overlap"


def test_own_messages_may_be_faster_than_the_library(planned: Plan, machine: Machine) -> None:
    final = judged(planned, 1.0, 0.45)
    faster = replace(final, beside={COMPUTE: 0.4, MESSAGES: 0.5, OWN: 0.4})
    assert planned.schedule["by"] != "library"
    assert result_of(planned, faster, machine).ideal_gain == pytest.approx(1.1)
    assert result_of(planned, final, machine).ideal_gain is None


def test_on_one_rank_no_gain_is_called_overlap(machine: Machine) -> None:
    one = replace(two_hosts(), ranks=1, nodes=(0,), links=())
    made = plan(MatmulAllReduce(64, 64, 64), one, ranks=1, schedule="uniform", max_tiles=2, extrapolate=True)
    result = result_of(made, kept(made, 1.0, 0.6), machine)
    shown = summary(result)
    assert result.to_json()["ideal_gain"] is None
    assert not result.is_ideal_disturbed
    assert [row.ideal_gain for row in shown.rows] == [None] * len(shown.rows)
    assert "overlap" not in shown.rows[1].why
    assert shown.rows[-1].why == "one rank: nothing to overlap"


def test_a_kept_serial_has_a_reason_and_no_gain(serial: Plan, machine: Machine, capsys) -> None:
    result = result_of(serial, judged(serial, 1.0, 1.0), machine)
    assert result.to_json()["ideal_gain"] is result.to_json()["shared_gain"] is None
    print_tuned(result)
    out = capsys.readouterr().out
    assert "; serial kept: the schedules predicted to be faster were measured slower." in out
    assert "-" not in "".join(line.split("%")[0] for line in out.splitlines() if "%" in line)


def test_a_schedule_faster_within_the_noise_is_not_called_slower(planned: Plan, costs, machine, capsys) -> None:
    found = judged(planned, 1.0, 0.995)
    kept = chosen(planned, found, costs)
    assert kept.schedule == planned.serial
    assert kept.rivals[0].why_not == WITHIN_NOISE
    print_tuned(result_of(kept, found, machine))
    assert "serial kept: no schedule was faster by more than the noise" in capsys.readouterr().out
    assert "Serial is kept: no schedule was faster by more than the noise" in explain(kept)
    assert chosen(planned, judged(planned, 1.0, 1.2), costs).rivals[0].why_not == MEASURED_SLOWER


def test_a_rival_that_seems_faster_names_the_job_that_timed_it(planned: Plan, costs, machine) -> None:
    """The table mixes figures of heats and final, so a row has its time in the heats, scaled by the winner's."""
    rival = next(each.schedule for each in planned.rivals if not each.schedule.is_serial)
    final = judged(planned, 1.0, 0.6)
    for rival_s, why in (
        (0.55, "measured slower in the first round"),
        (0.45, "slower in the final; this is the first round"),
    ):
        heats = {planned.serial: 0.9, planned.schedule: 0.5, rival: rival_s}
        found = replace(planned.with_measured(heats), rivals=(Rival("other", rival, 0.4, MEASURED_SLOWER, rival_s),))
        rows = summary(result_of(found, replace(final, tried=heats), machine)).rows
        (other,) = (row for row in rows if row.schedule == "other")
        assert other.why == why
        assert other.measured_s == pytest.approx(rival_s * 0.6 / 0.5), "the plan took 0.5 s in the heats, now 0.6 s"
    assert summary(result_of(found, final, machine)).notes[0].startswith("1.67 times as fast as serial.")
    same = replace(found, rivals=(Rival("other", rival, 0.4, MEASURED_SLOWER, 0.7),))
    rows = summary(result_of(same, final, machine)).rows
    assert next(row.why for row in rows if row.schedule == "other") == MEASURED_SLOWER


def test_a_kept_serial_reports_if_there_was_nothing_to_hide(serial: Plan, machine: Machine, capsys) -> None:
    result = replace(result_of(serial, judged(serial, 1.0, 1.0), machine), adjusted_ideal_s=0.99, cil=(1.9, 1.7))
    print_tuned(result)
    assert "at the same time, compute takes 1.90 and messages 1.70 times as long here" in capsys.readouterr().out
    print_tuned(replace(result, adjusted_ideal_s=0.9))
    assert "at the same time" not in capsys.readouterr().out


def test_a_kept_serial_reports_that_messages_take_little(serial: Plan, machine: Machine, capsys) -> None:
    kept = judged(serial, 1.0, 1.0)
    result = result_of(serial, replace(kept, beside={**kept.beside, COMPUTE: 0.99}), machine)
    print_tuned(replace(result, adjusted_ideal_s=0.995, cil=(1.4, 2.0)))
    out = capsys.readouterr().out
    assert "of 1.00 s perfect overlap would hide 10.0 ms" in out
    assert "at the same time" not in out


def test_lasting_disturbance_is_reported_everywhere(planned: Plan, machine: Machine, capsys) -> None:
    load = Load(0.474, 0.011, "core 1", "core 0")
    result = result_of(planned, judged(planned, 1.0, 0.6, load=load, disturbed=3), machine)
    document, text = result.to_json(), "Other programs used 47 % of core 1: repeat on a quiet machine."
    assert (document["foreign_load"], document["steal"]) == (0.474, 0.011)
    assert text in document["notes"]
    print_tuned(result)
    out = capsys.readouterr().out
    assert "Medians of 9 rounds; 3 disturbed; 80 % of the ideal gain.\n" + text + "\n" in out
    assert text in summary(result).notes
    assert text in page(title="x", summary=summary(result))


def test_contradicted_costs_are_reported_in_readable_units() -> None:
    (text,) = note_doubts([Contradiction(COMPUTE, 3.66e-05, 0.0976)], {})
    assert text == ("compute alone took 97.6 ms, the probed costs say 36.6 µs: probe on a calm machine, with --fresh")


def test_inputs_are_fresh_unless_a_seed_is_given() -> None:
    assert fresh_seed(7) == 7
    assert len({fresh_seed(None) for _ in range(5)}) > 1


def test_schedules_are_printed_in_plain_words() -> None:
    assert str(Schedule.of("optimal", tiles=(4,), by="ring")) == "optimal, 1 tile, ring"


def test_the_order_of_equally_fast_schedules_is_arbitrary() -> None:
    """They may differ only in how progress is made, which their names do not show."""
    serial, one = Schedule.of("serial"), Schedule.of("uniform", tiles=(1, 1))
    known = {serial: 1.0, one: 0.5, replace(one, progress="thread"): 0.5, replace(one, block_rows=1): 0.25}
    assert [known[each] for each in fastest(known, serial)] == [0.25, 0.5, 0.5]
