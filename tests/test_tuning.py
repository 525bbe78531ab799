"""What tuning decides once it has measured: the guard, the ideals, and the moves in simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from dovetail.cli.collectives import sizes_between
from dovetail.cli.telling import summary
from dovetail.cli.tune import print_result
from dovetail.cli.tuning import LEAST_GAIN_S, TuneResult, adjusted_ideals_s, choose, contention, fresh_seed, loses
from dovetail.core import WishError
from dovetail.cost import Curve, Segment
from dovetail.machine import Machine, load
from dovetail.matmul import MatmulAllReduce
from dovetail.plan import Plan, plan
from dovetail.plan.polish import climb
from dovetail.plan.refine import Measured, Tried, measure, measure_final
from dovetail.report.html import page
from dovetail.run.job import Job, JobResult, Outcome
from dovetail.run.load import Load

WISH = MatmulAllReduce(2048, 4096, 1024)


@pytest.fixture(scope="module")
def machine() -> Machine:
    return load("two-hosts-1gbit")


@pytest.fixture(scope="module")
def planned(machine: Machine) -> Plan:
    made = plan(WISH, machine, ranks=2, extrapolate=True)
    assert made.choices != made.serial
    return made


def measured(serial_s: float, planned_s: float, compute_s: float = 0.5, comm_s: float = 0.5) -> Measured:
    serial, chosen = (Outcome(name, (s,) * 9, ()) for name, s in (("serial", serial_s), ("planned", planned_s)))
    return Measured(serial, chosen, compute_s, comm_s, None, JobResult((serial, chosen), 9, 0))


@pytest.mark.parametrize(("planned_s", "lost"), [(0.5, False), (0.98, False), (0.995, True), (1.0, True), (1.2, True)])
def test_a_plan_must_beat_serial_by_more_than_the_noise(planned: Plan, planned_s: float, lost: bool) -> None:
    assert loses(planned, measured(1.0, planned_s)) is lost


def test_serial_itself_cannot_lose(planned: Plan, machine: Machine) -> None:
    serial = planned.with_choices(planned.serial, "serial", machine)
    assert "what is predicted to be faster was measured slower" in serial.explain()
    assert not loses(serial, measured(1.0, 1.5))


def test_a_gain_shorter_than_the_call_is_none(planned: Plan) -> None:
    assert loses(planned, measured(2 * LEAST_GAIN_S, 1.1 * LEAST_GAIN_S))


@pytest.mark.parametrize(("best_s", "schedule"), [(0.5, "optimal"), (0.99, "serial")])
def test_the_fastest_measured_is_chosen_unless_serial_is_as_good(
    planned: Plan, machine: Machine, best_s: float, schedule: str
) -> None:
    other = replace(planned.choices, tiles=(1024, 1024))
    tried = sorted([Tried("optimal", other, best_s), Tried("serial", planned.serial, 1.0)], key=lambda t: t.seconds)
    chosen = choose(planned, machine, tried, {})
    assert chosen.schedule == schedule
    assert chosen.choices == (other if schedule == "optimal" else planned.serial)
    assert chosen.certificate.ok


def test_adjusted_ideals_stretch_by_the_measured_factors(planned: Plan, machine: Machine) -> None:
    factors = {"cil:compute": 1.5, "cil:net": 1.25}
    flat = {key: Curve("bytes", (Segment(0, f, 0),), high=1e9, rising=False).to_json() for key, f in factors.items()}
    cil = contention(planned, machine.with_costs(flat))
    whole, shared = adjusted_ideals_s(measured(1.0, 0.8, 0.4, 0.4), cil)
    assert whole == pytest.approx(0.6)
    # for 0.5 s both go on: messages end, of compute 0.5 / 1.5 is done, and the rest takes 0.4 - 1/3 s more
    assert shared == pytest.approx(0.5 + 0.4 - 0.5 / 1.5)


def result_of(made: Plan, found: Measured, machine: Machine) -> TuneResult:
    return TuneResult(made, found, {}, 0.6, 0.5, machine, None, 7, found.result.load.warnings)


def test_ideal_gain_is_the_share_of_what_could_be_won(planned: Plan, machine: Machine) -> None:
    assert result_of(planned, measured(1.0, 0.6), machine).ideal_gain == pytest.approx(0.8)
    assert result_of(planned, measured(1.0, 0.6), machine).gain_of(0.2) == pytest.approx(0.5)
    assert result_of(planned, measured(0.5, 0.4), machine).ideal_gain == 0.0  # no room
    assert result_of(planned, measured(1.0, 1.1), machine).ideal_gain == 0.0  # asked for by name


def test_a_kept_serial_has_a_reason_and_no_gain(planned: Plan, machine: Machine, capsys) -> None:
    serial = planned.with_choices(planned.serial, "serial", machine)
    result = result_of(serial, measured(1.0, 1.28), machine)
    assert result.to_json()["ideal_gain"] is result.to_json()["shared_gain"] is None
    print_result(result)
    out = capsys.readouterr().out
    assert "; serial kept: what is predicted to be faster was measured slower." in out
    assert "-" not in "".join(line.split("%")[0] for line in out.splitlines() if "%" in line)


def test_a_kept_serial_says_where_there_was_nothing_to_hide(planned: Plan, machine: Machine, capsys) -> None:
    serial = planned.with_choices(planned.serial, "serial", machine)
    result = replace(result_of(serial, measured(1.0, 1.0), machine), adjusted_ideal_s=0.99, cil=(1.9, 1.7))
    print_result(result)
    assert "side by side compute takes 1.90 and messages 1.70 times as long here" in capsys.readouterr().out
    print_result(replace(result, adjusted_ideal_s=0.9))
    assert "side by side" not in capsys.readouterr().out


def test_what_stays_disturbed_is_told_everywhere(planned: Plan, machine: Machine, capsys) -> None:
    found = measured(1.0, 0.6)
    load = Load(0.474, 0.011, "core 1", "core 0")
    result = result_of(planned, replace(found, result=replace(found.result, load=load, disturbed=3)), machine)
    document, text = result.to_json(), "Other programs used 47 % of core 1: repeat on a quiet machine"
    assert (document["foreign_load"], document["steal"]) == (0.474, 0.011)
    assert text in document["notes"]
    print_result(result)
    out = capsys.readouterr().out
    assert "Medians of 9 rounds; 3 disturbed; 80 % of the ideal gain.\n" + text + ".\n" in out
    assert text in summary(result).notes
    assert text in page(title="x", summary=summary(result))


class Timed:
    """Each variant takes the seconds that are planted for it, round by round."""

    def __init__(self, *seconds: Sequence[float]) -> None:
        self.seconds = seconds

    def execute(self, job: Job) -> JobResult:
        rows = zip(job.variants, self.seconds, strict=True)
        return JobResult(tuple(Outcome(v.name, tuple(s), ()) for v, s in rows), len(self.seconds[0]), 0)


MOODS = (1.0, 2.1, 1.0, 2.0, 1.1, 2.2, 1.0, 2.0, 1.9)  # half of the rounds beside another program


def test_a_gain_is_seen_through_moods_of_rounds(planned: Plan) -> None:
    serial, chosen = (Outcome(name, tuple(s * m for m in MOODS), ()) for name, s in (("serial", 1.0), ("planned", 0.9)))
    found = Measured(serial, chosen, 0.5, 0.5, None, JobResult((serial, chosen), 9, 0))
    assert found.noise > 0.1
    assert not loses(planned, found)


def test_schedules_are_compared_within_rounds(planned: Plan) -> None:
    """By medians of all rounds the faster one would be slower by a fifth."""
    timed = Timed((1.0, 2.0, 1.0, 2.0, 1.5), (0.9, 1.8, 0.9, 1.8, 3.0))
    other = replace(planned.choices, tiles=(1024, 1024))
    first, second = measure(planned, timed, [("serial", planned.serial), ("optimal", other)], 4, 1)
    assert second.seconds / first.seconds == pytest.approx(0.9)


def test_serial_is_measured_once(planned: Plan, machine: Machine) -> None:
    serial = planned.with_choices(planned.serial, "serial", machine)
    found = measure_final(serial, Timed((1.0,) * 9, (0.5,) * 9, (0.4,) * 9))
    assert found.planned is found.serial


def test_climbing_never_loses_rows_and_never_gets_slower() -> None:
    def seconds(tiles: tuple[int, ...]) -> float:
        return sum(abs(rows - 24) for rows in tiles) + 3.0 * len(tiles)

    start = (64, 32, 96)
    found = climb(start, seconds, align=32, floor=8)
    assert sum(found) == sum(start)
    assert seconds(found) < seconds(start)
    assert min(found) >= 8
    assert climb(start, lambda tiles: 1.0, 32, 8) == start


def test_inputs_are_fresh_unless_a_seed_is_given() -> None:
    assert fresh_seed(7) == 7
    assert len({fresh_seed(None) for _ in range(5)}) > 1


@pytest.mark.parametrize("factor", [0.0, 1.0, float("nan"), float("inf")])
def test_sizes_that_do_not_grow_are_refused(factor: float) -> None:
    with pytest.raises(WishError, match="sizes must begin above 0 and grow"):
        sizes_between("1K", "64K", factor)


def test_no_size_comes_twice() -> None:
    assert sizes_between("2", "5", 1.2) == [2, 3, 4, 5]
