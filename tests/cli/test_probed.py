"""Plans find the machines that any executor probed, and the costs of their operator."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from dovetail.machine import Machine, load
from dovetail.matmul import MatmulAllReduce
from dovetail.run.executor import executor_on
from dovetail.store.machines import costs_on, machine_item, save_machine

SIZES = ["--m", "512", "--k", "256", "--n", "128"]
PLAN = ["plan", "matmul_all_reduce", *SIZES]
NO_MPI = "dovetail.run.mpi.executor.find_tool"


@pytest.fixture(autouse=True)
def _cache(own_cache, monkeypatch):
    monkeypatch.delenv("DOVETAIL_LAUNCH", raising=False)
    monkeypatch.setattr("dovetail.run.mpi.executor._flags", lambda mpiexec: "")


@pytest.fixture
def mpi(monkeypatch):
    monkeypatch.setattr(NO_MPI, lambda *names: "/planted/mpiexec")


@pytest.fixture
def no_mpi(monkeypatch):
    monkeypatch.setattr(NO_MPI, lambda *names: None)


def probed(on: str, *, costs: bool = True) -> str:
    """Save the machine that an executor would probe; with `costs`, also those of the operator. Return its name."""
    place, whole = machine_item(executor_on(on).launched_by, 2), load("shared-memory-2")
    facts = {**whole.facts, "mpi": f"library of {on}", "probed": f"2026-01-31 on {on}"}
    bare = {key: cost for key, cost in whole.costs.items() if not key.startswith("flops:")}
    links = replace(whole, name=f"probed-{place.key[:12]}", facts=facts, costs=bare)
    save_machine(place, links)
    if costs:
        save_machine(costs_on(links, MatmulAllReduce(512, 256, 128), 2), replace(links, costs=whole.costs))
    return links.name


@pytest.mark.parametrize("has_mpi", ["mpi", "no_mpi"])
def test_a_probe_without_mpi_serves_and_is_named(call, request, has_mpi):
    request.getfixturevalue(has_mpi)
    name = probed("shared")
    code, out, err = call(*PLAN, "--ranks", "2")
    assert (code, f"on 2 ranks of {name}" in out) == (0, True), err
    assert "costs probed at 2026-01-31 on shared by library of shared." in err
    assert call(*PLAN, "--ranks", "2", "--quiet")[2] == ""


def test_the_probe_of_mpi_comes_first(call, mpi):
    name = probed("mpi")
    probed("shared")
    code, out, err = call(*PLAN, "--ranks", "2")
    assert (code, err, f"on 2 ranks of {name}" in out) == (0, "", True)


def test_a_launch_command_has_probes_of_its_own(call, mpi):
    probed("shared")
    code, _, err = call(*PLAN, "--ranks", "2", "--launch", "srun -n {ranks}")
    assert code == 2
    assert "--ranks 2 --launch 'srun -n {ranks}'`" in err


@pytest.mark.parametrize("words", [[], ["--ranks", "2"]])
def test_named_machines_have_the_costs_of_the_operator(call, mpi, words):
    name = probed("shared")
    for given in ("this", name):
        code, out, err = call(*PLAN, "--machine", given, *words)
        assert (code, err, f"on 2 ranks of {name}" in out) == (0, "", True)


def test_a_machines_file_is_taken_as_it_is(call, mpi, tmp_path):
    probed("shared")
    machine = call("machines", "show", "this", "--json")[1]
    (tmp_path / "mine.json").write_text(machine)
    code, _, err = call(*PLAN, "--machine", tmp_path / "mine.json")
    assert (code, "dovetail probe" in err) == (2, False)


@pytest.mark.parametrize("words", [["--machine", "this"], ["--ranks", "2"]])
def test_a_missing_cost_is_to_be_probed_where_the_links_were(call, mpi, words):
    probed("shared", costs=False)
    code, _, err = call(*PLAN, *words)
    assert code == 2
    assert "`dovetail probe matmul_all_reduce --m 512 --k 256 --n 128 --dtype float32 --ranks 2 --on shared`" in err


@pytest.mark.parametrize(("has_mpi", "ending"), [("mpi", "--ranks 3"), ("no_mpi", "--ranks 3 --on shared")])
@pytest.mark.parametrize("what", [["all_reduce"], ["matmul_all_reduce", *SIZES]])
def test_the_command_for_a_machine_not_probed_can_be_typed(call, monkeypatch, request, has_mpi, ending, what):
    """It names what works here: ranks of MPI if there is one, and the links for what is tuned by size."""
    request.getfixturevalue(has_mpi)
    probed("shared")
    code, _, err = call("plan", *what, "--ranks", "3")
    command = err.split("`")[1]
    assert (code, command.endswith(ending)) == (2, True)
    ran = []

    def probe(ranks, operator, *, executor, **_) -> Machine:
        ran.append((ranks, operator, type(executor).__name__))
        return load("shared-memory-2")

    monkeypatch.setattr("dovetail.tuner.machines.probe", probe)
    assert call(*shlex.split(command)[1:])[0] == 0
    operator = None if what == ["all_reduce"] else MatmulAllReduce(512, 256, 128)
    assert ran == [(3, operator, "MpiExecutor" if has_mpi == "mpi" else "SharedExecutor")]


def test_sizes_beyond_the_probe_name_the_option(call, mpi, tmp_path):
    machine = load("shared-memory-2").to_json()
    machine["costs"]["all_reduce:2"]["high"] = 2.0**21
    Machine.from_json(machine).save(tmp_path / "narrow.json")
    words = ["plan", "all_reduce", "--ranks", "2", "--machine", tmp_path / "narrow.json"]
    code, _, err = call(*words)
    assert (code, "(--extrapolate)" in err) == (2, True)
    assert call(*words, "--extrapolate")[0] == 0
