"""What tuning decides once it has measured: the guard, the ideals, and the moves in simulation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dovetail.cli.collectives import sizes_between
from dovetail.cli.tuning import LEAST_GAIN_S, adjusted_ideals_s, choose, fresh_seed, loses
from dovetail.core import WishError
from dovetail.cost import Curve, Segment
from dovetail.machine import Machine, load
from dovetail.matmul import MatmulAllReduce
from dovetail.plan import Plan, plan
from dovetail.plan.polish import climb
from dovetail.plan.refine import Measured, Tried
from dovetail.run.job import JobResult, Outcome

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
    whole, shared = adjusted_ideals_s(planned, measured(1.0, 0.8, 0.4, 0.4), machine.with_costs(flat))
    assert whole == pytest.approx(0.6)
    # for 0.5 s both go on: messages end, of compute 0.5 / 1.5 is done, and the rest takes 0.4 - 1/3 s more
    assert shared == pytest.approx(0.5 + 0.4 - 0.5 / 1.5)


def test_ideal_gain_is_the_share_of_what_could_be_won() -> None:
    assert measured(1.0, 0.6).ideal_gain == pytest.approx(0.8)
    assert measured(1.0, 1.1).ideal_gain == pytest.approx(-0.2)


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
