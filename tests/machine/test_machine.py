"""Machine: JSON round trips, errors for invalid documents, presets that reproduce the numbers of their source."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dovetail.core import DovetailError, MachineError
from dovetail.cost import CostModel, Curve
from dovetail.machine import SWITCH, Link, Machine, load, presets

LINE = Curve.through([0, 100], [1e-6, 2e-6]).to_json()


def pair(**changes: object) -> Machine:
    fields = {"name": "pair", "ranks": 2, "nodes": (0, 1), "links": (Link(0, 1, "tcp"), Link(1, 0, "tcp"))}
    return Machine(**{**fields, **changes})


def test_a_machine_survives_a_round_trip() -> None:
    machine = pair(costs={"p2p:tcp": LINE}, facts={"mpi": "mpich"}, provenance={"label": "measured"})
    assert Machine.from_json(json.loads(json.dumps(machine.to_json()))) == machine


def test_more_costs_make_another_machine() -> None:
    first = pair(costs={"copy": LINE})
    second = first.with_costs({"reduce": LINE}, blas="openblas")
    assert sorted(second.costs) == ["copy", "reduce"]
    assert second.facts == {"blas": "openblas"}
    assert sorted(first.costs) == ["copy"]
    assert first != second


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "needs a name"),
        ({"ranks": 0}, "at least 1"),
        ({"ranks": True, "nodes": (0,), "links": ()}, "whole number"),
        ({"ranks": 3}, "2 nodes, 3 ranks"),
        ({"nodes": (0, -2)}, "numbered from 0"),
        ({"links": (Link(0, 1, "tcp"),)}, "no links lead from node 1 to node 0"),
        ({"links": (Link(0, 1, "tcp"), Link(0, 1, "shm"), Link(1, 0, "tcp"))}, "given twice"),
        ({"links": (Link(0, 7, "tcp"),)}, "ends at node 7"),
        ({"links": (Link(0, 1, ""), Link(1, 0, "tcp"))}, "needs a kind"),
        ({"costs": {"p2p": LINE}}, "unknown cost 'p2p'"),
        ({"costs": {"p3p:tcp": LINE}}, "did you mean 'p2p'"),
        ({"costs": {"cil:memory": LINE}}, "unknown cost 'cil:memory'"),
        ({"costs": {"cil:net:wire": LINE}}, "unknown cost 'cil:net:wire'"),
        ({"costs": {"all_reduce:0": LINE}}, "unknown cost"),
        ({"costs": {"copy": {"schema": "dovetail.plan/1"}}}, "not a dovetail.curve/1 document"),
    ],
)
def test_faults_of_a_machine_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(MachineError, match=message):
        pair(**changes)


@pytest.mark.parametrize("field", ["name", "ranks", "nodes", "links"])
def test_a_missing_field_is_named(field: str) -> None:
    document = pair().to_json()
    del document[field]
    with pytest.raises(MachineError, match=f"no field '{field}'"):
        Machine.from_json(document)


def test_a_document_of_another_kind_is_refused() -> None:
    with pytest.raises(DovetailError, match=r"dovetail\.machine/1"):
        Machine.from_json({**pair().to_json(), "schema": "dovetail.machine/2"})
    with pytest.raises(MachineError, match="a link is"):
        Machine.from_json({**pair().to_json(), "links": [[0, 1]]})
    with pytest.raises(MachineError, match="malformed"):
        Machine.from_json({**pair().to_json(), "nodes": 3})


def test_routes_use_the_direct_link_or_the_switch() -> None:
    hub = tuple(Link(*ends, "tcp") for node in (0, 1, 2) for ends in ((node, SWITCH), (SWITCH, node)))
    star = Machine("star", 4, (0, 0, 1, 2), (*hub, Link(1, 2, "fast")))
    assert star.route(0, 2) == ("tcp", (0, 3))
    assert star.route(2, 3) == ("fast", (6,))
    assert star.route(3, 2) == ("tcp", (4, 3))
    assert star.route(0, 1) == ("shm", ())
    assert Machine("cards", 2, (0, 0), (Link(0, 0, "hccs"),)).route(1, 0) == ("hccs", ())


def test_load_by_name_or_path_and_its_errors(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(pair().to_json()))
    assert load(path) == load(str(path)) == pair()
    with pytest.raises(MachineError, match="did you mean 'two-hosts-1gbit'"):
        load("two-host-1gbit")
    with pytest.raises(MachineError, match="presets a100-8, atlas-a2-8"):
        load("zzz")
    with pytest.raises(DovetailError, match="cannot read machine"):
        load(tmp_path / "absent.json")


@pytest.mark.parametrize("name", presets())
def test_every_preset_is_complete_and_says_that_it_was_not_measured(name: str) -> None:
    machine = load(name)
    assert machine.name == name
    assert machine.provenance["label"] == "preset, not measured here"
    assert {curve.label for curve in CostModel.of(machine).curves.values()} <= {"preset", "published"}
    assert Machine.from_json(machine.to_json()) == machine


def test_the_preset_of_seed_000_gives_the_numbers_of_the_seed() -> None:
    machine = load("atlas-a2-8")
    model, published = CostModel.of(machine), machine.facts["published"]
    row_bytes, flops = 8192 * 2, 2 * 3072 * 8192
    assert model.seconds("all_reduce:8", 384 * row_bytes) * 1e6 == pytest.approx(142.23, abs=0.005)
    assert model.kernel_seconds("matmul:k=3072:n=8192:float16:block=64", 4096, 4096 * flops) == pytest.approx(803e-6)
    prior = machine.facts["contention_prior"]
    all_reduce_s = model.seconds("all_reduce:8", 4096 * row_bytes)
    assert prior * all_reduce_s == pytest.approx(published["all_reduce_s"], rel=1e-3)
    printed = 1 - published["planned_s"] / published["serial_s"]
    uncontended = 1 - published["planned_s"] / (published["matmul_s"] + all_reduce_s)
    assert (round(printed, 3), round(uncontended, 3)) == (0.327, 0.272)
    assert machine.facts["k_is_per_rank"]
