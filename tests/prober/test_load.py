"""Probes beside other load (simulated): they are repeated while this helps, and their costs are probed again later."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

import pytest
from sim_executor import SimExecutor, two_hosts

from dovetail.cli import main
from dovetail.collective.operators import AllReduce
from dovetail.cost import Curve
from dovetail.machine import Machine
from dovetail.matmul import MatmulAllReduce
from dovetail.prober import probe_links, probe_operator, programs, spot_check, spot_check_operator
from dovetail.prober.take import AGAIN, Budget, load_beside, probed_beside_load, take
from dovetail.run.job import Job, JobResult
from dovetail.run.load import LIMIT, Load
from dovetail.store.machines import costs_on, machine_item, recall_machine, save_machine
from dovetail.tuner import machines, tune
from dovetail.tuner.collectives import tune_collective
from dovetail.tuner.result import COMPUTE

QUICK = Budget(each_s=0.02, most=12)
OPERATOR = MatmulAllReduce(512, 96, 64)
ASKED = [programs.ping_pong(2, (0, 1), 1000, 4, "net")]


@dataclass(frozen=True)
class Beside(SimExecutor):
    """Runs job i beside `loads[i]`, further jobs beside the last; a load of 0.2 leaves 80 % of the speed."""

    loads: list[float] = field(default_factory=list)
    launched_by: str | None = None
    jobs: list[Job] = field(default_factory=list)

    def execute(self, job: Job) -> JobResult:
        load = self.loads[min(len(self.jobs), len(self.loads) - 1)]
        self.jobs.append(job)
        found = super().execute(job)
        stretched = tuple(
            replace(o, seconds=tuple(s / (1 - load) for s in o.seconds), timelines=tuple(o.timelines))
            for o in found.outcomes
        )
        return replace(found, outcomes=stretched, load=Load(load, 0.0, "core 0", "core 0"))


@pytest.mark.parametrize(
    ("loads", "jobs", "kept"),
    [
        ([0.0], 1, 0.0),
        ([LIMIT], 1, LIMIT),
        ([0.4, 0.0], 2, 0.0),  # the load is gone
        ([0.8, 0.3, 0.1], 3, 0.1),  # the load is ending
        ([0.4, 0.39], 2, 0.39),  # the load stays
        ([0.4, 0.6, 0.0], 2, 0.4),  # the load grows: the calmer result is kept
        ([0.9, 0.4, 0.1, 0.0], 1 + AGAIN, 0.1),  # no more than AGAIN repeats
    ],
)
def test_disturbed_jobs_are_repeated_while_this_helps(loads, jobs, kept) -> None:
    executor = Beside(two_hosts(), loads=loads)
    found = take(executor, ASKED)["p2p:net"]
    assert len(executor.jobs) == jobs
    assert found.provenance["foreign_load"] == kept


def test_the_hypervisor_counts_like_other_programs() -> None:
    class Stolen(Beside):
        def execute(self, job: Job) -> JobResult:
            found = super().execute(job)
            return replace(found, load=Load(None, found.load.foreign, "", "core 0"))

    executor = Stolen(two_hosts(), loads=[0.4, 0.0])
    assert take(executor, ASKED)["p2p:net"].provenance["steal"] == 0.0
    assert len(executor.jobs) == 2


def probed(*loads: float) -> Machine:
    executor = Beside(two_hosts(), loads=list(loads))
    return probe_operator(executor, probe_links(executor, 2, "found", QUICK), OPERATOR, 2, QUICK)


def test_a_machine_records_the_load_during_its_probes() -> None:
    calm, busy = probed(0.0), probed(0.3)
    assert not load_beside(calm.costs)
    assert not probed_beside_load(calm.costs)
    again = Machine.from_json(json.loads(json.dumps(busy.to_json())))
    found = load_beside(again.costs)
    assert {load.foreign for load in found.values()} == {0.3}
    assert {"p2p:net", "all_reduce:2", "cil:compute"} <= set(found)
    assert any(key.startswith("kernel:") for key in found)
    (text,) = probed_beside_load(again.costs)
    assert "30 % of the cores" in text


def test_a_machines_table_shows_the_load_during_its_probes(monkeypatch, tmp_path, capsys) -> None:
    """`dovetail probe` and `dovetail machines FILE` print the same table."""
    calm, reduce = two_hosts(), dict(two_hosts().costs["reduce"])
    busy = calm.with_costs({"reduce": reduce | {"provenance": {"foreign_load": 0.3, "steal": 0.0}}})
    for machine, expected in ((busy, True), (calm, False)):
        monkeypatch.setattr(machines, "machine_of", lambda *_, machine=machine, **__: machine)
        (tmp_path / "machine.json").write_text(json.dumps(machine.to_json()))
        for words in (["probe", "--ranks", "2"], ["machines", str(tmp_path / "machine.json")]):
            assert main(words) == 0
            said = " ".join(capsys.readouterr().out.split())
            assert ("Probed beside other load: reduce " in said) == expected
            assert ("(30 % of the cores); probe again on a calm machine." in said) == expected


def test_costs_probed_beside_load_are_probed_again_on_a_calm_machine() -> None:
    """But not while the load lasts, since the probe would be wasted."""
    busy, calm = Beside(two_hosts(), loads=[0.3]), Beside(two_hosts(), loads=[0.0])
    for check in (
        lambda executor, machine: spot_check(executor, machine, tolerance=9.0),
        lambda executor, machine: spot_check_operator(executor, machine, OPERATOR, 2, tolerance=9.0),
    ):
        assert [check(busy, probed(0.3)), check(calm, probed(0.3)), check(calm, probed(0.0))] == [True, False, True]


def doubled(machine: Machine, key: str) -> Machine:
    """Return the machine with one of its costs doubled."""
    curve = Curve.from_json(machine.costs[key])
    segments = tuple(s._replace(seconds=2 * s.seconds, slope=2 * s.slope, bend=2 * s.bend) for s in curve.segments)
    return machine.with_costs({key: replace(curve, segments=segments).to_json()})


def test_cached_costs_that_the_final_contradicts_are_probed_again_once(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("DOVETAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(machines, "spot_check", lambda *_: True)
    monkeypatch.setattr(machines, "spot_check_operator", lambda *_: True)
    executor, few = Beside(two_hosts(), loads=[0.0], launched_by="pretended"), {"max_tiles": 4, "seed": 7}
    operator = MatmulAllReduce(2048, 512, 512)

    def tuned(name: str, found=executor):
        return tune(operator, 2, out=tmp_path / name, executor=found, probing=QUICK, **few)

    assert not [note for note in tuned("right").notes if "probed costs" in note]
    links = machines.machine_of(executor, 2)
    place = costs_on(links, operator, 2)
    right = recall_machine(place)
    key = next(key for key in right.costs if key.startswith("kernel:"))
    save_machine(place, doubled(right, key))

    (said,) = [note for note in tuned("wrong").notes if COMPUTE in note]
    assert said.endswith("the next tune probes anew")
    assert not [note for note in tuned("anew").notes if "probed costs" in note]
    kept = recall_machine(place)
    assert kept.facts["doubted"] == "probed again"

    save_machine(place, doubled(kept, key))  # contradicted once more: not probed again
    (said,) = [note for note in tuned("still").notes if COMPUTE in note]
    assert said.endswith("with --fresh")
    disturbed = Beside(two_hosts(), loads=[0.3], launched_by="pretended")
    save_machine(place, doubled(right, key))
    assert not [note for note in tuned("busy", disturbed).notes if "probed costs" in note]  # the final is no evidence


def test_costs_of_operators_without_computation_are_doubted_too(tmp_path, monkeypatch) -> None:
    """Their final measures no computation alone; it compares the library and the chosen schedule with the costs."""
    monkeypatch.setenv("DOVETAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(machines, "spot_check", lambda *_: True)
    executor = Beside(two_hosts(), ahead=True, loads=[0.0], launched_by="pretended")
    operator, key = AllReduce(1 << 20), "all_reduce:2"
    short = AllReduce(1 << 10)  # one timing covers many runs, which overlap: no evidence about a single run

    def notes(name: str) -> list[str]:
        found = tune(operator, 2, out=tmp_path / name, executor=executor, probing=QUICK, seed=7).notes
        return [note for note in found if "probed costs" in note]

    def notes_of_sizes(name: str) -> list[str]:
        found = tune_collective([short, operator], 2, out=tmp_path / name, executor=executor, seed=7).notes
        return [note for note in found if "probed costs" in note]

    assert not notes("right")
    assert not notes_of_sizes("right sizes")
    links = machines.machine_of(executor, 2)
    own, shared = costs_on(links, operator, 2), machine_item("pretended", 2)
    library = f"{operator.title} by the library"
    for path, look, name in ((own, notes, "communication alone"), (shared, notes_of_sizes, library)):
        right = recall_machine(path)
        save_machine(path, doubled(right, key))
        (said,) = look("wrong")
        assert said.startswith(f"{name} took ")
        assert said.endswith("the next tune probes anew")
